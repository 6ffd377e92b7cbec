"""The table of operators: grouped by operator, phase and type, in roundings of the type, beside an earlier one."""

import pytest

from precflow.diagnosis.introduced import IntroducedError
from precflow.diagnosis.operator_table import CalledOperator, build_rows, lay_beside, summarize


def error(call, *, target, reference=2.0**-24, fault=False):
    return IntroducedError(call, "0", "other", 1.0, 0.1, "rho", is_fault=fault, eta_reference=reference, eta_target=target)


def replayed(call, eta, why=""):
    runs = {} if why else {"reference": {"eta": eta, "dtype": "float32"}, "target": {"eta": 9.0}}
    return {"call": call, "index": "0", "replayed": not why, "why": why, "runs": runs}


CALLED = {
    "a/norm": CalledOperator("a / norm", "aten.native_layer_norm", "forward", {"0": "float32"}),
    "b/norm": CalledOperator("b / norm", "aten.native_layer_norm", "forward", {"0": "float32"}),
    "b/grad": CalledOperator("b (backward)", "aten.native_layer_norm_backward", "backward", {"0": "bfloat16"}),
}
UNARY = {
    "operator": "exp",
    "dtype": "float16",
    "why": "",
    "largest": 0.7,
    "at": -3.25,
    "rounded": 60000,
    "wrong": 5,
    "misplaced": 2,
}


def rows_of(found, alone=(), unary=()):
    return build_rows(found, CALLED, alone, unary)


def test_calls_of_one_operator_are_a_row_with_its_largest_errors():
    found = [error("a/norm", target=3 * 2.0**-24), error("b/norm", target=5 * 2.0**-24, reference=2 * 2.0**-24, fault=True)]
    (row,) = rows_of(found, [replayed("a/norm", 4 * 2.0**-24), replayed("b/norm", 2.0**-24)])
    assert (row.operator, row.phase, row.dtype, row.calls, row.faults) == ("aten.native_layer_norm", "forward", "float32", 2, 1)
    assert (row.in_run, row.alone, row.reference, row.worst) == (5, 4, 2, "b / norm")


def test_roundings_are_those_of_the_output_s_type():
    (row,) = rows_of([error("b/grad", target=2.0**-7)])
    assert (row.dtype, row.in_run) == ("bfloat16", 2)


def test_a_call_that_was_not_run_alone_says_why():
    (row,) = rows_of([error("a/norm", target=0.0)], [replayed("a/norm", 0.0, "no composition for it")])
    assert (row.alone, row.why) == (None, "no composition for it")
    (row,) = rows_of([error("a/norm", target=0.0)])
    assert row.why == "it was not run alone"


def test_functions_of_all_numbers_are_rows_in_ulp():
    (row,) = rows_of([], unary=[UNARY])
    assert (row.operator, row.phase, row.in_run, row.calls, row.faults, row.worst) == (
        "exp",
        "all numbers",
        0.7,
        60000,
        2,
        "-3.25",
    )
    (lacking,) = rows_of([], unary=[{**UNARY, "why": "no kernel", "rounded": 0}])
    assert (lacking.why, lacking.worst) == ("no kernel", "")


@pytest.mark.parametrize(("before", "now", "worse"), [(1.0, 1.4, False), (1.0, 1.6, True), (0.0, 0.7, False), (0.0, 0.8, True)])
def test_worse_is_more_than_half_again_and_never_less_than_rounding(before, now, worse):
    old, new = (rows_of([error("a/norm", target=size * 2.0**-24)]) for size in (before, now))
    (row,) = lay_beside(new, old)
    assert row.before == before
    assert row.is_worse == worse


def test_an_operator_that_is_new_has_nothing_before():
    (row,) = lay_beside(rows_of([error("a/norm", target=1.0)]), [])
    assert row.before is None
    assert not row.is_worse


def test_the_summary_names_what_is_wrong_and_what_got_worse():
    found = [error("a/norm", target=8 * 2.0**-24, fault=True)]
    rows = lay_beside(rows_of(found, unary=[UNARY]), rows_of([error("a/norm", target=2.0**-24)]))
    text = summarize(rows)
    assert "1 introduce an error that rounding does not explain: aten.native_layer_norm" in text
    assert "1 worse than before: aten.native_layer_norm" in text
    assert "none introduces more than rounding" in summarize(rows_of([error("a/norm", target=0.0)]))
