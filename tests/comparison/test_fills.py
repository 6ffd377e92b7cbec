"""Mask fills and large values: no pair that differs is measured as if it did not, no clean mask as if it differed."""

import itertools

import numpy as np
import pytest
from amounts import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from precflow.agent.contract import FILLS, LARGEST
from precflow.comparison.formulas import measure_all
from precflow.comparison.fused.summarize import PairOfTensors, summarize
from precflow.comparison.reading import count_classes
from precflow.dumps.dtypes import NUMPY_DTYPES, float_facts
from precflow.judgement.decision import CLASS_FAILURES
from precflow.library import assert_aligned

TYPES = ("float64", "float32", "bfloat16", "float16")
MASKS = [constant for constant in FILLS if constant < 0]


@st.composite
def pairs(draw, types=TYPES):
    """Draw two finite tensors of one type: numbers of one size, and outliers of every magnitude at random places."""
    name = draw(st.sampled_from(types))
    facts, rng = float_facts(name), np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.sampled_from([(1,), (7,), (40, 9), (3, 700), (1500,)]))
    limit = float(np.log10(facts.largest))
    size = 10.0 ** draw(st.floats(-min(limit, 300), min(limit, 300)) | st.sampled_from([0.0, 0.0, 3.2]))
    apart = draw(st.sampled_from([0, 1e-9, 1e-6, 1e-3, 1.0]))
    reference = np.clip(np.asarray(rng.standard_normal(shape) * size), -facts.largest, facts.largest)
    target = np.clip(reference * (1 + apart * rng.standard_normal(shape)), -facts.largest, facts.largest)
    for _ in range(draw(st.integers(0, 3))):
        places = rng.random(shape) < draw(st.sampled_from([0.001, 0.1, 0.6]))
        near = draw(st.sampled_from([0, 1e-8, 1e-5, 0.003, 0.02, 0.5]))
        kind = draw(st.integers(0, 3))
        if kind == 0:  # a constant, with scores
            value = draw(st.sampled_from(FILLS)) + draw(st.sampled_from([0.0, 1.0, 100.0])) * rng.standard_normal(places.sum())
        elif kind == 1:  # around the half of the largest value, and the largest
            value = facts.largest * draw(st.sampled_from([0.4, 0.5, 0.6, 0.99, 1.0])) * rng.choice([-1, 1], places.sum())
        elif kind == 2:  # of any magnitude
            value = rng.choice([-1, 1], places.sum()) * 10.0 ** rng.uniform(-min(limit, 307), min(limit, 308), places.sum())
        else:
            value = np.full(places.sum(), facts.smallest)
        with np.errstate(over="ignore"):
            moved = value * (1 + near * rng.standard_normal(places.sum()))
        reference[places] = np.clip(value, -facts.largest, facts.largest)
        if draw(st.booleans()) or near == 0:
            target[places] = np.clip(moved, -facts.largest, facts.largest)
    return tuple(np.clip(side, -facts.largest, facts.largest).astype(NUMPY_DTYPES[name]) for side in (reference, target))


def plain_relative_l2(reference, target):
    """Return the relative L2 of all elements together, in long double, which has room for squares of float64."""
    y, x = (side.astype(np.float64).astype(np.longdouble) for side in (reference, target))
    error, size = np.sqrt(np.sum((x - y) ** 2)), np.sqrt(np.sum(y**2))
    return 0.0 if not error else float(error / size) if size else np.inf


def fails_by_class(summary):
    return any(count_classes(summary)[name] for name in CLASS_FAILURES)


@settings(max_examples=examples(750))
@example((np.array([-65504], np.float16), np.array([64860], np.float16)))  # a fill against a number: nothing ordinary is left
@given(pairs())
def test_no_metric_says_less_than_the_error_of_all_elements_together(pair):
    summary, true = summarize(*pair), plain_relative_l2(*pair)
    assert summary.settled
    assert summary.other_fill or measure_all(summary)["relative_l2"] >= true * (1 - 1e-9)
    if true > 2**-5:  # the widest limit of these types
        with pytest.raises(AssertionError):
            assert_aligned(*pair[::-1])


@settings(max_examples=150)
@given(pairs(("float32", "bfloat16", "float16")), st.integers(0, 2000))
def test_the_compiled_pass_says_no_less_however_it_is_cut(pair, cut):
    if pair[0].dtype == np.float16:  # beside float32, a form that other tests compile too: each takes seven seconds
        pair = pair[0], pair[1].astype(np.float32)
    tensors = PairOfTensors(*pair)
    ends = (0, min(cut, tensors.size), tensors.size)
    parts = [(start, stop, tensors.summary(start, stop, compiled=True)) for start, stop in itertools.pairwise(ends)]
    summary = tensors.settle(parts, compiled=True)
    found, expected = measure_all(summary), measure_all(summarize(*pair))
    assert summary.other_fill or found["relative_l2"] >= plain_relative_l2(*pair) * (1 - 1e-9)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-14)
    assert count_classes(summary) == count_classes(summarize(*pair))


def scores(name, constant, noise, *, added):
    """Return masked scores of a type, the mask written over them or added to them, and some noise before that."""
    rng = np.random.default_rng(3)
    values = rng.standard_normal((4, 32, 32)) * 3
    values *= 1 + noise * np.random.default_rng(4).standard_normal(values.shape)
    mask = np.triu(np.ones((32, 32), bool), 1)
    values = np.where(mask, values + constant if added else constant, values)
    with np.errstate(over="ignore"):
        return np.clip(values, -LARGEST[name], LARGEST[name]).astype(NUMPY_DTYPES[name])


