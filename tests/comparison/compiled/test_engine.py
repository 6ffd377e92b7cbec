"""The compiled pass against NumPy's, its oracle: every class of value, every type, any cut, any order, any threads."""

import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from unittest import TestCase

import numpy as np
import pytest
from amounts import ALL, examples
from hypothesis import given, settings
from hypothesis import strategies as st

from precflow.comparison.compiled import engine
from precflow.comparison.compiled.selftest import SPECIAL, find_disagreements
from precflow.comparison.formulas import measure_all
from precflow.comparison.fused.summarize import PairOfTensors
from precflow.comparison.fused.summary import Summary, merge
from precflow.dumps.dtypes import NUMPY_DTYPES

COMPILED = ("float32", "bfloat16", "float16")
# Each form takes seven seconds to compile. By default every type is read, both widths stand on each side, and float32 is
# rounded to either short type. A short type on both sides differs from these in helpers that have tests of their own.
FORMS = [("float32", "float32"), ("float16", "float32"), ("float32", "bfloat16")]
if ALL:
    FORMS = list(itertools.product(COMPILED, COMPILED))
SHAPES = [
    (),
    (0,),
    (1,),
    (2, 0, 3),
    (37,),
    (4096,),
    (4097,),
    (9001,),
    (5, 7),
    (5000, 1),
    (3, 1700),
    (9, 511),
    (17, 512),
    (3, 4, 11),
]


@st.composite
def pairs(draw):
    """Draw a pair of every size that matters to blocks of 4096 and rows of 512, with all sorts of values in it."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.sampled_from(SHAPES))
    dtypes = [NUMPY_DTYPES[name] for name in draw(st.sampled_from(FORMS))]
    reference = np.asarray(rng.standard_normal(shape) * 10.0 ** draw(st.sampled_from([-40, -30, -6, -3, 0, 3, 7, 30])))
    target = np.asarray(reference * (1 + draw(st.sampled_from([0, 1e-7, 1e-3, 0.1, 1.0])) * rng.standard_normal(shape)))
    if draw(st.booleans()):
        reference, target = np.asarray(np.abs(reference)), np.asarray(np.abs(target))
    for array in (reference, target):
        special = rng.random(shape) < draw(st.sampled_from([0, 0.001, 0.1, 1.0]))
        array[special] = rng.choice(draw(st.sampled_from([SPECIAL, SPECIAL[:5]])), special.sum())
    with np.errstate(over="ignore", invalid="ignore"):
        return reference.astype(dtypes[0]), target.astype(dtypes[1])


def both(pair, **place):
    tensors = PairOfTensors(*pair)
    return tensors.summary(**place, compiled=True), tensors.summary(**place)


@settings(max_examples=examples(400))
@given(pairs())
def test_it_agrees_with_numpy(pair):
    compiled, oracle = both(pair)
    assert find_disagreements(compiled, oracle) == []
    ours, theirs = measure_all(compiled), measure_all(oracle)
    assert ours.pop("kl_divergence", None) is None or "kl_divergence" in theirs  # its last step cancels
    theirs.pop("kl_divergence", None)
    assert ours == pytest.approx(theirs, rel=1e-11, abs=1e-15)


@settings(max_examples=examples(150))
@given(pairs(), st.lists(st.integers(0, 9001), min_size=1, max_size=5), st.randoms())
def test_any_cut_and_any_order_of_merging_give_the_same(pair, cuts, shuffler):
    tensors = PairOfTensors(*pair)
    bounds = [0, *sorted(min(cut, tensors.size) for cut in cuts), tensors.size]
    parts = [tensors.summary(start, stop, compiled=True) for start, stop in itertools.pairwise(bounds)]
    whole = tensors.summary()
    assert find_disagreements(merge(parts), whole) == []
    shuffler.shuffle(parts)
    assert find_disagreements(sum(parts, Summary()), whole) == []


def test_every_value_of_sixteen_bits_is_read_as_numpy_reads_it():
    every = np.arange(1 << 16, dtype=np.uint16)
    shuffled = np.random.default_rng(1).permutation(every)
    for first, second in FORMS:
        if first == second == "float32":
            continue
        sixteen = NUMPY_DTYPES[first if second == "float32" else second]
        in_order, mixed = every.view(sixteen), shuffled.view(sixteen)
        with np.errstate(over="ignore", invalid="ignore"):
            for one, other in ((in_order, in_order), (in_order, mixed), (mixed, in_order)):
                assert find_disagreements(*both((one.astype(NUMPY_DTYPES[first]), other.astype(NUMPY_DTYPES[second])))) == []


def test_rounding_to_the_coarser_type_breaks_ties_as_numpy_does():
    """Neighbours of all midpoints of float16 and bfloat16, where rounding to even decides."""
    for name in ("float16", "bfloat16"):
        coarse = np.arange(0x7800 if name == "float16" else 0x7F00, dtype=np.uint16).view(NUMPY_DTYPES[name]).astype(np.float32)
        middle = (coarse[:-1] + coarse[1:]) / 2
        near = np.concatenate([middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))])
        coarser = np.roll(near, 1).astype(NUMPY_DTYPES[name])
        if (name, "float32") in FORMS:
            assert find_disagreements(*both((coarser, -near))) == []
        if ("float32", name) in FORMS:
            assert find_disagreements(*both((near, coarser))) == []


def test_limits_are_met_to_the_last_bit():
    """Errors of exactly 0.001 and 0.005 of the reference, and at assert_close's limits: counts may not hang on rounding."""
    reference = np.float32(np.arange(1000, 20000, 1))
    for target in (
        reference * np.float32(1.001),
        np.round(reference * 1.005),
        reference + np.float32(1e-5),
        reference + reference // 1000,
    ):
        assert find_disagreements(*both((reference, target.astype(np.float32)))) == []
    tight = reference * 1.3e-6 + 1e-5
    for step in (tight, np.nextafter(tight, 0), np.nextafter(tight, 1)):
        small = np.float32(reference * 1e-6)
        assert find_disagreements(*both((small, (small + step).astype(np.float32)))) == []


