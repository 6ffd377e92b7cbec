"""Bounds of metrics from sums: the metrics of the tensors lie within them, whatever the tensors."""

import math

import numpy as np
import pytest
from amounts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from msgspec import structs

from precflow.comparison.estimated import bounds
from precflow.comparison.estimated.kept_evidence import KeptTensor, sum_tensor
from precflow.comparison.estimated.sketch import DECISIVE
from precflow.comparison.formulas import measure_all
from precflow.comparison.fused.summarize import summarize
from precflow.dumps.records import Statistics

RNG = np.random.default_rng(17)


def known(array):
    return sum_tensor(array, KeptTensor(array.dtype.name, array.shape))


def bounded(left, right, *, sketched=False):
    """Return true metrics, ranges and estimates of two tensors, with or without their sketches."""
    first, second = (known(array) for array in (left, right))
    if not sketched:
        first, second = (KeptTensor(one.dtype, one.shape, statistics=one.statistics, rows=one.rows) for one in (first, second))
    y, x = (bounds.sum_side(one, left.size) for one in (first, second))
    assert isinstance(y, bounds.SideSums), y
    assert isinstance(x, bounds.SideSums), x
    far = bounds.bound_distance(y, x, first, second)
    return measure_all(summarize(left, right)), bounds.bound_metrics(y, x, far, first, second), bounds.guess_metrics(y, x, far)


def assert_within(true, ranges):
    for name, (low, high) in ranges.items():
        assert low <= high, name
        if name in true:
            room = 1e-6 * abs(true[name]) + 1e-12 if math.isfinite(true[name]) else 0.0
            assert low - room <= true[name] <= high + room, (name, low, true[name], high)


MODERATE = st.floats(-1e3, 1e3, width=32).filter(lambda value: value == 0 or abs(value) > 1e-3)


@settings(max_examples=examples(500))
@given(st.data())
def test_statistics_bound_the_metrics_of_any_tensors(data):
    shape = data.draw(st.sampled_from([(1,), (5,), (3, 4), (2, 3, 2)]))
    left, right = (data.draw(arrays.arrays(np.float32, shape, elements=MODERATE)) for _ in range(2))
    true, ranges, estimates = bounded(left, right)
    assert not estimates
    assert_within(true, ranges)


@pytest.mark.parametrize("error", [1e-6, 1e-4, 1e-2, 1.0, 30.0])
@pytest.mark.parametrize("shape", [(64, 96), (3, 77, 128), (2000, 9), (5000,)])
def test_sketches_bound_the_metrics_of_a_noisy_pair(error, shape):
    left = RNG.standard_normal(shape).astype(np.float32)
    right = (left + error * RNG.standard_normal(shape)).astype(np.float32)
    true, ranges, estimates = bounded(left, right, sketched=True)
    assert_within(true, ranges)
    assert estimates["relative_l2"] == pytest.approx(true["relative_l2"], rel=0.15)
    assert estimates["rmse"] == pytest.approx(true["rmse"], rel=0.15)
    assert ("cosine_similarity" in estimates) == (error < 0.5)
    cosine = estimates.get("cosine_similarity", true["cosine_similarity"])
    assert 1 - cosine == pytest.approx(1 - true["cosine_similarity"], rel=0.35, abs=1e-12)


def test_a_sketch_says_within_which_factor_of_a_limit_it_decides():
    left = RNG.standard_normal((50, 60)).astype(np.float32)
    _, ranges, estimates = bounded(
        left, left + np.float32(1e-3) * RNG.standard_normal((50, 60)).astype(np.float32), sketched=True
    )
    low, high = ranges["relative_l2"]
    assert low / estimates["relative_l2"] == pytest.approx(DECISIVE, rel=1e-3)
    assert high / estimates["relative_l2"] == pytest.approx(1 / DECISIVE, rel=1e-3)


def test_a_row_that_no_sum_shows_is_shown_by_its_norm():
    left = RNG.standard_normal((900, 40)).astype(np.float32)
    left[7] *= 1e-3
    right = left.copy()
    right[7] *= 100
    true, ranges, _ = bounded(left, right, sketched=True)
    assert ranges["worst_row_error"][0] > 0.9 * true["worst_row_error"] > 0.05
    assert ranges["relative_l2"][1] < 0.01


