"""Standards of losses at and beside their limits, and that nothing is met for want of losses."""

import math

import pytest

from precflow.config.schema import Tolerance
from precflow.judgement import standards
from precflow.judgement.curves import judge_losses

LONG = 1000


def limits_of(name):
    return standards.load(name).losses


def curve(first, others, *, steps=LONG):
    """Return losses of a reference of 1 and of a target that is off, above and below it in turn."""
    offs = [first, *(others if number % 2 else -others for number in range(steps - 1))]
    return [1.0] * steps, [1.0 + off for off in offs]


@pytest.mark.parametrize("name", ["mindformers_migration", "verl_npu", "msprobe_triage"])
def test_equal_losses_keep_every_standard(name):
    assert judge_losses(limits_of(name), *curve(0.0, 0.0)).is_met


@pytest.mark.parametrize(
    ("name", "reference", "below", "above"),
    [
        ("verl_npu", 1.0, 0.01999, 0.02001),
        ("msprobe_triage", 1.0, 0.00999, 0.01001),
        ("mindformers_migration", 0.1, 0.00499, 0.00501),  # absolute: 0.005 is 5 % of this loss
        ("mindformers_migration", 10.0, 0.0499, 0.0501),  # relative: half a percent of it
    ],
)
def test_the_first_loss_at_the_limit(name, reference, below, above):
    steps = 1 if name == "verl_npu" else LONG  # a single step is its own mean
    for off, is_met in ((below, True), (above, False)):
        outcome = judge_losses(limits_of(name), [reference] * steps, [reference + off, *[reference] * (steps - 1)])
        assert outcome.is_met is is_met
        assert bool(outcome.failed) is not is_met


@pytest.mark.parametrize(("reference", "off", "is_met"), [(1, 0.0099, True), (1, 0.0101, False), (0.1, 0.0099, True)])
def test_the_mean_of_the_losses_at_the_limit(reference, off, is_met):
    left = [float(reference)] * LONG
    right = [reference + (off if number % 2 else -off) * (number > 0) for number in range(LONG)]
    off *= LONG / (LONG - 1)
    assert judge_losses(limits_of("mindformers_migration"), left, right).is_met is is_met


def test_differences_on_one_side_fail_where_those_on_both_pass():
    reference = [1.0] * LONG
    outcome = judge_losses(limits_of("mindformers_migration"), reference, [1.001] * LONG)
    assert outcome.failed == ("the target's loss is above the reference's in 1 of the steps, and has to fluctuate around it",)
    assert judge_losses(limits_of("mindformers_migration"), *curve(0.001, 0.001)).is_met
    mixed = [1.001] * 949 + [0.999] * 51
    assert judge_losses(limits_of("mindformers_migration"), reference, mixed).is_met


def test_a_short_run_can_fail_and_not_meet_the_migration_standard():
    limits = limits_of("mindformers_migration")
    short = judge_losses(limits, [1.0] * 999, [1.0] * 999)
    assert (short.failed, short.is_met) == ((), False)
    assert "1000 steps or more, and there are 999" in short.missing
    assert judge_losses(limits, [1.0], [1.1]).failed


def test_losses_that_are_missing_or_not_finite():
    limits = limits_of("verl_npu")
    assert "hold none" in judge_losses(limits, [], [1.0]).missing
    assert "2 losses and the target 1" in judge_losses(limits, [1.0, 1.0], [1.0]).missing
    assert judge_losses(limits, [1.0], [math.nan]).failed == ("the loss of step 0 is not finite on one side",)
    both = judge_losses(limits, [math.nan], [math.inf])
    assert (both.failed, both.is_met) == ((), False)
    assert judge_losses(limits, [0.0], [0.0]).is_met
    assert judge_losses(limits, [0.0], [1e-30]).failed


@pytest.mark.parametrize(
    ("losses", "verdict", "met"), [(([1.0], [1.0]), "aligned", True), (([1.0], [2.0]), "misaligned", False)]
)
def test_a_run_is_judged_by_its_losses_too(run, measure, losses, verdict, met):
    _, outcome = run([measure()], tolerance=Tolerance(standards=("default", "verl_npu")), losses=losses)
    assert (outcome.verdict, outcome.standards) == (verdict, {"default": True, "verl_npu": met})
    assert met or outcome.reasons[0].startswith("verl_npu (2026-11-22): the loss, on average, differs by 1 ")


def test_a_run_without_losses_does_not_meet_a_standard_of_losses(run, measure):
    _, outcome = run([measure()], tolerance=Tolerance(standards=("default", "verl_npu")))
    assert (outcome.verdict, outcome.standards["verl_npu"]) == ("inconclusive", False)
    assert "the dumps hold none" in outcome.not_applied["verl_npu"]


def test_an_operator_standard_is_never_met_by_records_alone(run, measure):
    _, outcome = run([measure()], tolerance=Tolerance(standards=("default", "cann_mixed")))
    assert (outcome.verdict, outcome.standards) == ("inconclusive", {"default": True, "cann_mixed": False})
    assert outcome.reasons[0].startswith("standard cann_mixed was not applied in full: it judges operators at equal inputs")
    assert list(outcome.sources) == ["cann_mixed"]
    assert outcome.sources["cann_mixed"].startswith("2026-09-23, hicann/opbase, docs/")


def test_adding_a_standard_never_loosens_another(run, measure):
    failing = measure(relative_l2=0.5)
    alone, _ = run([failing], tolerance=Tolerance(standards=("default",)))
    for name in ("cann_mixed", "cann_dual", "verl_npu", "assert_close"):
        judged, outcome = run([failing], tolerance=Tolerance(standards=("default", name)), losses=([1.0], [1.0]))
        assert (judged, outcome.verdict) == (alone, "misaligned")


def test_what_a_standard_asks_for_and_is_not_checked_is_a_warning(run, measure):
    _, outcome = run([measure()], tolerance=Tolerance(standards=("default", "msprobe_triage")), losses=([1.0, 1.0], [1.0, 1.0]))
    assert outcome.verdict == "aligned"
    assert any("msprobe_triage also asks for what is not checked: spikes" in text for text in outcome.warnings)
