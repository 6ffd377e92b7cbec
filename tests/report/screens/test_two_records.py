import dataclasses

import numpy as np
import pytest

from precflow.comparison.detail.description import describe
from precflow.comparison.detail.detail import examine
from precflow.comparison.detail.record import InputComparison, RecordDetail
from precflow.report.screens.two_records import compare_facts, show_pair

X = np.random.default_rng(0).standard_normal((3, 7, 16)).astype(np.float32)


@pytest.fixture
def row(misaligned):
    return next(row for row in misaligned.rows if row.role == "introduces")


def screen(row, reference, target, blockers=(), **changes):
    of = RecordDetail(row.measure.record, row.measure.name, examine(reference, target), **changes)
    return show_pair(row, of, blockers).render()


def test_everything_is_there(row):
    shown = screen(
        row, X, X * 2, inputs=(InputComparison("0", "weight", "equal bits"),), feeds=("next / linear",), note="a part"
    )
    for part in (
        "✗ fail   relative_l2",
        "where       everywhere alike",
        "note        a part",
        "argument eps",
        "0 (weight): equal bits",
        "feeds       next / linear",
        "called at   modeling_clip.py",
        "metrics     ",
        "unequal     336 elements, 100 %, first at [0, 0, 0]",
        "ulp         median",
        "axis 2      |",
        "worst",
        "relative",
    ):
        assert part in shown


def test_doubts_come_before_numbers(row):
    shown = screen(row, X, X, blockers=["the weights differ"])
    assert shown.index("the weights differ") < shown.index("reference")


def test_an_estimate_is_told_with_its_range_and_an_undecided_record_uses_no_share_of_its_limit(row):
    known = dataclasses.replace(row.measure, evidence="sketch", ranges={row.judged.metric: (3e-3, 6e-3)})
    of = RecordDetail("a", "a", None, reason="no tensor")
    sketched = dataclasses.replace(row, measure=known)
    assert f"estimate    {row.judged.metric} between 3e-3 and 6e-3, by its sketch" in show_pair(sketched, of).render()
    undecided = dataclasses.replace(row.judged, status="undecided", reason="between 3e-3 and 6e-3")
    shown = show_pair(dataclasses.replace(sketched, judged=undecided), of).render()
    assert "its limit" not in shown
    assert "between 3e-3 and 6e-3" in shown


def test_equal_bits_have_no_error_to_show(row):
    equal = dataclasses.replace(row, measure=dataclasses.replace(row.measure, equal=True))
    assert "worst" not in screen(equal, X, X)


def test_mismatches_are_listed_first(row):
    target = X.copy()
    target[0, 0, 3] = np.nan
    shown = screen(row, X, target)
    assert "1 elements are NaN" in shown
    assert "mismatched" in shown
    assert "[0, 0, 3]" in shown


def test_many_classes_of_ulps_are_shortened(row):
    target = X * (1 + np.geomspace(1e-7, 0.5, X.size).reshape(X.shape)).astype(np.float32)
    line = next(line for line in screen(row, X, target).split("\n") if "median" in line)
    assert "..." in line


def test_one_side_alone(row):
    lines = compare_facts(row, RecordDetail("a", "a", None, describe([X])[0], None, "why"))
    told = {what: (reference, target, same) for what, reference, target, same in lines}
    assert told["norm"][1:] == ("-", "")
    assert "values" in told
    without = compare_facts(row, RecordDetail("a", "a", None, describe([X])[0], None, "why"), pictures=False)
    assert "values" not in {line[0] for line in without}
    assert "no detail   why" in show_pair(row, RecordDetail("a", "a", None, reason="why")).render()
