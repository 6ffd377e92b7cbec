"""What task metrics do to a verdict, and what they never do."""

import pytest

from precflow.judgement.task import hold_to_task
from precflow.judgement.verdicts import Verdict
from precflow.task.outcome import TaskOutcome


def metric(state, **more):
    return TaskOutcome(
        "psnr", "psnr", "vae", state, unit="dB", direction="at_least", limit=30.0, value=20.0, why="because", **more
    )


@pytest.mark.parametrize(
    ("before", "state", "after"),
    [
        ("aligned", "within", "aligned"),
        ("aligned", "beyond", "misaligned"),
        ("aligned", "not computed", "inconclusive"),
        ("aligned", "not told", "aligned"),  # the tensors have said it of these very samples
        ("inconclusive", "within", "inconclusive"),
        ("inconclusive", "beyond", "misaligned"),
        ("misaligned", "within", "misaligned"),
        ("misaligned", "not computed", "misaligned"),
    ],
)
def test_a_verdict_only_becomes_worse(before, state, after):
    assert hold_to_task(Verdict(before, ("tensors",)), [metric(state)]).verdict == after


def test_each_reason_is_its_own():
    assert hold_to_task(Verdict("aligned"), [metric("beyond")]).reasons == ("psnr is beyond its limit: 20 dB, at least 30 dB",)
    assert hold_to_task(Verdict("aligned"), [metric("not computed")]).reasons == ("psnr is not known: because",)
    told = hold_to_task(Verdict("aligned"), [metric("not told")])
    assert told.reasons == ()
    assert told.warnings == ("cannot tell whether psnr (20 dB) is within its limit: because",)


def test_tensors_that_differ_while_the_task_does_not_are_said_so():
    held = hold_to_task(Verdict("misaligned", ("tensors",)), [metric("within")])
    assert held.warnings == ("tensors differ, the task does not: psnr is within its limit",)
    assert held.reasons == ("tensors",)
    open_ = hold_to_task(Verdict("misaligned"), [metric("within"), metric("not told")])
    assert not any("the task does not" in text for text in open_.warnings)


def test_worse_than_the_limit_by_what_may_be_chance_is_not_aligned():
    doubtful = TaskOutcome(
        "accuracy", "accuracy", "head", "not told", limit=0.01, reference=0.9, target=0.87, worse=0.03, why="few"
    )
    assert hold_to_task(Verdict("aligned"), [doubtful]).verdict == "inconclusive"


def test_no_metric_changes_nothing():
    verdict = Verdict("aligned")
    assert hold_to_task(verdict, []) is verdict
