"""What is advised where a record stays undecided, so that nobody is sent to do what was done."""

from dataclasses import replace

import pytest

from precflow.config.schema import Capture, RunConfig, Side
from precflow.judgement.coverage import remedy

ESCALATING = Capture(detail="escalating")


@pytest.fixture
def advised(measure):
    """Return a function that asks for one record by its sketch; keywords change the recipe."""

    def ask(*evidence, second_pass=False, **recipe):
        found = [measure(evidence=one) for one in evidence or ("sketch",)]
        return remedy(found, RunConfig(**recipe), second_pass=second_pass)

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
