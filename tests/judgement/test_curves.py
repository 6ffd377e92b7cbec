"""Standards of losses at and beside their limits, and that nothing is met for want of losses."""

import datetime
import math

import pytest
import torch

from precflow.config.schema import Curve, RunConfig, Tolerance
from precflow.judgement import standards
from precflow.judgement.curves import LossOutcome, find_loss_line, judge_first_loss, judge_losses
from precflow.judgement.judge import Circumstances, TrainingCourse
from precflow.judgement.judge import judge as judge_run
from precflow.judgement.verdicts import Judged

LONG = 1000


def limits_of(name):
    return standards.load(name).losses


def judge(limits, reference, target):
    return judge_losses(limits, dict(enumerate(reference)), dict(enumerate(target)))


def curve(first, others, *, steps=LONG):
    """Return losses of a reference of 1 and of a target that is off, above and below it in turn."""
    offs = [first, *(others if number % 2 else -others for number in range(steps - 1))]
    return [1.0] * steps, [1.0 + off for off in offs]


@pytest.mark.parametrize("name", ["mindformers_migration", "verl_npu", "msprobe_triage"])
def test_equal_losses_keep_every_standard(name):
    assert judge(limits_of(name), *curve(0.0, 0.0)).is_met


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
        outcome = judge(limits_of(name), [reference] * steps, [reference + off, *[reference] * (steps - 1)])
        assert outcome.is_met is is_met
        assert bool(outcome.failed) is not is_met


@pytest.mark.parametrize(("reference", "off", "is_met"), [(1, 0.0099, True), (1, 0.0101, False), (0.1, 0.0099, True)])
def test_the_mean_of_the_losses_at_the_limit(reference, off, is_met):
    left = [float(reference)] * LONG
    right = [reference + (off if number % 2 else -off) * (number > 0) for number in range(LONG)]
    off *= LONG / (LONG - 1)
    assert judge(limits_of("mindformers_migration"), left, right).is_met is is_met


def test_differences_on_one_side_fail_where_those_on_both_pass():
    reference = [1.0] * LONG
    outcome = judge(limits_of("mindformers_migration"), reference, [1.001] * LONG)
    assert outcome.failed == ("the target's loss is above the reference's in 1 of the steps, and has to fluctuate around it",)
    assert judge(limits_of("mindformers_migration"), *curve(0.001, 0.001)).is_met
    mixed = [1.001] * 949 + [0.999] * 51
    assert judge(limits_of("mindformers_migration"), reference, mixed).is_met


def test_a_short_run_can_fail_and_not_meet_the_migration_standard():
    limits = limits_of("mindformers_migration")
    short = judge(limits, [1.0] * 999, [1.0] * 999)
    assert (short.failed, short.is_met) == ((), False)
    assert "1000 steps or more, and there are 999" in short.missing
    assert judge(limits, [1.0], [1.1]).failed


def test_losses_that_are_missing_or_not_finite():
    limits = limits_of("verl_npu")
    assert "hold none" in judge(limits, [], [1.0]).missing
    assert "2 losses and the target 1" in judge(limits, [1.0, 1.0], [1.0]).missing
    assert judge(limits, [1.0], [math.nan]).failed == ("the loss of step 0 is not finite on one side",)
    both = judge(limits, [math.nan], [math.inf])
    assert (both.failed, both.is_met) == ((), False)
    assert judge(limits, [0.0], [0.0]).is_met
    assert judge(limits, [0.0], [1e-30]).failed


@pytest.mark.parametrize(
    ("losses", "verdict", "met"), [(({0: 1.0}, {0: 1.0}), "aligned", True), (({0: 1.0}, {0: 2.0}), "misaligned", False)]
)
def test_a_run_is_judged_by_its_losses_too(run, measure, losses, verdict, met):
    _, outcome = run([measure()], tolerance=Tolerance(standards=("default", "verl_npu")), losses=losses)
    held = {name: outcome.standards[name] for name in ("default", "verl_npu")}
    assert (outcome.verdict, held) == (verdict, {"default": True, "verl_npu": met})
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
        judged, outcome = run([failing], tolerance=Tolerance(standards=("default", name)), losses=({0: 1.0}, {0: 1.0}))
        assert (judged, outcome.verdict) == (alone, "misaligned")


def test_what_a_standard_asks_for_and_is_not_checked_is_a_warning(run, measure):
    _, outcome = run([measure()], tolerance=Tolerance(standards=("default", "msprobe_triage")), losses=({0: 1.0, 1: 1.0},) * 2)
    assert outcome.verdict == "aligned"
    assert any("msprobe_triage also asks for what is not checked: spikes" in text for text in outcome.warnings)


FORWARD_ONLY = ({0: 2.0, 1: 1.0}, {0: 2.5, 1: 1.0})


def test_a_loss_that_no_record_explains_is_wrong(run, measure):
    """The forward of the modules agrees, and the function of the loss is in no record."""
    _, outcome = run([measure()], losses=FORWARD_ONLY)
    assert outcome.verdict == "misaligned"
    assert outcome.reasons[0].startswith("the loss of step 0 is 2 on the reference and 2.5 on the target, though every record")
    _, outcome = run([measure()], losses=({0: 2.0, 1: 1.0}, {0: 2.0, 1: 1.5}))  # follows from an update
    assert outcome.verdict == "aligned"
    _, outcome = run([measure()], losses=({0: 2.0}, {0: math.nan}))
    assert outcome.verdict == "misaligned"
    for left, right in ((math.nan, math.nan), (math.inf, math.inf), (math.inf, math.nan)):
        _, outcome = run([measure()], losses=({0: left}, {0: right}))
        assert (outcome.verdict, outcome.reasons) == ("inconclusive", ("the loss of step 0 is finite on neither side",))