@pytest.mark.parametrize("name", [first for first, second in FORMS if first == second])
@pytest.mark.parametrize("share", [1 / 1000, 1 / 200])
def test_a_quotient_at_a_limit_counts_and_its_neighbours_do_as_numpy_says(name, share):
    """Differences next to a share of y, of all mantissas: exactly the share for some, and off by a unit for the others."""
    dtype = NUMPY_DTYPES[name]
    mantissas = np.arange(1000, 2000, dtype=np.float64)
    for scale in (2.0**-110, 2.0**-12, 1.0, 2.0**10) if name != "float16" else (2.0**-12, 1.0):
        reference = (mantissas * 2.0**-10 * scale).astype(dtype)
        exact = reference.astype(np.float64) * (1 + share)
        bits = exact.astype(dtype).view(f"i{dtype.itemsize}")
        for target in (bits.view(dtype), (bits - 1).view(dtype), (bits + 1).view(dtype), *([exact.astype(np.float32)] * ALL)):
            assert find_disagreements(*both((reference, target))) == []
            assert find_disagreements(*both((-reference, -target))) == []


def test_small_differences_between_large_values_of_opposite_signs_and_zeros():
    """Blocks that are measured carefully and blocks that are not, side by side, and a segment of each kind in one row."""
    rng = np.random.default_rng(11)
    reference = rng.standard_normal(40_000).astype(np.float32)
    reference[5000:5100] = 0.0
    reference[9000:9100] = np.float32(1e-39)
    reference[20_000] = np.float32(2.0**-101)
    target = reference * np.float32(1.0007)
    target[12_000:12_050] *= np.float32(-1)
    target[30_000] = np.float32(np.nan)
    for shape in ((40_000,), (40, 1000), (400, 100)):
        assert find_disagreements(*both((reference.reshape(shape), target.reshape(shape)))) == []


@pytest.mark.parametrize("error", [1e-7, 4e-4, 0.00099, 0.0011, 0.2])
def test_distributions_that_are_near_and_that_are_not(error):
    """The largest relative difference decides how many terms of the series are taken."""
    rng = np.random.default_rng(12)
    reference = rng.random(9001).astype(np.float32) + np.float32(1e-3)
    target = (reference * (1 + error * rng.uniform(-1, 1, reference.size))).astype(np.float32)
    compiled, oracle = both((reference, target))
    assert find_disagreements(compiled, oracle) == []
    assert float(compiled.divergence) == pytest.approx(float(oracle.divergence), rel=1e-12)


