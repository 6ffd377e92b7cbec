import pytest

from precflow.agent.capture.frames import Frames


def test_calls_and_ordinals_count_for_themselves():
    frames = Frames(["*"])
    first = frames.enter("a", "Linear", compiled=False)
    assert [first.ordinal(name) for name in ("linear", "clone", "linear")] == [0, 0, 1]
    frames.leave("a")
    second = frames.enter("a", "Linear", compiled=False)
    assert (first.call, second.call) == (0, 1)
    assert second.ordinal("linear") == 0


def test_outside_of_all_modules_is_a_frame_too():
    frames = Frames(["*"])
    assert (frames.innermost.module, frames.innermost.call) == ("(outside)", 0)
    assert frames.leave("a") == []
    assert frames.innermost.module == "(outside)"


def test_leaving_takes_what_an_exception_left_behind():
    frames = Frames(["*"])
    for name in ("", "a", "a.b", "a.b.c"):
        frames.enter(name, "", compiled=False)
    assert [frame.module for frame in frames.leave("a")] == ["a.b.c", "a.b", "a"]
    assert frames.innermost.module == ""


def test_a_recursive_module_leaves_its_innermost_call():
    frames = Frames(["*"])
    calls = [frames.enter("a", "", compiled=False) for _ in range(3)]
    assert frames.leave("a") == [calls[2]]
    assert frames.innermost is calls[1]


def test_a_step_starts_the_counters_anew():
    frames = Frames(["*"])
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
    frames = Frames(scope)
    assert all(frames.in_scope(name) for name in inside)
    assert not any(frames.in_scope(name) for name in outside)


def test_compiled_and_excluded_frames_are_not_open():
    frames = Frames(["a"])
    assert frames.enter("a", "", compiled=False).open
    assert not frames.enter("a", "", compiled=True).open
    assert not frames.enter("b", "", compiled=False).open
