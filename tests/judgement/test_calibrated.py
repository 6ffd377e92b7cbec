"""Standard ``calibrated``: limits made of noise floors, fixed ones where there is no floor, and what is said about both."""

import math

import pytest

from precflow.config.schema import Accepted, Tolerance, ToleranceRule
from precflow.judgement import standards
from precflow.judgement.floors import Floor
from precflow.judgement.limits import Condition

CALIBRATED = Tolerance(standards=("calibrated",))
U = 2.0**-24
FAR = "2026-12-31"


@pytest.fixture
def judged(measure, run):
    """Return a function that judges one record with a floor; metrics by keyword, floors as a mapping."""

    def judge(floors, *, tolerance=CALIBRATED, accepted=(), dtype="float32", **metrics):
        metrics = {"relative_l2": 0.0, **metrics}
        record = measure(metrics=metrics, reference_dtype=dtype, target_dtype=dtype)
        found = {record.record: Floor(record.record, floors)} if floors else {}
        rows, verdict = run([record], tolerance=tolerance, accepted=accepted, dtypes=(dtype, dtype), floors=found)
        return rows[0], verdict

    return judge


@pytest.mark.parametrize(("dtype", "times"), [("float64", 3), ("float32", 3), ("float16", 2), ("bfloat16", 2)])
def test_a_record_may_use_a_multiple_of_its_floor(judged, dtype, times):
    floor = {"relative_l2": 0.01}
    assert judged(floor, dtype=dtype, relative_l2=times * 0.01 * 0.99)[0].status == "pass"
    row, verdict = judged(floor, dtype=dtype, relative_l2=times * 0.01 * 1.01)
    assert (row.status, row.metric, row.standard) == ("fail", "relative_l2", "calibrated")
    assert (row.limit, row.floor) == (pytest.approx(times * 0.01), 0.01)
    assert f"{times} times its noise floor" in row.reason
    assert verdict.standards == {"calibrated": False}


def test_the_worst_row_and_the_worst_element_have_floors_of_their_own(judged):
    floors = {"relative_l2": 1e-6, "worst_row_error": 2e-6, "max_rms_error": 5e-6}
    metrics = {"relative_l2": 1e-6, "worst_row_error": 3e-6, "max_rms_error": 9e-6}
    assert judged(floors, **metrics)[0].status == "pass"
    for name in ("worst_row_error", "max_rms_error"):
        row, _ = judged(floors, **{**metrics, name: 1e-3})
        assert (row.status, row.metric) == ("fail", name)


def test_no_floor_is_below_the_rounding_of_the_type(judged):
    assert judged({"relative_l2": 0.0}, relative_l2=2.5 * U)[0].status == "pass"
    assert judged({"relative_l2": 0.0}, relative_l2=2.6 * U)[0].status == "fail"
    largest = {"relative_l2": 0.0, "max_rms_error": 0.0}
    assert judged(largest, max_rms_error=11.9 * U)[0].status == "pass"
    assert judged(largest, max_rms_error=12.1 * U)[0].status == "fail"


@pytest.mark.parametrize(("dtype", "floor"), [("float32", 0.034), ("bfloat16", 0.26)])
def test_where_rounding_moves_the_whole_record_nothing_could_fail(judged, dtype, floor):
    row, _ = judged({"relative_l2": floor, "max_rms_error": 0.1}, dtype=dtype, relative_l2=floor, max_rms_error=0.1)
    assert row.status == "blind"
    assert f"rounding alone changes it by {floor}" in row.reason
    assert judged({"relative_l2": floor / 2}, dtype=dtype, relative_l2=floor / 2)[0].status == "pass"


def test_a_record_over_a_fixed_limit_but_under_its_floor_is_no_alarm(judged):
    assert judged({}, dtype="bfloat16", relative_l2=0.05)[0].status == "fail"
    assert judged({"relative_l2": 0.04}, dtype="bfloat16", relative_l2=0.05)[0].status == "pass"


def test_an_infinite_floor_is_blind_whatever_the_error_is(judged):
    assert judged({"relative_l2": math.inf}, relative_l2=math.inf)[0].status == "blind"


