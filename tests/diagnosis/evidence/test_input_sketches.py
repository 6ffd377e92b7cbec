"""One factor and amounts are found in sketches, and nothing is said of other changes."""

import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow import language
from precflow.comparison.estimated.kept_evidence import KeptTensor, sum_tensor
from precflow.diagnosis.evidence.input_sketches import find_scaled_sketch

FLOATS = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
STD = np.array([0.229, 0.224, 0.225], np.float32).reshape(1, 3, 1, 1)
CATALOGUE = language.load("zh")
SEEDS = st.integers(0, 2**16)


def draw(seed, shape, dtype):
    return (np.random.default_rng(seed).random(shape) * 4 - 2).astype(dtype)


def sketch(values, **changes):
    """Return what a dump keeps of a tensor where it keeps sketches; its sums are those of float32."""
    kept = sum_tensor(values, KeptTensor(values.dtype.name, values.shape))
    return KeptTensor(
        kept.dtype, kept.shape, 1.0, "sketch", kept.statistics, kept.sketch.astype(np.float32), 2.0**-22, **changes
    )


def name_sketch(reference, target):
    change = find_scaled_sketch(sketch(reference), sketch(target))
    assert change is None or not re.search("[a-z]", CATALOGUE.translate(change.text))
    return change.text if change is not None else ""


@given(SEEDS, st.sampled_from(FLOATS), st.sampled_from([-3.0, 0.25, 0.9, 1.2, 40.0]), st.sampled_from([0.0, -1.5, 0.3]))
def test_one_factor_and_one_amount_are_found_in_sketches(seed, dtype, factor, amount):
    values = draw(seed, (4, 3, 24, 24), dtype)
    text = name_sketch(values, (values.astype(np.float64) * factor + amount).astype(dtype))
    assert text.startswith("each value multiplied by ")
    assert float(text.removeprefix("each value multiplied by ").split(",")[0]) == pytest.approx(factor, rel=0.01)
    assert (" added" in text) == bool(amount)


@given(SEEDS, st.sampled_from(FLOATS))
def test_nothing_is_said_of_sketches_of_other_changes(seed, dtype):
    values = draw(seed, (4, 3, 24, 24), dtype)
    wide = values.astype(np.float64)
    noisy = wide * 2 + 0.02 * draw(seed + 1, values.shape, np.dtype(np.float64))
    for other in (
        draw(seed + 1, values.shape, dtype),
        values[:, ::-1],
        values[..., ::-1],
        wide * STD,
        noisy,
        wide * (1 + 1e-9),
    ):
        assert name_sketch(values, np.ascontiguousarray(other).astype(dtype)) == ""


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e9])
def test_nothing_is_said_of_sketches_that_leave_values_out(value):
    values = draw(0, (4, 3, 24, 24), FLOATS[0])
    values[0, 0, 0, 0] = value
    assert name_sketch(values, values * 2) == ""
    assert name_sketch(values[1:], values[1:] * 2) == "each value multiplied by 2"


def test_nothing_is_said_of_constant_and_missing_sketches():
    one = np.ones((4, 3, 24, 24), np.float32)
    assert name_sketch(one, one * 2) == name_sketch(one * 0, one) == name_sketch(one, one * 0) == ""
    values = draw(0, one.shape, FLOATS[0])
    assert find_scaled_sketch(KeptTensor("float32", one.shape), sketch(values)) is None
    assert name_sketch(values, values[:2]) == ""


def test_an_amount_of_each_channel_is_found_beside_one_factor():
    """Pixels of 0 to 255 that are normalised as if they were 0 to 1; a mean that is left out."""
    raw = np.random.default_rng(0).random((4, 3, 24, 24)).astype(np.float32)
    mean = np.array([0.485, 0.456, 0.406], np.float32).reshape(1, 3, 1, 1)
    told = "each value multiplied by 255; channels with 537.9, 517.1, 458.3 added"
    assert name_sketch((raw - mean) / STD, (raw * 255 - mean) / STD) == told
    assert name_sketch((raw - mean) / STD, raw / STD) == "channels with 2.118, 2.036, 1.804 added"
    last = [np.ascontiguousarray(each.transpose(0, 2, 3, 1)) for each in ((raw - mean) / STD, raw / STD)]
    assert name_sketch(*last) == "channels with 2.118, 2.036, 1.804 added"
