"""A record that was judged by less than its tensors is judged as by its tensors, or not at all."""

import datetime
import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precflow.comparison.formulas import measure_all
from precflow.comparison.fused.summarize import summarize
from precflow.comparison.reading import count_classes
from precflow.config.schema import Tolerance
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.judgement import standards
from precflow.judgement.accepted import AcceptedDifferences
from precflow.judgement.decision import Terms, decide

_SPEC = importlib.util.spec_from_file_location("evidence", Path(__file__).parents[1] / "comparison" / "evidence.py")
evidence = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(evidence)

NOBODY = AcceptedDifferences((), datetime.date.max)
WRONG = {"fail", "nonfinite"}
LEAST = ("digest", "statistics", "sketch")
SPECIAL = (np.nan, np.inf, -np.inf, float(np.finfo(np.float32).min), -1e9, 0.0)


def status(measure, tolerance):
    terms = Terms("float32", "float16", [standards.load(name) for name in tolerance.standards], tolerance)
    return decide(measure, terms, NOBODY).judged.status


def pairs(left, right, detail):
    """Return the measure by a detail, and the measure by the tensors."""
    known = evidence.measured(left, right, (detail, detail))
    summary = summarize(left, right)
    whole = replace(
        known, metrics=measure_all(summary), counts=count_classes(summary), ranges={}, absent={}, evidence="tensors"
    )
    return known, whole


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    shape=st.sampled_from([(1,), (40,), (30, 60), (2, 11, 64), (1100, 8)]),
    types=st.sampled_from([("float32", "float32"), ("float32", "float16"), ("float16", "float16")]),
    error=st.floats(-8, 1).map(lambda power: 10.0**power),
    special=st.lists(st.tuples(st.integers(0, 5000), st.sampled_from(SPECIAL), st.integers(0, 2)), max_size=2),
    detail=st.sampled_from(LEAST),
    tolerance=st.sampled_from(
        [
            Tolerance(),
            Tolerance(standards=("default", "allclose")),
            Tolerance(standards=(), cosine_similarity=0.9999),
            Tolerance(standards=(), max_abs_error=0.01),
            Tolerance(standards=(), worst_row_error=0.01, mean_abs_error=0.001),
            Tolerance(standards=(), ulp_distance=4),
        ]
    ),
)
def test_less_evidence_never_says_otherwise(seed, shape, types, error, special, detail, tolerance):
    rng = np.random.default_rng(seed)
    both = [rng.standard_normal(shape)] * 2
    both[1] = both[0] + error * rng.standard_normal(shape)
    for place, value, where in special:
        for number, array in enumerate(both):
            if where in (number, 2):
                array.reshape(-1)[place % array.size] = value
    with np.errstate(over="ignore"):
        left, right = (array.astype(NUMPY_DTYPES[name]) for array, name in zip(both, types, strict=True))
    known, whole = pairs(left, right, detail)
    found, true = status(known, tolerance), status(whole, tolerance)
    assert found in {"pass", "undecided", "blind", *WRONG}
    if found in {"pass", "blind"}:
        assert true in {"pass", "blind"}
    if found in WRONG:
        assert true in WRONG


@pytest.mark.parametrize(("detail", "decided"), [("digest", 0), ("statistics", 0), ("sketch", 17)])
def test_how_much_each_detail_decides_of_clean_noise(detail, decided):
    rng = np.random.default_rng(5)
    found = []
    for power in np.linspace(-9, -1, 20):
        left = rng.standard_normal((40, 80)).astype(np.float32)
        right = (left + 10**power * rng.standard_normal(left.shape)).astype(np.float32)
        if np.array_equal(left, right):
            continue
        found.append(status(pairs(left, right, detail)[0], Tolerance()))
    assert len(found) - found.count("undecided") >= decided
