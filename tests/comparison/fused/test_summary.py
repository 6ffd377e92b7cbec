"""Merging: blocks, parts and threads agree; no bit of information leaves with the block size."""

import itertools
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from precflow.comparison.formulas import measure_all
from precflow.comparison.fused.scaled_float import ScaledFloat
from precflow.comparison.fused.summarize import PairOfTensors, summarize
from precflow.comparison.fused.summary import Summary, merge
from precflow.dumps.dtypes import FLOATS, NUMPY_DTYPES

SPECIAL = [0.0, -0.0, 1e-42, np.nan, np.inf, -np.inf, -65504.0, -1e9, -3.4e38, 3e38]


@st.composite
def pairs(draw):
    """Draw two tensors of one shape with all sorts of values in them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.sampled_from([(), (0,), (1,), (37,), (5, 7), (64, 1), (3, 4, 11), (2, 0, 3)]))
    dtypes = [NUMPY_DTYPES[draw(st.sampled_from(FLOATS))] for _ in range(2)]
    reference = np.asarray(rng.standard_normal(shape) * 10.0 ** draw(st.integers(-6, 3)))
    target = np.asarray(reference * (1 + draw(st.sampled_from([0, 1e-9, 1e-3, 1.0])) * rng.standard_normal(shape)))
    for array in (reference, target):
        special = rng.random(shape) < draw(st.sampled_from([0, 0.1]))
        array[special] = rng.choice(SPECIAL, special.sum())
    with np.errstate(over="ignore", invalid="ignore"):
        return reference.astype(dtypes[0]), target.astype(dtypes[1])


def assert_same(first, second):
    """Compare two summaries: counts exactly, sums to 1e-12."""
    for name in Summary.__struct_fields__:
        if name == "divergence" and first.negative:
            continue
        if isinstance(getattr(first, name), ScaledFloat):
            room = 1e-12 * float(first.target_square + first.reference_square) if name == "product" else 0.0
            assert float(getattr(first, name)) == pytest.approx(float(getattr(second, name)), rel=1e-12, abs=room)
        elif name == "fills" and first.fills is not None and second.fills is not None:
            assert_same(*(replace(one.fills, rows=one.fills.rows.filled()) for one in (first, second)))
        elif name != "rows":
            assert getattr(first, name) == getattr(second, name), name
    ours, theirs = measure_all(first), measure_all(second)
    assert ours == pytest.approx(theirs, rel=1e-12, abs=1e-15)


@settings(max_examples=150)
@given(pairs(), st.integers(1, 50))
def test_any_block_size_gives_the_same(pair, block):
    assert_same(summarize(*pair), summarize(*pair, block=block))


@settings(max_examples=100)
@given(pairs(), st.lists(st.integers(0, 200), min_size=1, max_size=4))
def test_any_cut_and_any_order_of_merging_give_the_same(pair, cuts):
    tensors = PairOfTensors(*pair)
    bounds = [0, *sorted(min(cut, tensors.size) for cut in cuts), tensors.size]
    parts = [tensors.summary(start, stop, block=16) for start, stop in itertools.pairwise(bounds)]
    left = parts[0]
    for part in parts[1:]:
        left += part
    right = parts[-1]
    for part in reversed(parts[:-1]):
        right = part + right
    whole = tensors.summary()
    for merged in (left, right, merge(parts), merge(parts[::-1])):
        assert_same(merged, whole)


@settings(max_examples=100)
@given(pairs())
def test_swapping_sides_swaps_what_belongs_to_a_side(pair):
    ours, theirs = summarize(*pair), summarize(*pair[::-1])
    for name in (
        "elements",
        "sentinel",
        "nonfinite",
        "sentinel_mismatch",
        "nonfinite_mismatch",
        "infinity_for_sentinel",
        "unequal",
    ):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.difference_max == theirs.difference_max
    assert float(ours.difference_square) == pytest.approx(float(theirs.difference_square), rel=1e-12)
    assert float(ours.target_sum) == pytest.approx(float(theirs.reference_sum), rel=1e-12)
    assert float(ours.product) == pytest.approx(float(theirs.product), rel=1e-9, abs=1e-12 * float(ours.target_square))


@settings(max_examples=100)
@given(pairs())
def test_classes_cover_every_element_once_and_no_metric_is_nan(pair):
    summary = summarize(*pair)
    assert summary.elements == pair[0].size
    assert summary.ordinary + summary.small + summary.sentinel + summary.nonfinite == summary.elements
    assert min(summary.ordinary, summary.small) >= 0
    assert not any(math.isnan(value) for value in measure_all(summary).values())


@settings(max_examples=60)
@given(pairs())
def test_equal_bits_take_the_short_way_to_the_same_result(pair):
    reference, _ = pair
    short = summarize(reference, reference.copy())
    assert short.unequal == 0
    metrics = measure_all(short)
    if "relative_l2" in metrics:
        errors = ("relative_l2", "max_abs_error", "max_rel_error", "mare", "ulp_distance", "worst_row_error", "rmse")
        assert all(metrics.get(name, 0.0) == 0.0 for name in errors)
        assert metrics["cosine_similarity"] == metrics["share_within_one_thousandth"] == metrics["bitwise_equal"] == 1.0


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_the_short_way_counts_as_the_long_way_does(name):
    rng = np.random.default_rng(5)
    reference = rng.standard_normal(999).astype(NUMPY_DTYPES[name])
    reference[::7] = 0
    reference[::11] = np.nan
    reference[::13] = float(-65504)
    nearly = reference.copy()
    nearly[1] += nearly[1]
    short, long = summarize(reference, reference), summarize(reference, nearly)
    for count in ("small", "sentinel", "nonfinite", "elements"):
        assert getattr(short, count) == getattr(long, count)
    assert float(short.reference_square) == pytest.approx(float(long.reference_square), rel=1e-15)


def test_negative_zero_differs_in_bits_only():
    summary = summarize(np.array([0.0, 1.0]), np.array([-0.0, 1.0]))
    metrics = measure_all(summary)
    assert (summary.unequal, metrics["bitwise_equal"]) == (1, 0.0)
    assert (metrics["relative_l2"], metrics["ulp_distance"], metrics["cosine_similarity"]) == (0.0, 0.0, 1.0)


def test_no_element_is_equal_and_nothing_compared():
    summary = summarize(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32))
    assert measure_all(summary) == {"bitwise_equal": 1.0}
    assert (summary.elements, summary.compared) == (0, 0)


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"shape \[2\] with \[3\]"):
        summarize(np.zeros(2), np.zeros(3))


def test_memory_does_not_grow_with_the_tensor(monkeypatch):
    sizes = []
    monkeypatch.setattr(
        "precflow.comparison.fused.kernel.widen", lambda block: sizes.append(block.size) or block.astype(np.float64)
    )
    summarize(np.ones((50, 100), np.float32), np.ones((50, 100), np.float32) * 2, block=256)
    assert max(sizes) == 200
    assert sum(sizes) == 2 * 5000


def test_views_and_foreign_orders_are_read_in_c_order():
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    other = np.asfortranarray(array) * np.float32(1.5)
    assert measure_all(summarize(array, other))["relative_l2"] == 0.5
    assert measure_all(summarize(array.T, other.T))["relative_l2"] == 0.5
    assert measure_all(summarize(array[:, ::2], other[:, ::2]))["relative_l2"] == 0.5


def test_float8_against_bfloat16():
    reference = np.array([1.0, 0.5, -3.0], ml_dtypes.bfloat16)
    metrics = measure_all(summarize(reference, reference.astype(ml_dtypes.float8_e5m2)))
    assert metrics["relative_l2"] == metrics["ulp_distance"] == 0.0
    assert "allclose_share" not in metrics