def test_threads_share_one_pass():
    rng = np.random.default_rng(2)
    reference = rng.standard_normal((300, 4099)).astype(np.float32)
    target = reference + np.float32(1e-4) * rng.standard_normal(reference.shape).astype(np.float32)
    tensors = PairOfTensors(reference, target)
    bounds = list(itertools.pairwise([*range(0, tensors.size, 54321), tensors.size]))
    random.Random(3).shuffle(bounds)
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda place: tensors.summary(*place, compiled=True), bounds))
    assert find_disagreements(merge(parts), tensors.summary()) == []


def test_a_large_range_is_read_in_stretches(monkeypatch):
    monkeypatch.setattr(engine, "_STRETCH", 1000)
    rng = np.random.default_rng(4)
    pair = tuple(rng.standard_normal((71, 601)).astype(np.float32) for _ in range(2))
    assert find_disagreements(*both(pair)) == []


def test_views_that_are_not_aligned_are_read():
    raw = np.zeros(4 * 100 + 1, np.uint8)[1:].view(np.float32)
    raw[:] = np.arange(100)
    assert find_disagreements(*both((raw, raw + np.float32(1)))) == []


@pytest.mark.parametrize("name", ["float64", "int32", "float8_e5m2", "complex64"])
def test_other_types_have_no_compiled_form_and_are_measured_by_numpy(name):
    assert engine.find_compiled_pass(name, "float32") is None
    ones = np.ones(5).astype(NUMPY_DTYPES[name])
    assert find_disagreements(*both((ones, ones))) == []


@pytest.fixture
def fresh():
    """Forget which forms were tested, before and after."""
    engine._load_and_test.cache_clear()
    yield
    engine._load_and_test.cache_clear()


def test_without_numba_numpy_does_the_work(monkeypatch, fresh):
    monkeypatch.setattr(engine.importlib.util, "find_spec", lambda name: None)
    with TestCase().assertNoLogs():
        assert engine.find_compiled_pass("float32", "float32") is None


def broken(*_):
    raise OSError("no code for this processor")


@pytest.mark.parametrize(
    ("kernel", "reason"), [(broken, "OSError: no code for this processor"), (lambda *_: None, "its self-test differs in ")]
)
def test_a_form_that_fails_or_computes_something_else_is_not_used_and_the_log_says_so(monkeypatch, fresh, kernel, reason):
    monkeypatch.setattr(engine, "_import_kernel", lambda: kernel)
    with TestCase().assertLogs(level="WARNING") as logged:
        assert engine.find_compiled_pass("float32", "float16") is None
    (said,) = logged.output
    assert "comparing float16 with float32 by NumPy" in said
    assert reason in said
    assert find_disagreements(*both((np.ones(3, np.float32), np.ones(3, np.float16)))) == []


def test_minus_zero_among_positive_values_makes_no_distribution_negative():
    reference = np.random.default_rng(13).random(3000).astype(np.float32) + np.float32(1e-3)
    target = reference.copy()
    target[700] = np.float32(-0.0)
    compiled, oracle = both((reference, target))
    assert find_disagreements(compiled, oracle) == []
    assert not compiled.negative


@pytest.mark.parametrize("exponent", [-61, -60, -59, -30, -24, -1, 0, 7, 14])
def test_quotients_from_an_estimated_inverse_are_those_of_a_division_whatever_the_magnitude(exponent):
    """One step of Newton's squares the error of float32's inverse: 1e-13 at most, and less on average."""
    rng = np.random.default_rng(14)
    reference = (rng.uniform(1, 2, 4096) * 2.0**exponent).astype(np.float32)
    target = (reference * (1 + 10.0 ** rng.uniform(-7, 1, 4096))).astype(np.float32)
    compiled, oracle = both((reference, target))
    assert find_disagreements(compiled, oracle) == []
    assert float(compiled.relative_sum) == pytest.approx(float(oracle.relative_sum), rel=1e-13)
    assert float(compiled.offset_relative_sum) == pytest.approx(float(oracle.offset_relative_sum), rel=1e-13)


def test_values_just_below_those_that_are_looked_at_more_closely():
    """A target is ordinary for certain where y and the largest difference together are; beyond, it is looked at."""
    reference = np.full(2048, 60_000, np.float32)
    for step in (4193.0, 4194.0, 4195.0, 6000.0, 7000.0, 1e5, -1.3e5):
        assert find_disagreements(*both((reference, (reference + np.float32(step)).astype(np.float32)))) == []
        assert find_disagreements(*both((-reference, (reference + np.float32(step)).astype(np.float32)))) == []