def test_two_elements_that_cancel_in_their_bucket_are_caught_by_the_norms_of_rows():
    left = np.ones((40, 100), np.float32)
    cancelled = [pair for pair in range(40 * 100 - 509) if np.linalg.norm(_sketch_of(left, pair)) == 0]
    right = left.copy().reshape(-1)
    right[[cancelled[0], cancelled[0] + 509]] += 1
    true, ranges, estimates = bounded(left, right.reshape(left.shape), sketched=True)
    assert not estimates
    assert_within(true, ranges)
    assert ranges["relative_l2"][0] > 0.5 * true["relative_l2"]


def _sketch_of(left, place):
    changed = np.zeros(left.size, np.float32)
    changed[[place, place + 509]] = 1
    return known(changed).sketch


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e-12, 1e12, 1e18])
def test_very_small_and_very_large_values(scale):
    left = np.abs(RNG.standard_normal((30, 40)) * scale).astype(np.float32)
    right = (left * np.float32(1.01)).astype(np.float32)
    true, ranges, estimates = bounded(left, right, sketched=True)
    assert_within({name: value for name, value in true.items() if name not in _ABSOLUTE}, ranges)
    assert estimates["relative_l2"] == pytest.approx(true["relative_l2"], rel=0.15)


_ABSOLUTE = {"max_abs_error", "mean_abs_error", "rmse"}


@pytest.mark.parametrize("sketched", [False, True])
@pytest.mark.parametrize("scale", [1e-20, 1e-12, 1e-8, 1e12])
def test_nothing_is_claimed_of_the_angle_to_a_vector_that_is_lost_in_the_difference(scale, sketched):
    left = RNG.standard_normal((30, 40)).astype(np.float32)
    right = (RNG.standard_normal((30, 40)) * scale).astype(np.float32)
    true, ranges, estimates = bounded(left, right, sketched=sketched)
    low, high = ranges["cosine_similarity"]
    assert low <= true["cosine_similarity"] <= high
    assert high - low > 0.5
    assert "cosine_similarity" not in estimates


def test_a_cosine_is_bounded_with_the_rounding_of_an_agents_norms():
    left = RNG.standard_normal((50, 60)).astype(np.float32)
    right = left * np.float32(1 + 1e-4)
    true = measure_all(summarize(left, right))["cosine_similarity"]
    for error in (-0.9, 0.9):
        one, other = known(left), known(right)
        off = structs.replace(one.statistics, square=one.statistics.square * (1 + error * bounds.ROUNDING) ** 2)
        one = KeptTensor(one.dtype, one.shape, statistics=off, sketch=one.sketch, rows=one.rows)
        y, x = bounds.sum_side(one, left.size), bounds.sum_side(other, left.size)
        low, high = bounds.bound_metrics(y, x, bounds.bound_distance(y, x, one, other), one, other)["cosine_similarity"]
        assert low <= true <= high
        assert 1 - low < 1e-7


def test_zeros_on_either_side():
    zeros, ones = np.zeros((3, 4), np.float32), np.ones((3, 4), np.float32)
    assert bounded(zeros, zeros, sketched=True)[1]["relative_l2"] == (0.0, 0.0)
    assert bounded(zeros, ones, sketched=True)[1]["relative_l2"] == (math.inf, math.inf)
    assert bounded(ones, zeros, sketched=True)[1]["relative_l2"] == pytest.approx((1.0, 1.0), rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"square": None}, "not kept"),
        ({"minimum": None}, "not kept"),
        ({"square": math.inf}, "leave the range"),
        ({"square": 0.0}, "lost"),
        ({"square": 1e9}, "cannot be"),
    ],
)
def test_sums_that_cannot_be_right_are_of_no_use(changes, words):
    facts = {"minimum": -1.0, "maximum": 2.0, "sum": 1.0, "square": 5.0} | changes
    statistics = Statistics(**facts, nan=0, positive_infinity=0, negative_infinity=0, sentinel=0, zero=0, saturated=0)
    assert words in bounds.sum_side(KeptTensor("float32", (2,), statistics=statistics), 2)


@pytest.mark.parametrize("error", [-2e-6, 2e-6])
def test_a_sum_of_squares_may_be_off_by_twice_what_a_norm_may(error):
    """Constant values: the sum of squares lies at its bound, and is what float32 makes of it."""
    statistics = Statistics(1.0, 1.0, 4.0, 4.0 + 4.0 * error * 0.9, 0, 0, 0, 0, zero=0, saturated=0)
    assert bounds.sum_side(KeptTensor("float32", (4,), statistics=statistics), 4).norm == pytest.approx(
        2.0, rel=bounds.ROUNDING
    )


def test_a_quotient_of_magnitudes():
    assert (bounds.divide(0.0, 0.0), bounds.divide(1.0, 0.0), bounds.divide(1.0, 2.0)) == (0.0, math.inf, 0.5)
