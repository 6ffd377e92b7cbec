"""Every number against another computation: SciPy, pandas, plain loops."""

import math
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow.curves.deviations import Spike, estimate_mean, find_scale_drops, measure, sign_probability
from precflow.curves.joining import join
from precflow.curves.series import make_series

numbers = st.lists(st.floats(-1e6, 1e6).filter(lambda value: value == 0 or abs(value) > 1e-6), min_size=1, max_size=200)


def compare(reference, target):
    steps = range(len(reference))
    return measure(join(make_series(steps, reference), make_series(steps, target)))


def training_run(seed=0, count=1000, noise=0.02):
    """Return two runs that learn the same and differ by noise."""
    random = np.random.default_rng(seed)
    smooth = 2 + 8 * np.exp(-np.arange(count) / 100)
    batches = 0.1 * random.normal(size=count)
    return smooth + batches, smooth + batches + noise * random.normal(size=count)


@given(numbers)
def test_a_curve_is_not_apart_from_itself(values):
    found = compare(values, values)
    assert (found.max_abs_error, found.mean_abs_error, found.max_rel_error, found.mean_rel_error) == (0, 0, 0, 0)
    assert (found.equal, found.parted_step, found.smooth_rel_error, found.sign_test) == (len(values), -1, 0, 1)
    assert not found.spikes


@given(numbers, st.floats(-100, 100))
def test_a_shift_is_the_deviation(values, shift):
    target = np.array(values) + shift
    found = compare(values, target)
    exact = np.abs(target - np.array(values))  # what is left of the shift after rounding
    assert found.max_abs_error == exact.max()
    assert found.max_abs_error == pytest.approx(abs(shift), abs=1e-9)
    assert found.mean_abs_error == pytest.approx(abs(shift), abs=1e-9)


@given(numbers, st.integers(0, 10))
def test_numbers_by_pandas(values, seed):
    target = np.array(values) * (1 + 0.1 * np.random.default_rng(seed).normal(size=len(values)))
    table = pd.DataFrame({"reference": values, "target": target})
    absolute = (table.target - table.reference).abs()
    relative = (absolute / table.reference.abs()).fillna(0.0)
    found = compare(values, target)
    assert found.max_abs_error == absolute.max()
    assert found.max_abs_step == absolute.idxmax()
    assert found.mean_abs_error == pytest.approx(absolute.mean())
    assert found.max_rel_error == relative.max()
    assert found.mean_rel_error == pytest.approx(relative.mean())
    assert (found.first_abs_error, found.first_rel_error) == (absolute[0], relative[0])
    assert found.above == (table.target > table.reference).mean()
    smooth = table.rolling(found.window).mean().dropna()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        apart = ((smooth.target - smooth.reference).abs() / smooth.reference.abs()).fillna(0.0)
    if smooth.reference.abs().min() > 1e-3 * np.abs(values).max():  # pandas adds up and takes away again
        assert found.smooth_rel_error == pytest.approx(apart.max(), rel=1e-6, abs=1e-9)


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_the_sign_test_by_scipy(above, below):
    from scipy import stats  # a second to import, which only the worker of this test takes

    expected = stats.binomtest(above, above + below).pvalue if above + below else 1.0
    assert sign_probability(above, below) == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_the_error_of_a_mean_covers_the_truth_although_steps_depend_on_each_other():
    random = np.random.default_rng(0)
    inside = {"batch means": 0, "plain": 0}
    for _ in range(200):
        shocks = random.normal(size=2200)
        values = np.convolve(shocks, np.ones(20) / 20, mode="valid")[:2000]  # neighbours share 19 of 20 shocks; mean 0
        mean, error = estimate_mean(values)
        inside["batch means"] += abs(mean) < 2 * error
        inside["plain"] += abs(mean) < 2 * values.std(ddof=1) / math.sqrt(len(values))
    assert inside["batch means"] > 180
    assert inside["plain"] < 120


