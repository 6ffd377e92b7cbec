"""How much was compared, and what would decide the records that are undecided."""

from dataclasses import replace

import pytest

from precflow.config.schema import Capture, RunConfig, Side
from precflow.judgement.coverage import (
    describe_blind_phases,
    describe_empty_ends,
    describe_not_judged,
    describe_other_types,
    suggest_remedy,
    tally,
)
from precflow.judgement.verdicts import STATUSES, Judged


def test_every_status_is_counted_once():
    found = tally([Judged("r", status) for status in STATUSES])
    assert found.counts == dict.fromkeys(STATUSES, 1)
    assert found.total == len(STATUSES) - 1
    assert found.compared == 7
    assert found.could_fail == 6
    assert found.covered == 1
    assert found.coverage == 8 / 16


def test_nothing_is_no_coverage():
    assert tally([]).coverage == 0.0
    assert tally([Judged("r", "not_judged")]).coverage == 0.0


def test_half_blind_is_not_mostly_blind(measure):
    measures = [measure(), measure()]
    assert describe_blind_phases(measures, [Judged("r", "blind"), Judged("r", "pass")]) == []
    assert describe_blind_phases(measures, [Judged("r", "blind")] * 2) == [
        "forward is mostly blind: 2 of 2 records could not have failed"
    ]
    assert describe_blind_phases(measures, [Judged("r", "not_judged")] * 2) == []


def test_only_the_end_must_hold_numbers(measure):
    empty = {"elements": 4, "nonfinite": 1, "sentinel": 3}
    early, end = measure("a", counts=empty), measure("b", order=1)
    blind = [Judged("r", "blind"), Judged("r", "pass")]
    assert describe_empty_ends([early, end], blind) == []
    assert len(describe_empty_ends([end, early], blind[::-1])) == 0
    assert "b / linear" in describe_empty_ends([early, measure("b", order=1, counts=empty)], [Judged("r", "blind")] * 2)[0]
    assert describe_empty_ends([], []) == []
    assert describe_empty_ends([early], [Judged("r", "not_judged")]) == []
    assert "a / linear" in describe_empty_ends([early], [Judged("r", "blind")])[0]  # the first call is the last one too


def test_every_step_has_an_end_of_its_own(measure):
    empty = {"elements": 4, "nonfinite": 4}
    first = measure("a", order=7)
    second = measure("b", order=3, counts=empty, record="b/forward.output.0@1.0")
    judged = [Judged("r", "pass"), Judged("r", "blind")]
    assert "b / linear" in describe_empty_ends([first, second], judged)[0]


def test_a_type_that_no_record_has_was_never_looked_at(measure):
    half = measure(target_dtype="float16")
    assert describe_other_types([measure(), half], "float32", "float16") == []
    assert describe_other_types([measure()], "float32", "float16") == [
        "the target was to run in float16, and none of its records is: float32 only"
    ]
    assert describe_other_types([measure(reference_dtype="complex64")], "float32", "float32") == []
    assert describe_other_types([measure(judged=False)], "float32", "float16") == []


def test_what_differs_and_is_not_judged_is_told(measure):
    integer = measure("(model)", "", judged=False, join="shape")
    assert "1 record without fractions differs and is not judged, first (model)" in describe_not_judged([measure(), integer])[0]
    assert "2 records without fractions differ and are not judged" in describe_not_judged([integer, integer])[0]
    assert describe_not_judged([measure(), measure(judged=False, equal=True)]) == []
    assert (
        describe_not_judged([measure(), measure(judged=False, join="unpaired_target")]) == []
    )  # there is nothing to differ from
    moved = measure("x", "getitem", judged=False, movement=True, order=9)
    assert "x / getitem, moves values" in describe_not_judged([measure(), moved])[0]
    assert describe_not_judged([moved])[0].endswith("capture.level=[module,api] records its module")
    assert describe_not_judged([moved, measure(order=10)]) == []