@pytest.mark.parametrize("added", [False, True], ids=["written", "added"])
@pytest.mark.parametrize(
    ("name", "constant"), [(name, constant) for name in TYPES for constant in MASKS if abs(constant) <= LARGEST[name]]
)
def test_a_clean_mask_of_any_constant_passes_and_hides_no_fault(name, constant, added):
    noise = {"float64": 1e-15, "float32": 1e-6, "bfloat16": 2**-8, "float16": 2**-11}[name]
    reference = scores(name, constant, 0.0, added=added)
    assert_aligned(scores(name, constant, noise, added=added), reference)
    found = summarize(reference, scores(name, constant, noise, added=added))
    assert (found.sentinel, found.fills.compared) == (4 * 32 * 31 // 2, 4 * 32 * 31 // 2)
    with pytest.raises(AssertionError, match="relative_l2"):
        assert_aligned(scores(name, constant, 0.3, added=added), reference)


@pytest.mark.parametrize("first", TYPES)
@pytest.mark.parametrize("second", TYPES)
def test_each_side_may_fill_with_the_least_value_of_its_own_type_or_with_infinity(first, second):
    rng = np.random.default_rng(5)
    values = rng.standard_normal((4, 64)).astype(NUMPY_DTYPES["float16"]).astype(float)
    mask = np.triu(np.ones((4, 64), bool), 1)
    with np.errstate(over="ignore"):
        left, right = (np.where(mask, -LARGEST[name], values).astype(NUMPY_DTYPES[name]) for name in (first, second))
    assert_aligned(right, left)
    right[mask] = -np.inf
    assert_aligned(right, left)


def test_another_constant_of_one_type_fails_in_words():
    reference, target = (np.where(np.eye(8, dtype=bool), constant, 1.0).astype(np.float32) for constant in (-1e9, -1e30))
    with pytest.raises(AssertionError, match="8 mask fill values are other constants than the reference's"):
        assert_aligned(target, reference)


def test_a_fill_against_an_ordinary_number_fails_in_words_and_by_its_number():
    reference = np.where(np.eye(8, dtype=bool), -1e9, 1.0).astype(np.float32)
    target = reference.copy()
    target[3, 3] = 0.5
    with pytest.raises(AssertionError, match=r"1 mask fill value stands against an ordinary number; relative_l2"):
        assert_aligned(target, reference)
    with pytest.raises(AssertionError, match=r"1 mask fill value stands against an ordinary number; relative_l2"):
        assert_aligned(reference, target)


@pytest.mark.parametrize(("name", "other"), [("float16", 60000.0), ("float16", 9000.0), ("bfloat16", 3.2e38)])
def test_saturation_on_one_side_fails_however_little_it_weighs(name, other):
    reference = np.full((64, 64), LARGEST[name] / 2).astype(NUMPY_DTYPES[name])
    target = reference.copy()
    reference[0, 0], target[0, 0] = other, LARGEST[name]
    summary = summarize(reference, target)
    assert measure_all(summary)["relative_l2"] < 0.032
    with pytest.raises(AssertionError, match="1 element has the largest value of its type on one side only"):
        assert_aligned(target, reference)
    target[0, 0] = reference[0, 0]
    assert_aligned(target, reference)


def test_the_largest_value_and_its_neighbours_are_no_saturation_of_one_side():
    reference = np.full((8, 8), 60000.0, np.float16)
    target = reference.copy()
    reference[0, 0], target[0, 0] = 65504.0, 65472.0
    assert summarize(reference, target).saturated_mismatch == 0
    assert_aligned(target, reference)


def test_a_constant_among_numbers_of_its_size_is_one_of_them():
    values = np.linspace(-12000, 12000, 4096).astype(np.float32)
    values[7] = -10000.0
    summary = summarize(values, values * np.float32(1.01))
    assert (summary.sentinel, summary.fills, summary.settled) == (0, None, True)
    assert measure_all(summary)["relative_l2"] == pytest.approx(0.01, rel=1e-3)


def test_a_recipe_may_name_a_constant_of_its_own():
    reference = np.where(np.eye(8, dtype=bool), -12345.0, 1.0).astype(np.float32)
    target = np.where(np.eye(8, dtype=bool), -12345.0, 1.5).astype(np.float32)
    assert measure_all(summarize(reference, target))["relative_l2"] < 1e-3
    known = summarize(reference, target, constants=(*FILLS, -12345.0))
    assert (known.sentinel, measure_all(known)["relative_l2"]) == (8, 0.5)


@pytest.mark.parametrize(
    ("name", "size"), [("float64", 1e300), ("float64", 1.7e308), ("float64", 1e-300), ("float32", 3e38), ("bfloat16", 3e38)]
)
def test_sums_of_huge_numbers_are_those_of_small_ones(name, size):
    rng = np.random.default_rng(8)
    small = rng.uniform(-1, 1, (40, 30)).astype(NUMPY_DTYPES["float16"]).astype(float)
    apart = small * (1 + 0.1 * rng.uniform(-1, 0, small.shape))
    small[3], apart[3] = 1.0, -1.0  # the widest difference there is
    power = 2.0 ** np.floor(np.log2(size))
    reference, target = ((side * power).astype(NUMPY_DTYPES[name]) for side in (small, apart))
    plain = measure_all(summarize(*((side.astype(np.float64) / power) for side in (reference, target))))
    found = measure_all(summarize(reference, target))
    names = "cosine_similarity relative_l2 worst_row_error max_rel_error mean_rel_error accumulated_relative_error".split()
    for metric in names:
        assert found[metric] == pytest.approx(plain[metric], rel=1e-12), metric
    if power < 2.0**1022:
        for metric in ("max_rms_error", "rmse"):
            scale = power if metric == "rmse" else 1.0
            assert found[metric] == pytest.approx(plain[metric] * scale, rel=1e-12), metric
