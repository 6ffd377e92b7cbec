"""Suspects that ran alone: wrong there too, right there, or not run."""

import pytest

from precflow.diagnosis.advice.whatif import describe
from precflow.diagnosis.alone import conclude_alone, decide_alone
from precflow.diagnosis.findings import Suspect
from precflow.diagnosis.introduced import Evaluated, SideNumbers, decide_all

UNIT = 2.0**-24
CALL = "act/silu.0/api.forward@0.0"
OPERATORS = {CALL: "silu"}


def numbers(eta, **more):
    return {"dtype": "float32", "elements": 64, "eta": eta, "unit": UNIT, "worst_row": None, **more}


def line(at_reference, at_target, **more):
    runs = {"reference": numbers(at_reference), "target": numbers(at_target)}
    return {"call": CALL, "index": "0", "replayed": True, "why": "", "runs": runs, "same_bits": False, **more}


@pytest.fixture
def decide(make_suspect):
    """Return a function that decides about one suspect, whose output is off by 1 % in the run, and what ran alone."""

    def run(*lines, in_run=1e-2):
        sides = {
            "reference": SideNumbers("float32", 64, eta=3e-8, unit=UNIT),
            "target": SideNumbers("float32", 64, eta=in_run, unit=UNIT),
        }
        evaluated = [Evaluated(CALL, "0", "other", evaluated=True, sides=sides)]
        return decide_alone({(CALL, "0"): make_suspect()}, decide_all(evaluated, OPERATORS), evaluated, lines, OPERATORS)

    return run


@pytest.fixture
def make_suspect():
    """Return a function that makes the suspect."""
    return lambda: Suspect(
        record="act/silu.0/forward.output.0", name="act / silu", module="act", operator="silu", order=3, ratio=9.0, why="w"
    )


def test_what_is_right_alone_with_the_inputs_of_both_sides_is_no_fault_of_the_kernel(decide):
    (run,) = decide(line(4e-8, 5e-8))
    assert (run.name, run.in_run, run.alone, run.is_fault, run.same_bits, run.why) == (
        "act / silu",
        1e-2,
        5e-8,
        False,
        False,
        "",
    )
    outcome = conclude_alone([run])
    assert (outcome.outcome, outcome.suspects) == ("confirmed", ("act / silu",))
    assert describe(outcome) == "confirmed: with act / silu run alone, 99.999 % of the error is gone"


@pytest.mark.parametrize("errors", [(1e-2, 1e-2), (4e-8, 1e-2), (1e-2, 4e-8)])
def test_what_is_wrong_alone_with_the_inputs_of_one_side_is_wrong_alone(decide, errors):
    (run,) = decide(line(*errors, same_bits=True))
    assert (run.alone, run.is_fault, run.same_bits) == (1e-2, True, True)
    assert conclude_alone([run]).outcome == "refuted"


def test_some_of_several_are_some(decide):
    wrong, right = *decide(line(1e-2, 1e-2)), *decide(line(4e-8, 4e-8))
    assert conclude_alone([wrong, right]).outcome == "partly"


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "it was not run"),
        ([line(1e-8, 1e-8, replayed=False, why="the device runs none of its forms")], "the device runs none of its forms"),
        ([{**line(1e-8, 1e-8), "runs": {"reference": numbers(1e-8)}}], "it was not run"),
    ],
)
def test_what_did_not_run_says_why_and_proves_nothing(decide, lines, why):
    (run,) = decide(*lines)
    assert (run.alone, run.is_fault, run.why) == (None, False, why)
    assert (conclude_alone([run]).outcome, conclude_alone([run]).problem) == ("did not run", why)


def test_a_suspect_that_is_right_in_the_run_is_not_judged_alone(decide):
    assert decide(line(4e-8, 4e-8), in_run=4e-8) == []
    assert conclude_alone([]).problem == "no suspect introduces an error of its own, all of whose tensors were kept"


def test_an_error_that_is_not_a_number_is_a_fault(decide):
    (run,) = decide(line(float("nan"), 4e-8))
    assert run.is_fault
