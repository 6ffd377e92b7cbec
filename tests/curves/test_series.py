"""Restarts, duplicate steps, and the rule that the later number counts, against a plain loop."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow.curves.series import Restart, make_series


def keep_later(steps, values):
    """Return what counts by a plain loop: a step drops itself and everything behind it from what was said before."""
    kept = []
    for step, value in zip(steps, values, strict=True):
        kept = [*((other, number) for other, number in kept if other < step), (step, value)]
    return kept


@given(st.lists(st.integers(-5, 12), max_size=40))
def test_the_later_number_counts(steps):
    values = [float(number) for number in range(len(steps))]
    series = make_series(steps, values)
    assert list(zip(series.steps.tolist(), series.values.tolist(), strict=True)) == keep_later(steps, values)
    assert (series.steps[1:] > series.steps[:-1]).all()


def test_a_resumed_run_drops_what_was_given_up():
    series = make_series([1, 2, 3, 4, 2, 3], [5.0, 4.0, 3.0, 2.0, 4.5, 3.5])
    assert series.steps.tolist() == [1, 2, 3]  # step 4 belongs to the run that was given up
    assert series.values.tolist() == [5.0, 4.5, 3.5]
    assert (series.restarts, series.duplicates) == ((Restart(after=4, at=2),), 0)


def test_a_step_that_is_named_twice():
    series = make_series([1, 2, 2, 3], [5.0, 4.0, 4.1, 3.0])
    assert (series.values.tolist(), series.duplicates, series.restarts) == ([5.0, 4.1, 3.0], 1, ())


def test_nan_stays_nan():
    assert math.isnan(make_series([0], [math.nan]).values[0])


@pytest.mark.parametrize("step", [0.5, math.nan, math.inf, 1e300])
def test_a_step_is_a_whole_number(step):
    with pytest.raises(ValueError, match="whole numbers as steps, got"):
        make_series([0, step], [1.0, 1.0])