def test_a_loss_proves_nothing_where_the_forward_was_not_compared_in_full(run, measure):
    gradient = measure(record="head/gradient.output.weight", phase="gradient")
    _, outcome = run([gradient], losses=FORWARD_ONLY)
    assert outcome.verdict == "inconclusive"
    assert "does not explain that" in outcome.reasons[0]


@pytest.mark.parametrize(
    "changes", [{"blockers": ("the weights differ",)}, {"tolerance": Tolerance(standards=("default", "msprobe_triage"))}]
)
def test_a_loss_is_not_held_to_a_line_where_something_else_says_more(run, measure, changes):
    _, outcome = run([measure()], losses=({0: 2.0}, {0: 2.002}), **changes)
    assert not any("the loss of step 0" in reason for reason in outcome.reasons)


@pytest.mark.parametrize(
    ("curve", "is_judged"),
    [
        (Curve(standard="loss_1_percent"), True),  # a mean over the run says nothing of the first step
        (Curve(standard="mindformers_migration"), False),
        (Curve(standard="loss_1_percent", max_rel_error=0.01), False),
        (Curve(mean_rel_error=0.01), True),
    ],
)
def test_a_curve_speaks_for_the_first_loss_only_if_it_limits_it(measure, curve, is_judged):
    config = RunConfig(tolerance=Tolerance(standards=("default",)), curves={"loss": curve})
    losses = ({0: 2.0}, {0: 2.002})
    known, dtypes = Circumstances(datetime.date(2026, 1, 31)), ("float32", "float32")
    _, outcome = judge_run([measure()], config, dtypes=dtypes, known=known, training=TrainingCourse(losses))
    assert (outcome.verdict == "misaligned") is is_judged


def test_a_first_loss_that_fails_stands_among_the_standards(run, measure):
    """Failing records of backward may be accumulated rounding; the loss is not, and so the run stays misaligned."""
    _, outcome = run([measure()], losses=({0: 2.0}, {0: 2.2}), tolerance=Tolerance(standards=("default",)))
    assert outcome.standards == {"default": True, "the loss of the first step": False}


def judge_first(measures, left, right, *, status="pass", dtypes=("float32", "float32")):
    rows = [(measure, Judged(measure.record, status)) for measure in measures]
    return judge_first_loss(rows, {0: left}, {0: right}, dtypes)


def test_the_line_of_a_loss_follows_the_error_of_the_forward(measure):
    line = find_loss_line([], 0, ("float32", "float32")).relative
    assert judge_first([measure()], 1.0, 1 - 0.99 * line) == LossOutcome()
    assert judge_first([measure()], 0.0, 0.0) == LossOutcome()
    assert judge_first([measure(relative_l2=math.inf)], 1.0, math.nan).failed  # no error of a record explains it
    assert judge_first([measure()], 1.0, 1 - 1.01 * line).failed
    assert judge_first([measure()], 1.0, 0.98, dtypes=("float32", "bfloat16")) == LossOutcome()
    assert judge_first([measure(relative_l2=0.01)], 1.0, 0.9) == LossOutcome()  # the recipe allows the forward as much
    assert judge_first([measure(relative_l2=0.01)], 1.0, 0.5).failed
    near_zero = judge_first([measure(relative_l2=1e-6)], 1e-6, 3e-6)  # a difference of two large numbers, such as a GAN's
    assert near_zero == LossOutcome()
    estimated = measure(ranges={"relative_l2": (0.0, 0.1)})
    assert judge_first([estimated], 1.0, 0.9) == LossOutcome()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_loss_in_16_bits_on_one_side_is_rounded_so(run, measure, dtype):
    """A loss by hand under autocast, whose forward has the same bits on both sides."""
    exact, rounded = 2.2916589, float(torch.tensor(2.2916589).to(dtype))
    assert judge_first([measure()], exact, rounded) == LossOutcome()
    assert judge_first([measure()], exact, float(torch.tensor(2.1).to(dtype))).failed  # further than rounding goes
    assert judge_first([measure()], exact, 2.29).failed  # in float32
    assert judge_first([measure()], 2.5, 2.25).failed  # round numbers tell nothing
    _, outcome = run([measure()], losses=({0: exact}, {0: rounded}))
    assert outcome.verdict == "aligned"
    name = str(dtype).removeprefix("torch.")
    assert f"the target alone computes its loss in {name}" in outcome.warnings


@pytest.mark.parametrize("status", ["fail", "near_tie", "not_comparable"])
def test_a_loss_behind_a_record_that_says_it_already_adds_nothing(measure, status):
    assert judge_first([measure(), measure()], 1.0, 2.0, status=status) == LossOutcome()


@pytest.mark.parametrize("status", ["blind", "undecided", "unpaired_target"])
def test_a_loss_behind_a_record_without_evidence_is_open(measure, status):
    outcome = judge_first([measure()], 1.0, 2.0, status=status)
    assert outcome.missing
    assert not outcome.failed


def test_the_first_recorded_step_is_the_one_that_is_judged(measure):
    late = measure(record="encoder/linear.0/forward.output.0@7.0")
    rows = [(late, Judged(late.record, "pass"))]
    assert judge_first_loss(rows, {7: 1.0}, {7: 2.0}, ("float32", "float32")).failed
    assert judge_first_loss(rows, {0: 1.0}, {0: 2.0}, ("float32", "float32")) == LossOutcome()
