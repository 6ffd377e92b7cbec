import numpy as np
import pytest

from precflow.comparison.detail.description import describe
from precflow.dumps import lookup
from precflow.dumps.formats import read_dump
from precflow.dumps.records import Statistics
from precflow.report.screens.paper import Paper
from precflow.report.screens.record import RecordView, describe_elements, draw_histogram, show_record, write_statistics


def test_a_record_that_came_from_outside(build):
    dump = read_dump(build().call("a", "linear", [np.ones(3)], [np.ones(3)], compiled=True).write())
    given, made = lookup.list_records(dump)
    shown = show_record(RecordView(given, given.text, None, (), "kept", problem="torn")).render()
    assert "source      outside: no recorded call made it" in shown
    assert "compiled" in shown
    assert "problem     torn" in shown
    users = [given] * 9
    shown = show_record(RecordView(made, made.text, None, users, "kept")).render()
    assert "and 4 more" in shown
    assert "source" not in shown


def test_classes_that_do_not_occur_are_left_out():
    usual, special = describe([np.ones(3, np.float32), np.array([np.nan, np.inf, 0, -65504, 1], np.float32)])
    assert describe_elements(usual.extent) == "ordinary 3"
    assert describe_elements(special.extent) == "ordinary 2 · zero 1 · mask fill 1 · NaN 1 · Inf 1"


def test_a_histogram_stands_between_its_ends():
    (of,) = describe([np.array([0.0, 0.0, 1.0])])
    assert draw_histogram(of.values).startswith("0 |█")
    assert draw_histogram(describe([np.zeros(0)])[0].values) == ""


def test_what_was_not_counted_is_not_shown_as_none_of_them():
    paper = Paper()
    write_statistics(paper, Statistics(-1.0, 1.0, 0.0, 2.0, 0, 0, 0, 0, None, 0))
    shown = paper.render()
    assert "zero" not in shown
    assert "elements    mask fill 0 · NaN 0 · Inf 0 · saturated 0\n" in shown


@pytest.mark.parametrize("minimum", [None, -1.0])
def test_statistics_stand_for_a_tensor(minimum):
    paper = Paper()
    maximum = None if minimum is None else 1.0
    write_statistics(paper, Statistics(minimum, maximum, maximum, maximum, 1, 2, 3, 4, 5, 6))
    shown = paper.render()
    assert "zero 5 · mask fill 4 · NaN 1 · Inf 5 · saturated 6" in shown
    assert ("min / max   -1 / 1" in shown) == (minimum is not None)
