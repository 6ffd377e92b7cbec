"""Small pictures of one number over several runs."""

import math

from precflow.report.small_multiples import HEIGHT, choose_axes, draw

RUNS, KINDS = (3, 4, 7, 8), ("bad", "good", "doubt", "good")


def test_larger_is_higher_on_axes_that_all_share():
    series = ([1e-2, 1e-5, 1e-4, 1e-5], [1e-1, None, 1e-6, 1e-6])
    axes = choose_axes(series, RUNS, KINDS, limit=1e-3)
    one, other = (draw("x", values, axes, 1e-3) for values in series)
    assert one.marks[0].y < one.limit < one.marks[2].y < one.marks[1].y
    assert one.limit == other.limit
    assert other.marks[0].y < one.marks[0].y
    assert [mark.kind for mark in one.marks] == list(KINDS)
    assert one.marks[1].text == "run 4: 1e-5"
    assert other.lines == (
        " ".join(f"{mark.x},{mark.y}" for mark in other.marks[1:]),
    )  # a run says nothing: the line is broken


def test_zero_has_a_lane_and_no_number_a_cross_at_the_top():
    values = [0.0, 5.0, math.nan, 5.0]
    picture = draw("records that fail", values, choose_axes([values], RUNS, KINDS))
    zero, five, none, _ = picture.marks
    assert none.broken
    assert none.y < five.y < zero.y < HEIGHT
    assert picture.values == "0 → 5 → no number → 5"


def test_runs_that_say_nothing_make_an_empty_picture():
    picture = draw("x", [None] * 4, choose_axes([[None] * 4], RUNS, KINDS))
    assert (picture.lines, picture.marks, picture.values) == ((), (), "")
