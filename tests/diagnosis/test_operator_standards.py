"""Operator standards at and beside their limits, by hand; and what they do to a verdict."""

import math
from dataclasses import replace

import pytest

from precflow.diagnosis import operator_standards
from precflow.diagnosis.introduced import Evaluated, SideNumbers
from precflow.diagnosis.operator_standards import apply, bootstrap_lower, hold_all, list_asked
from precflow.judgement import standards
from precflow.judgement.judge import NOT_EVALUATED
from precflow.judgement.verdicts import Judged, Verdict, describe_not_applied

DTYPES = ("float32", "float16", "bfloat16")


def side(dtype="float32", *, small=None, within=None, **errors):
    """Return what the agent measured of one side: nothing wrong, but for what is given."""
    plain = {"count": 100, "mare": 0.0, "mere": 0.0, "rmse": 0.0, "largest": 0.0, "ulp": 0.0}
    dual = {"small": 0, "wrong": 0, "count": 100, "mare": 1.0, "mere": 1.0, "rmse": 1.0, **(small or {})}
    names = ("cann_mixed", "cann_mixed_2026_07", "assert_close")
    measured = {**plain, **errors, "within": dict.fromkeys(names, 1.0) | (within or {}), "small": {"cann_dual": dual}}
    return SideNumbers(dtype=dtype, elements=100, eta=1e-8, errors=measured)


def output(target, reference=None, call="fc1/linear.0", **changes):
    sides = {"reference": reference or side(target.dtype), "target": target}
    return replace(Evaluated(call, "0", evaluated=True, sides=sides), **changes)


