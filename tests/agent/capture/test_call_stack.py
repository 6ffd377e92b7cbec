import pytest

from precflow.agent.capture.call_stack import CallStack
from precflow.agent.selection import DetailRule, Selection


def test_calls_and_ordinals_count_for_themselves():
    stack = CallStack(Selection())
    first = stack.enter("a", "Linear", compiled=False)
    assert [first.count_run(name) for name in ("linear", "clone", "linear")] == [0, 0, 1]
    stack.leave("a")
    second = stack.enter("a", "Linear", compiled=False)
    assert (first.number, second.number) == (0, 1)
    assert second.count_run("linear") == 0


def test_outside_of_all_modules_is_a_frame_too():
    stack = CallStack(Selection())
    assert (stack.innermost.module, stack.innermost.number) == ("(outside)", 0)
    assert stack.leave("a") == []
    assert stack.innermost.module == "(outside)"


def test_leaving_takes_what_an_exception_left_behind():
    stack = CallStack(Selection())
    for name in ("", "a", "a.b", "a.b.c"):
        stack.enter(name, "", compiled=False)
    assert [frame.module for frame in stack.leave("a")] == ["a.b.c", "a.b", "a"]
    assert stack.innermost.module == ""


def test_a_recursive_module_leaves_its_innermost_call():
    stack = CallStack(Selection())
    calls = [stack.enter("a", "", compiled=False) for _ in range(3)]
    assert stack.leave("a") == [calls[2]]
    assert stack.innermost is calls[1]


def test_a_step_starts_the_counters_anew():
    stack = CallStack(Selection())
    stack.enter("a", "", compiled=False)
    stack.begin_step()
    assert stack.innermost.module == "(outside)"
    assert stack.enter("a", "", compiled=False).number == 0


@pytest.mark.parametrize(
    ("scope", "inside", "outside"),
    [
        (["*"], ["", "a", "a.b", "(outside)"], []),
        (["a.*"], ["a.b", "a.b.c"], ["", "a", "b.a.b", "(outside)"]),
        (["(model)", "b"], ["", "b"], ["a", "(outside)"]),
        (["*.attn"], ["a.attn"], ["a.attn.q", ""]),
        (["注*"], ["注意力"], ["attention"]),
        ([], [], ["", "a", "(outside)"]),
    ],
)
def test_scope_goes_by_the_name_that_is_shown(scope, inside, outside):
    stack = CallStack(Selection(scope))
    assert all(stack.enter(name, "", compiled=False).in_scope for name in inside if name != "(outside)")
    assert not any(stack.enter(name, "", compiled=False).in_scope for name in outside if name != "(outside)")
    assert stack.outside.in_scope == ("(outside)" in inside)


def test_compiled_and_excluded_frames_are_not_open():
    stack = CallStack(Selection(["a"]))
    assert stack.enter("a", "", compiled=False).records_operators
    assert not stack.enter("a", "", compiled=True).records_operators
    assert not stack.enter("b", "", compiled=False).records_operators


def test_a_frame_is_open_where_an_operator_inside_may_be_recorded():
    rules = [DetailRule(match=("a",), operator=("add",), detail="tensors"), DetailRule(detail="none")]
    stack = CallStack(Selection(rules=rules))
    assert stack.enter("a", "", compiled=False).records_operators
    assert not stack.enter("b", "", compiled=False).records_operators
    assert stack.choose("api", "a", "", "add").detail == "tensors"
    assert stack.choose("module", "a", "").detail == "none"


def test_choices_know_the_step_and_the_rank():
    stack = CallStack(Selection(rules=[DetailRule(step=(2,), rank=(1,), detail="tensors")], detail="digest"), rank=1)
    assert stack.choose("module", "a", "").detail == "digest"
    stack.begin_step(2)
    assert stack.choose("module", "a", "").detail == "tensors"