def test_a_drift_to_one_side_is_told_from_noise():
    reference, target = training_run()
    assert not compare(reference, target).one_sided
    drifted = compare(reference, target + 0.01)  # half of the noise of a single step
    assert drifted.one_sided
    assert drifted.mean_difference == pytest.approx(0.01, abs=0.002)
    assert not compare(reference[:39], target[:39] + 1).one_sided  # too short for an uncertainty


def test_the_step_where_they_part_for_good():
    reference, target = training_run(noise=0)
    assert compare(reference, target).parted_step == -1
    target[300:320] += 1  # parts and comes back
    found = compare(reference, target)
    assert (found.parted_step, found.apart_from, found.apart_to) == (-1, 300, 319)
    target[700:] += 1
    found = compare(reference, target)
    assert (found.parted_step, found.apart_from, found.apart_to, found.apart_at_once) == (700, 700, 999, True)
    found = compare([1.0] * 100, [2.0] * 100)  # from the first step, not from the end of the first window
    assert (found.parted_step, found.apart_from, found.apart_at_once) == (0, 0, False)


@pytest.mark.parametrize("noise", [0.0, 0.005, 0.02])
@pytest.mark.parametrize("begin", [1, 3, 60, 333, 990])
def test_curves_are_apart_from_where_they_jump(noise, begin):
    steps = np.arange(1000)
    generator = np.random.default_rng(begin)
    reference = 2 + 8 * 0.995**steps
    target = reference * (1 + noise * generator.normal(size=1000)) * np.where(steps >= begin, 1.2, 1.0)
    found = compare(reference, target)
    assert found.apart_from == begin if noise < 0.02 or begin > 3 else found.apart_from <= begin
    assert found.apart_to == 999


def test_noise_of_single_steps_is_no_stretch_in_which_they_are_apart():
    for seed in range(50):
        generator = np.random.default_rng(seed)
        reference = 2 + 8 * 0.97 ** np.arange(120)
        found = compare(reference, reference * (1 + 0.02 * generator.normal(size=120)))
        assert (found.apart_from, found.parted_step) == (-1, -1)


def test_equal_steps_before_a_few_that_are_apart_leave_nothing_to_chance():
    reference = [2.363, 2.439, 2.360, 2.452]
    found = compare(reference, [2.363, 2.439, 2.311, 2.352])
    assert (found.apart_from, found.apart_to, found.parted_step, found.equal_until) == (2, 3, 2, 1)
    assert compare(reference, [2.363, 2.431, 2.311, 2.352]).equal_until == -1, "not equal to the last step before"
    assert compare(reference, [2.363, 2.339, 2.411, 2.402]).apart_from == -1, "one equal step may be chance"
    assert compare(reference, reference).equal_until == -1, "never apart"


def test_spikes_of_one_side():
    reference, target = training_run()
    reference[500] += 5
    target[500] += 5  # on both sides: a batch that is hard to learn
    target[700] += 3
    reference[800] -= 1
    spikes = compare(reference, target).spikes
    assert [(spike.step, spike.side) for spike in spikes] == [(700, "target"), (800, "reference")]
    assert spikes[0] == Spike(700, "target", target[700], pytest.approx(np.median(target[675:726])))


def test_steps_that_are_not_finite_are_counted_and_enter_no_difference():
    found = compare([1.0, math.nan, math.inf, 1.0], [1.5, math.nan, 1.0, math.inf])
    assert (found.compared, found.max_abs_error) == (1, 0.5)
    assert (found.nonfinite_reference, found.nonfinite_target, found.nonfinite_one_side) == (2, 2, 2)
    assert (found.first_nonfinite, found.first_nonfinite_side) == (1, "both")
    assert compare([math.nan], [1.0]).compared == 0


def test_zero_against_zero_is_equal_and_against_anything_else_infinitely_apart():
    assert compare([0.0], [0.0]).max_rel_error == 0
    assert compare([0.0], [1e-30]).max_rel_error == math.inf


def test_a_lowered_loss_scale_is_a_skipped_step():
    assert find_scale_drops(np.arange(10, 15), np.array([4.0, 4, 2, 1, 2])) == (12, 13)