def hold(name, one, operator="mul"):
    (held,) = hold_all(standards.load(name), [one], {one.call: operator}).outputs
    return held


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("metric", "times"), [("mere", 1), ("mare", 10)])
def test_single_benchmark_stays_below_its_limits(dtype, metric, times):
    limit = times * {"float32": 2.0**-13, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    assert hold("cann_single", output(side(dtype, **{metric: limit}))).outcome == "failed"
    assert hold("cann_single", output(side(dtype, **{metric: math.nextafter(limit, 0)}))).outcome == "met"


@pytest.mark.parametrize("name", ["cann_mixed", "cann_mixed_2026_07"])
def test_mixed_tolerance_wants_99_percent_of_the_elements(name):
    assert hold(name, output(side(within={name: 0.99}))).outcome == "met"
    failed = hold(name, output(side(within={name: 0.98999})))
    assert (failed.outcome, failed.metric) == ("failed", "share_outside")


@pytest.mark.parametrize(("dtype", "floor"), [("float32", 0.01), ("float16", 0.1), ("bfloat16", 0.1)])
def test_mixed_tolerance_limits_the_worst_point_by_a_floor_or_32_ulp(dtype, floor):
    def outcome(largest, ulp):
        return hold("cann_mixed", output(side(dtype, largest=largest, ulp=ulp))).outcome

    assert outcome(floor, ulp=0.0) == "met"
    assert outcome(math.nextafter(floor, 1), ulp=0.0) == "failed"
    assert outcome(32.0, ulp=1.0) == "met"
    assert outcome(math.nextafter(32.0, 33), ulp=1.0) == "failed"


def test_the_tolerances_are_those_of_the_two_tables():
    loaded = [standards.load(name) for name in ("cann_mixed", "cann_mixed_2026_07", "assert_close")]
    within = {dtype: list_asked(loaded)[dtype]["within"] for dtype in DTYPES}
    assert within["float32"] == {
        "cann_mixed": [2**-13, 2**-13],
        "cann_mixed_2026_07": [2**-16, 2**-10],
        "assert_close": [1e-5, 1.3e-6],
    }
    assert within["float16"] == {
        "cann_mixed": [2**-10, 2**-10],
        "cann_mixed_2026_07": [2**-9, 2**-9],
        "assert_close": [1e-5, 1e-3],
    }
    assert within["bfloat16"] == {
        "cann_mixed": [2**-7, 2**-7],
        "cann_mixed_2026_07": [2**-6, 2**-6],
        "assert_close": [1e-5, 1.6e-2],
    }


def test_assert_close_wants_every_element():
    assert hold("assert_close", output(side())).outcome == "met"
    assert hold("assert_close", output(side(within={"assert_close": 0.9999}))).outcome == "failed"


LEVELS = [("mul", (10, 2, 2)), ("embedding", (5, 1.5, 1.5)), ("matmul", (2, 1.2, 1.2)), ("aten.mm", (2, 1.2, 1.2))]


@pytest.mark.parametrize(("operator", "limits"), LEVELS)
def test_dual_benchmark_at_and_beside_the_ratios_of_each_level(operator, limits):
    for metric, limit in zip(("mare", "mere", "rmse"), limits, strict=True):
        at = hold("cann_dual", output(side(small={metric: limit})), operator)
        beside = hold("cann_dual", output(side(small={metric: math.nextafter(limit, 99)})), operator)
        assert (at.outcome, beside.outcome, beside.metric) == ("met", "open", f"{metric}_ratio")
        assert "takes 200 calls" in beside.text


def test_dual_benchmark_counts_errors_of_small_values():
    assert hold("cann_dual", output(side(small={"wrong": 2}))).outcome == "met"  # the reference has none, and counts as one
    assert hold("cann_dual", output(side(small={"wrong": 3}))).outcome == "open"
    assert hold("cann_dual", output(side(small={"wrong": 6}), side(small={"wrong": 3}))).outcome == "met"


def test_dual_benchmark_is_invalid_where_the_reference_is_off():
    off = replace(side(), eta=math.nextafter(0.1, 1))
    assert hold("cann_dual", output(side(), off)).outcome == "invalid"
    assert hold("cann_dual", output(side(), replace(off, eta=0.1))).outcome == "met"
    assert hold("cann_dual", output(side("float16"), side())).outcome == "invalid"


def many(ratio, count):
    return [output(side(rmse=ratio, small={"rmse": ratio}), side(rmse=1.0), call=str(number)) for number in range(count)]


@pytest.mark.parametrize(("ratio", "count", "outcome"), [(3.0, 200, "failed"), (3.0, 199, "open"), (1.0, 200, "met")])
def test_dual_benchmark_judges_again_over_200_calls(ratio, count, outcome):
    outputs = many(ratio, count)
    outputs[0] = output(side(rmse=3.0, small={"rmse": 3.0}), side(rmse=1.0), call="0")
    held = hold_all(standards.load("cann_dual"), outputs, {one.call: "mul" for one in outputs}).outputs
    assert held[0].outcome == outcome


def test_the_bootstrap_bounds_the_median():
    assert bootstrap_lower([1.0] * 150 + [9.0] * 150, 500, 0.95) == 1.0
    assert bootstrap_lower([2.0] * 290 + [0.5] * 10, 500, 0.95) == 2.0
    assert bootstrap_lower([math.inf] * 300, 10, 0.95) == math.inf


def test_movement_and_integers_have_to_be_equal():
    equal, other = replace(side(), equal=True), replace(side(), equal=False)
    for name in ("cann_single", "cann_mixed", "cann_dual"):
        assert hold(name, output(equal, equal, kind="movement")).outcome == "met"
        assert hold(name, output(other, equal, kind="movement")).outcome == "failed"
        assert hold(name, output(equal, other, kind="movement")).outcome == "invalid"
        whole = replace(equal, eta=None, dtype="int64")
        assert hold(name, output(replace(whole, equal=False), whole)).outcome == "failed"


def test_nan_where_float64_has_none_fails():
    assert hold("cann_mixed", output(replace(side(), misplaced=1))).outcome == "failed"
    assert hold("cann_mixed", output(replace(side(), misplaced=1), replace(side(), misplaced=1))).outcome == "met"


def test_what_has_no_numbers_is_neither_met_nor_failed():
    assert hold("cann_mixed", output(replace(side("float64"), errors={}))).outcome == "unlimited"
    assert hold("cann_mixed", output(side(), kind="random")).outcome == "unlimited"
    missing = hold("cann_mixed", output(side(), evaluated=False, why="input 1 is not kept"))
    assert (missing.outcome, missing.text) == ("unlimited", "input 1 is not kept")


RECORDS = {("fc1/linear.0", "0"): "one", ("fc2/linear.0", "0"): "two"}


def verdict_of(name, outputs, *, verdict="inconclusive", reasons=(), statuses=("pass", "pass")):
    before = Verdict(
        verdict,
        (*reasons, describe_not_applied(name, NOT_EVALUATED)),
        standards={"default": True, name: False},
        not_applied={name: NOT_EVALUATED},
    )
    judged = [Judged(record, status) for record, status in zip(("one", "two"), statuses, strict=True)]
    held = [hold_all(standards.load(name), outputs, {})]
    return apply(held, judged, before, records=RECORDS, names={"fc1/linear.0": "fc1 / linear"})


def test_a_standard_that_every_operator_keeps_is_met_and_leaves_no_reason():
    judged, verdict = verdict_of("cann_mixed", [output(side())])
    assert (verdict.verdict, verdict.reasons, verdict.standards) == ("aligned", (), {"default": True, "cann_mixed": True})
    assert [one.status for one in judged] == ["pass", "pass"]


def test_a_standard_that_one_operator_exceeds_makes_the_run_misaligned():
    judged, verdict = verdict_of("cann_mixed", [output(side(largest=1.0)), output(side(), call="fc2/linear.0")])
    assert verdict.verdict == "misaligned"
    assert "1 output of an operator fails, first fc1 / linear: largest_difference 1 against float64" in verdict.reasons[0]
    assert not verdict.standards["cann_mixed"]
    assert (judged[0].status, judged[0].standard, judged[1].status) == ("fail", "cann_mixed", "pass")


def test_an_accepted_difference_is_not_failed_by_a_standard():
    judged, verdict = verdict_of("cann_mixed", [output(side(largest=1.0))], statuses=("accepted", "pass"))
    assert (verdict.verdict, judged[0].status) == ("aligned", "accepted")


def test_a_standard_never_loosens_what_failed_before():
    judged, verdict = verdict_of(
        "cann_mixed", [output(side())], verdict="misaligned", reasons=("x",), statuses=("fail", "pass")
    )
    assert (verdict.verdict, verdict.reasons, judged[0].status) == ("misaligned", ("x",), "fail")


@pytest.mark.parametrize(
    ("name", "one", "why"),
    [
        ("cann_mixed", None, "neither side kept all tensors"),
        ("cann_mixed", output(side(), evaluated=False, why="input 1 is not kept"), "input 1 is not kept"),
        ("cann_dual", output(side(small={"rmse": 9.0})), "takes 200 calls"),
        ("cann_dual", output(side("float16"), side()), "only in float16"),
    ],
)
def test_a_standard_that_nothing_could_be_held_to_is_never_met(name, one, why):
    _, verdict = verdict_of(name, [one] if one else [])
    assert verdict.verdict == "inconclusive"
    assert not verdict.standards[name]
    assert why in verdict.not_applied[name]
    assert verdict.reasons == (describe_not_applied(name, verdict.not_applied[name]),)


def test_a_standard_that_holds_for_some_says_what_it_did_not_look_at():
    _, verdict = verdict_of("cann_mixed", [output(side()), output(side(), kind="random")])
    assert (verdict.verdict, len(verdict.warnings)) == ("aligned", 1)
    assert "was not held to it" in verdict.warnings[0]
    assert operator_standards.NOTHING_EVALUATED not in verdict.reasons