def test_without_a_floor_the_fixed_limits_apply_and_the_verdict_says_so(measure, run):
    with_floor, without = measure("a"), measure("b", relative_l2=1e-6)
    floors = {with_floor.record: Floor(with_floor.record, {"relative_l2": 1e-7})}
    rows, verdict = run([with_floor, without], tolerance=CALIBRATED, floors=floors)
    assert [(row.status, row.limit, row.floor) for row in rows] == [
        ("pass", pytest.approx(3e-7), 1e-7),
        ("pass", 2.0**-16, None),
    ]
    assert verdict.standards == {"calibrated": True}
    assert verdict.warnings == ("1 record without a noise floor, first b / linear: the fixed limits of calibrated apply",)
    rows, verdict = run([with_floor], tolerance=CALIBRATED, without_floors="the reference is a given dump")
    assert verdict.warnings == ("no noise floor: the reference is a given dump; the fixed limits of calibrated apply",)


def test_a_standard_of_fixed_limits_takes_no_notice_of_floors(judged):
    row, verdict = judged({"relative_l2": 1e-9}, tolerance=Tolerance(standards=("default",)), relative_l2=1e-6)
    assert (row.status, row.limit, row.floor, verdict.warnings) == ("pass", 2.0**-16, None, ())


def test_fixed_limits_beside_measured_ones_stay(judged):
    row, _ = judged({"relative_l2": 1e-3}, tolerance=Tolerance(standards=("calibrated", "default")), relative_l2=1e-3)
    assert (row.status, row.standard) == ("fail", "default")


def test_a_rule_on_relative_l2_replaces_all_measured_limits(judged):
    floors = {"relative_l2": 1e-6, "max_rms_error": 1e-6}
    rule = ToleranceRule(match="*", relative_l2=0.05, because="a router")
    row, _ = judged(floors, tolerance=Tolerance(standards=("calibrated",), rules=(rule,)), relative_l2=0.01, max_rms_error=0.1)
    assert (row.status, row.limit, row.floor) == ("pass", 0.05, None)


def test_an_accepted_relative_l2_covers_the_worst_row_too(judged):
    floors = {"relative_l2": 1e-6, "worst_row_error": 1e-6}
    accepted = [Accepted(match="*", relative_l2=0.05, because="known", until=FAR)]
    row, _ = judged(floors, accepted=accepted, relative_l2=0.01, worst_row_error=0.2)
    assert row.status == "accepted"


def test_an_estimate_near_its_measured_limit_decides_nothing_and_bounds_on_rows_are_left_out(measure, run):
    record = measure(
        relative_l2=2.8e-6, ranges={"relative_l2": (2.1e-6, 3.7e-6), "worst_row_error": (0.0, 1.0)}, evidence="sketch"
    )
    floors = {record.record: Floor(record.record, {"relative_l2": 1e-6, "worst_row_error": 1e-6})}
    rows, _ = run([record], tolerance=CALIBRATED, floors=floors)
    assert rows[0].status == "undecided"
    assert "3e-06" in rows[0].reason
    assert "worst_row_error" not in rows[0].reason


def test_a_gradient_of_nothing_but_rounding_is_blind_by_its_floor(measure, run):
    key = measure("k", "", record="k/gradient.output.bias", phase="gradient", relative_l2=1.4)
    floors = {key.record: Floor(key.record, {"relative_l2": 1.3})}
    rows, _ = run([key], tolerance=CALIBRATED, floors=floors)
    assert rows[0].status == "blind"
    wrong, _ = run(
        [measure("k", "", record=key.record, phase="gradient", relative_l2=40.0)], tolerance=CALIBRATED, floors=floors
    )
    assert wrong[0].status == "fail"


def test_the_shipped_numbers():
    measured = standards.load("calibrated").measured
    least = {condition.metric: condition.least for condition in measured["float32"]}
    assert least == {"relative_l2": 0.85 * U, "worst_row_error": 2 * U, "max_rms_error": 4 * U}
    assert {dtype: conditions[0].limit for dtype, conditions in measured.items()} == {
        "float64": 3,
        "float32": 3,
        "float16": 2,
        "bfloat16": 2,
        "float8_e4m3fn": 2,
        "float8_e5m2": 2,
    }
    fixed, default = standards.load("calibrated").limits, standards.load("default").limits
    assert {dtype: [one.limit for one in fixed[dtype]] for dtype in fixed} == {
        dtype: [one.limit for one in default[dtype]] for dtype in default
    }


def test_a_measured_condition_is_shown_as_a_multiple():
    assert Condition("relative_l2", 3.0, "calibrated", least=1e-7).text == "relative_l2 <= 3 times its noise floor"
