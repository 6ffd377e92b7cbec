"""Joining by step: which steps count, and what is said about the others."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from precflow.curves.joining import join
from precflow.curves.series import make_series

curves = st.dictionaries(st.integers(0, 60), st.floats(-10, 10), max_size=40)


def series(numbers):
    return make_series(sorted(numbers), [numbers[step] for step in sorted(numbers)])


@given(curves, curves)
def test_it_is_a_join_by_step(left, right):
    joined = join(series(left), series(right))
    shared = sorted(left.keys() & right.keys())
    assert joined.steps.tolist() == shared
    assert joined.reference.tolist() == [left[step] for step in shared]
    assert joined.target.tolist() == [right[step] for step in shared]


@given(curves, curves)
def test_neither_side_is_preferred(left, right):
    one, other = join(series(left), series(right)), join(series(right), series(left))
    assert one.steps.tolist() == other.steps.tolist()
    assert one.reference.tolist() == other.target.tolist()
    assert {side: gaps.tolist() for side, gaps in one.gaps.items()} == {
        {"reference": "target", "target": "reference"}[side]: gaps.tolist() for side, gaps in other.gaps.items()
    }


def test_another_interval_is_no_gap_and_is_said():
    joined = join(make_series(range(1, 101), np.ones(100)), make_series(range(10, 101, 10), np.ones(10)))
    assert (len(joined), joined.gaps, joined.stopped) == (10, {}, None)
    assert joined.notes == (
        "the reference logs every step and the target every 10 steps: compared at the 10 steps that both have",
    )


def test_a_first_step_outside_of_the_interval_is_no_gap():
    every_tenth = [1, *range(10, 101, 10)]
    joined = join(make_series(range(1, 101), np.ones(100)), make_series(every_tenth, np.ones(11)))
    assert joined.gaps == {}


def test_a_gap_is_said():
    target = [step for step in range(10) if step not in (4, 5)]
    joined = join(make_series(range(10), np.ones(10)), make_series(target, np.ones(8)))
    assert {side: gaps.tolist() for side, gaps in joined.gaps.items()} == {"target": [4, 5]}


def test_the_side_that_stops_first_is_named():
    long, short = make_series(range(10), np.ones(10)), make_series(range(6), np.ones(6))
    assert join(long, short).stopped == ("target", 5)
    assert join(short, long).stopped == ("reference", 5)
    # A log of every tenth step ends with step 90 although the run went on to 95 as the other one did.
    tenth = make_series(range(0, 91, 10), np.ones(10))
    assert join(make_series(range(96), np.ones(96)), tenth).stopped is None


def test_restarts_and_duplicates_are_said():
    joined = join(make_series([1, 2, 3, 2, 3], np.ones(5)), make_series([1, 2, 2, 3], np.ones(4)))
    assert joined.notes == (
        "the reference's log goes back once, first from step 3 to step 2: the run was resumed, and its later numbers count",
        "the target's log has 1 numbers more than steps: the last of a step counts",
    )
    assert joined.restarts == joined.notes[:1]


def test_no_step_in_common():
    assert len(join(make_series([1, 3], [1.0, 1.0]), make_series([2, 4], [1.0, 1.0]))) == 0
    assert len(join(make_series([], []), make_series([], []))) == 0
