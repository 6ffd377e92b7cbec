"""Both sides as they are: rounding and a side's own noise explain a difference, and what cannot be compared is never a pass."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from precflow.environment.as_is import NotedRun, NotedStep, SideRuns
from precflow.judgement.as_is import judge_as_is
from precflow.judgement.verdicts import Judged

GRADIENTS = (3.0, -4.0)  # stands for a sketch: the norm of a difference is that of the difference of two


def steps(loss=2.0, gradients=GRADIENTS, numbers=(0, 1)):
    return tuple(NotedStep(number, 0, () if loss == () else (loss,), 5.0, gradients) for number in numbers)


def ran(noted=None, *, device="cpu", drew=False, problem=""):
    return (NotedRun(device, problem, drew, steps() if noted is None else noted),)


def judged(reference, target, *, dtype="float32", rows=()):
    return judge_as_is(reference, target, rows=rows, dtypes=(dtype, dtype), what="the script")


SOUND = SideRuns(ran())


def test_equal_losses_and_gradients_agree():
    found = judged(SOUND, SOUND)
    assert (found.state, found.text) == ("agrees", "the script as it is agrees: losses to 0 and gradients to 0")
    assert [step.step for step in found.steps] == [0, 1]


def test_beside_records_that_differ_nothing_is_said_to_agree():
    record = SimpleNamespace(phase="gradient", metrics={"relative_l2": 0.5}, record="fc/gradient.output.weight")
    sides = [SideRuns(ran(steps(gradients=gradients, numbers=(0,)))) for gradients in (GRADIENTS, (3.1, -4.0))]
    found = judged(*sides, rows=[(record, Judged("fc/gradient.output.weight", "fail"))])
    assert (found.state, found.text) == ("agrees", "the script as it is differs by no more: losses to 0 and gradients to 0.02")


@pytest.mark.parametrize(
    ("noted", "said"),
    [
        (steps(loss=2.01), "the losses of step 0 differ by 0.00498, limit 0.000244"),
        (steps(gradients=(3.1, -4.0)), "the gradients of step 0 differ by 0.02, limit 0.000244"),
        (steps(loss=None), "the losses of step 0 differ by inf"),
        (steps(gradients=None), "the gradients of step 0 differ by inf"),
        (steps(numbers=(0,)), "2 steps on the reference, 1 on the target"),
        ((*steps(numbers=(0,)), *steps(loss=2.02, numbers=(1,))), "the losses of step 1 differ by 0.0099, limit 0.00195"),
    ],
)
def test_what_rounding_does_not_explain_does_not_agree(noted, said):
    found = judged(SOUND, SideRuns(ran(noted)))
    assert found.state == "differs"
    assert said in found.text
    assert ("determinism.repeat=true" in found.text) is (len(noted) == 2)


def test_a_difference_within_what_a_side_changes_by_itself_agrees_unless_that_hides_everything():
    target = SideRuns(ran(steps(loss=2.01)))
    noisy = judged(SideRuns(ran(), again=ran(steps(loss=2.005))), target)
    assert noisy.state == "agrees"
    assert "within what a side changes from run to run (0.0025)" in noisy.text
    wild = steps(loss=3.0, gradients=(-3.0, 4.0))
    hidden = judged(SideRuns(ran(), again=ran(wild)), SideRuns(ran(wild)))
    assert (hidden.state, "it changes too much from run to run" in hidden.text) == ("not_comparable", True)


def test_16_bits_are_held_to_their_own_line_and_to_how_close_the_recorded_gradients_are(measure):
    target = SideRuns(ran(steps(gradients=(3.3, -4.0))))  # 6 %
    assert judged(SOUND, target, dtype="bfloat16").state == "differs"
    recorded = replace(measure(relative_l2=0.01), record="fc/gradient.output.weight", phase="gradient")
    row = (recorded, Judged(recorded.record, "pass"))
    assert judged(SOUND, target, dtype="bfloat16", rows=[row]).state == "agrees"


def test_devices_of_two_kinds_are_compared_with_their_draws_on_the_cpu():
    drawn = ran(steps(loss=9.0), device="npu", drew=True)
    found = judged(SOUND, SideRuns(drawn, moved=ran(device="npu")))
    assert found.text.startswith("the script as it is, apart from draws on the CPU, agrees")
    inside = judged(SOUND, SideRuns(drawn, moved=ran(device="npu", drew=True)))
    assert inside.state == "not_comparable"
    assert "draws that cannot be moved to the CPU differ by device" in inside.text
    assert judged(SideRuns(ran(device="npu", drew=True)), SideRuns(drawn)).state == "differs"  # one kind draws the same


def test_a_side_that_does_not_run_as_it_is_is_named():
    found = judged(SOUND, SideRuns(ran((), problem="train.py raised RuntimeError")))
    assert (found.state, found.text) == (
        "failed",
        "the script does not run as it is on the target: train.py raised RuntimeError",
    )


def test_a_side_without_a_loss_is_compared_by_its_gradients_and_one_without_both_by_nothing():
    without = SideRuns(ran(steps(loss=())))
    assert judged(without, without).text == "the script as it is agrees: gradients to 0"
    nothing = SideRuns(ran(steps(loss=(), gradients=None)))
    assert judged(nothing, nothing).state == "not_comparable"


def test_several_ranks_are_held_to_one_process_by_their_mean_loss_and_the_first_ones_gradients():
    parts = SideRuns((*ran(steps(loss=1.5)), *ran(steps(loss=2.5))))
    assert judged(SOUND, parts).state == judged(parts, SOUND).state == "agrees"
    uneven = SideRuns((*ran(steps(loss=1.5)), *ran(steps(loss=2.6))))
    assert judged(SOUND, uneven).state == "differs"
