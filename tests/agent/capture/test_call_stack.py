import pytest

from precflow.agent.capture.call_stack import CallStack
from precflow.agent.selection import DetailRule, Selection


def test_calls_and_ordinals_count_for_themselves():
    frames = CallStack(Selection())
    first = frames.enter("a", "Linear", compiled=False)
    assert [first.ordinal(name) for name in ("linear", "clone", "linear")] == [0, 0, 1]
    frames.leave("a")
    second = frames.enter("a", "Linear", compiled=False)
    assert (first.call, second.call) == (0, 1)
    assert second.ordinal("linear") == 0


def test_outside_of_all_modules_is_a_frame_too():
    frames = CallStack(Selection())
    assert (frames.innermost.module, frames.innermost.call) == ("(outside)", 0)
    assert frames.leave("a") == []
    assert frames.innermost.module == "(outside)"


def test_leaving_takes_what_an_exception_left_behind():
    frames = CallStack(Selection())
    for name in ("", "a", "a.b", "a.b.c"):
        frames.enter(name, "", compiled=False)
    assert [frame.module for frame in frames.leave("a")] == ["a.b.c", "a.b", "a"]
    assert frames.innermost.module == ""


def test_a_recursive_module_leaves_its_innermost_call():
    frames = CallStack(Selection())
    calls = [frames.enter("a", "", compiled=False) for _ in range(3)]
    assert frames.leave("a") == [calls[2]]
    assert frames.innermost is calls[1]


def test_a_step_starts_the_counters_anew():
    frames = CallStack(Selection())
    frames.enter("a", "", compiled=False)
    frames.begin()
    assert frames.innermost.module == "(outside)"
    assert frames.enter("a", "", compiled=False).call == 0


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
    frames = CallStack(Selection(scope))
    assert all(frames.enter(name, "", compiled=False).in_scope for name in inside if name != "(outside)")
    assert not any(frames.enter(name, "", compiled=False).in_scope for name in outside if name != "(outside)")
    assert frames.outside.in_scope == ("(outside)" in inside)


def test_compiled_and_excluded_frames_are_not_open():
    frames = CallStack(Selection(["a"]))
    assert frames.enter("a", "", compiled=False).open
    assert not frames.enter("a", "", compiled=True).open
    assert not frames.enter("b", "", compiled=False).open


def test_a_frame_is_open_where_an_operator_inside_may_be_recorded():
    rules = [DetailRule(match=("a",), operator=("add",), detail="tensors"), DetailRule(detail="none")]
    frames = CallStack(Selection(rules=rules))
    assert frames.enter("a", "", compiled=False).open
    assert not frames.enter("b", "", compiled=False).open
    assert frames.choice("api", "a", "", "add").detail == "tensors"
    assert frames.choice("module", "a", "").detail == "none"


def test_choices_know_the_step_and_the_rank():
    frames = CallStack(Selection(rules=[DetailRule(step=(2,), rank=(1,), detail="tensors")], detail="digest"), rank=1)
    assert frames.choice("module", "a", "").detail == "digest"
    frames.begin(2)
    assert frames.choice("module", "a", "").detail == "tensors"