def test_movement_behind_the_model_has_no_module_to_record(measure):
    loose = measure("(outside)", "reshape", judged=False, movement=True, order=9)
    assert describe_not_judged([measure(), loose]) == ["the last call, (outside) / reshape, moves values and is not judged"]


def test_the_end_is_that_of_the_forward_and_not_the_optimizers_last_weight(measure):
    empty = {"elements": 0, "ordinary": 0, "small": 0, "sentinel": 0, "nonfinite": 0}
    end = measure(order=3)
    last = measure(record="head/optimizer.output.weight", phase="optimizer", order=9, counts=empty)
    judged = [Judged(end.record, "pass"), Judged(last.record, "blind")]
    assert describe_empty_ends([end, last], judged) == []
    assert describe_empty_ends([replace(end, counts=empty)], [Judged(end.record, "blind")])


def test_movement_at_the_end_of_backward_is_no_missing_end(measure):
    end = measure(order=3)
    moved = measure(record="a/aten.t.0/backward.output.0", phase="backward", order=9, movement=True, judged=False)
    assert describe_not_judged([end, moved]) == []
    assert describe_not_judged([end, replace(moved, phase="forward")])


ESCALATING = Capture(detail="escalating")


@pytest.fixture
def advised(measure):
    """Return a function that asks for one record by its sketch; keywords change the recipe."""

    def ask(*evidence, second_pass=False, **recipe):
        found = [measure(evidence=one) for one in evidence or ("sketch",)]
        return suggest_remedy(found, RunConfig(**recipe), second_pass=second_pass)

    return ask


def test_a_run_of_sketches_is_asked_to_escalate(advised):
    assert advised(capture=Capture(detail="sketch")) == "their tensors would: capture=escalating"


def test_a_run_that_keeps_its_last_steps_cannot_escalate(advised):
    assert advised(capture=Capture(detail="sketch", keep_last=3)) == "their tensors would: capture=tensors"


def test_an_escalating_run_says_what_its_second_pass_does(advised):
    assert advised(capture=ESCALATING) == "the second pass fetches their tensors"
    assert "as far as capture.budget has room" in advised(capture=replace(ESCALATING, budget=1000))


def test_after_the_second_pass_escalating_is_not_the_answer(advised):
    assert advised(capture=replace(ESCALATING, budget=1000), second_pass=True).endswith("a larger capture.budget")
    assert advised(capture=ESCALATING, second_pass=True).endswith("capture=tensors keeps those of every record")


def test_a_second_pass_that_was_left_out_is_named(advised):
    chosen = ("dump", "compare", "judge")
    assert "stages leaves region out" in advised(capture=ESCALATING, stages=chosen)
    assert advised(capture=ESCALATING, stages=(*chosen, "region")) == "the second pass fetches their tensors"


@pytest.mark.parametrize("side", ["reference", "target"])
def test_dumps_that_were_given_are_recorded_again_elsewhere(advised, side):
    assert "record both sides again with capture=tensors" in advised(**{side: Side(dump="a")})


def test_tensors_that_were_read_are_not_asked_for(advised):
    assert advised("tensors", "tensors") == ""
    assert advised("tensors", "sketch") != ""


@pytest.mark.parametrize("detail", ["sketch", "escalating"])
@pytest.mark.parametrize("second_pass", [False, True])
def test_only_a_run_that_does_not_escalate_is_told_to(advised, detail, second_pass):
    told = advised(capture=Capture(detail=detail), second_pass=second_pass)
    assert ("capture=escalating" in told) == (detail != "escalating")


def test_the_verdict_says_it(measure, run):
    near = {"metrics": {"relative_l2": 2**-16}, "ranges": {"relative_l2": (2**-17, 2**-15)}, "evidence": "sketch"}
    _, verdict = run([measure(**near)])
    assert verdict.reasons[0].startswith(
        "1 record cannot be decided by what was kept; their tensors would: capture=escalating; first "
    )
    _, verdict = run([measure(**{**near, "evidence": "tensors", "metrics": {}})])
    assert verdict.reasons[0].endswith("which does not decide its limit 1.53e-05 (default)")
