"""Classes of values, one pair at a time."""

import ml_dtypes
import numpy as np
import pytest

from precflow.comparison.fused.summarize import summarize
from precflow.comparison.fused.value_classes import fills_of, widen
from precflow.dumps.dtypes import FLOATS, NUMPY_DTYPES, float_facts

LOWEST = {name: -float_facts(name).largest for name in FLOATS}
F16, BF16, F32, F64 = "float16", "bfloat16", "float32", "float64"


def pair(reference, target):
    """Summarise one element of each side: (dtype, value)."""
    arrays = [np.array([value], np.float64).astype(NUMPY_DTYPES[dtype]) for dtype, value in (reference, target)]
    return summarize(*arrays)


def outcome(summary):
    names = "small small_mismatch sentinel sentinel_mismatch other_fill saturated_mismatch nonfinite nonfinite_mismatch"
    names += " infinity_for_sentinel"
    return {name for name in names.split() if getattr(summary, name)} or {"ordinary"}


@pytest.mark.parametrize(
    ("reference", "target", "expected"),
    [
        ((F32, 1.0), (F32, 2.0), {"ordinary"}),
        ((F32, np.nan), (F32, np.nan), {"nonfinite"}),
        ((F32, np.nan), (F16, np.nan), {"nonfinite"}),
        ((F32, np.nan), (F32, 1.0), {"nonfinite", "nonfinite_mismatch"}),
        ((F32, 1.0), (F32, np.nan), {"nonfinite", "nonfinite_mismatch"}),
        ((F32, np.inf), (F32, -np.inf), {"nonfinite", "nonfinite_mismatch"}),
        ((F32, np.inf), (F32, np.inf), {"nonfinite"}),
        ((F32, np.inf), (F32, np.nan), {"nonfinite", "nonfinite_mismatch"}),
        ((F32, 70000.0), (F16, np.inf), {"nonfinite", "nonfinite_mismatch"}),
        ((F32, LOWEST[F32]), (F16, LOWEST[F16]), {"sentinel"}),
        ((F32, LOWEST[F32]), (BF16, LOWEST[BF16]), {"sentinel"}),
        ((F32, -1e9), (F32, LOWEST[F32]), {"sentinel", "other_fill"}),
        ((F32, -1e9), (F16, LOWEST[F16]), {"sentinel", "other_fill"}),
        ((F32, -1e9), (BF16, -1e9), {"sentinel"}),
        ((F32, LOWEST[F16]), (F16, LOWEST[F16]), {"sentinel"}),
        ((F32, LOWEST[F32]), (F32, -LOWEST[F32]), {"sentinel", "other_fill"}),
        ((F32, -65504.0), (F32, -65100.0), {"sentinel"}),
        ((F32, -65504.0), (F32, 0.5), {"sentinel_mismatch"}),
        ((F32, 0.5), (F16, -65504.0), {"sentinel_mismatch", "saturated_mismatch"}),
        ((F32, -65504.0), (F32, -66400.0), {"ordinary"}),
        ((F32, 3e38), (F32, -3e38), {"ordinary"}),
        ((F32, -np.inf), (F32, LOWEST[F32]), {"nonfinite", "infinity_for_sentinel"}),
        ((F16, LOWEST[F16]), (F32, -np.inf), {"nonfinite", "infinity_for_sentinel"}),
        ((F32, np.inf), (F32, 3e38), {"nonfinite", "nonfinite_mismatch"}),
        ((F32, 40000.0), (F16, 40000.0), {"ordinary"}),  # large for float16, plain for float32: the values agree
        ((F32, 40000.0), (F16, 60000.0), {"ordinary"}),
        ((F16, 40000.0), (F16, 60000.0), {"ordinary"}),
        ((F16, -34000.0), (F16, -65504.0), {"sentinel_mismatch", "saturated_mismatch"}),
        ((F16, 65472.0), (F16, 65504.0), {"sentinel"}),
        ((F32, 70000.0), (F16, 65504.0), {"sentinel_mismatch", "saturated_mismatch"}),
        ((F32, 65500.0), (F16, 65504.0), {"sentinel"}),
        ((F32, -5e4), (F32, -5.1e4), {"ordinary"}),
        ((F64, -1e200), (F64, -1e200), {"ordinary"}),
        ((F64, -1e200), (F64, -np.inf), {"nonfinite", "nonfinite_mismatch"}),
        ((F64, 1e200), (F64, 1e201), {"ordinary"}),
        ((F32, 0.0), (F32, 0.0), {"small"}),
        ((F32, 0.0), (F32, -0.0), {"small"}),
        ((F32, 1e-40), (F32, 2e-40), {"small"}),
        ((F32, 0.0), (F32, 1.0), {"small", "small_mismatch"}),
        ((F32, 1.0), (F32, 0.0), {"ordinary"}),
        ((F32, 1e-6), (F16, 1e-6), {"ordinary"}),
        ((F16, 1e-6), (F16, 0.0), {"small"}),
        (("float8_e4m3fn", 448.0), ("float8_e4m3fn", 416.0), {"ordinary"}),
        (("float8_e4m3fn", 448.0), ("float8_e4m3fn", 320.0), {"saturated_mismatch"}),
        (("float8_e5m2", -57344.0), ("float8_e5m2", -57344.0), {"ordinary"}),
    ],
)
def test_classes(reference, target, expected):
    assert outcome(pair(reference, target)) == expected


def test_a_masked_score_neither_hides_a_fault_nor_fails_a_clean_pair():
    rng = np.random.default_rng(0)
    clean = rng.standard_normal((4, 64)).astype(np.float32)
    faulty = clean * np.float32(1.5)
    half = clean.astype(np.float16)
    masked = np.triu(np.ones((4, 64), bool), 1)
    clean[masked] = faulty[masked] = np.finfo(np.float32).min
    half[masked] = np.finfo(np.float16).min
    found, tolerated = summarize(clean, faulty), summarize(clean, half)
    assert float(found.difference_square) / float(found.reference_square) == pytest.approx(0.25)
    assert float(tolerated.difference_square) / float(tolerated.reference_square) < 1e-6
    assert found.sentinel == tolerated.sentinel == masked.sum()
    assert found.sentinel_mismatch == tolerated.sentinel_mismatch == 0


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_widening_is_exact_for_every_bit_pattern(name):
    values = np.arange(65536, dtype=np.uint16).view(NUMPY_DTYPES[name])
    with np.errstate(invalid="ignore"):
        expected = values.astype(np.float32).astype(np.float64)
    assert np.array_equal(widen(values), expected, equal_nan=True)


def test_no_fills_in_float8():
    fills = fills_of(float_facts("float8_e4m3fn"))
    assert (fills.plain, fills.sizes.tolist(), fills.ends) == (448.0, [0.0], (0, 0))
    assert np.dtype(ml_dtypes.float8_e4m3fn).itemsize == 1
