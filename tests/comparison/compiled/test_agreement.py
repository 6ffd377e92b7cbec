"""What counts as agreement between two summaries."""

import numpy as np
import pytest
from msgspec.structs import replace

from precflow.comparison.compiled.selftest import disagreements
from precflow.comparison.fused.row_norms import RowNorms
from precflow.comparison.fused.scaled_float import Scaled
from precflow.comparison.fused.summary import Summary

WHOLE = Summary(
    elements=3,
    reference_square=Scaled.of(2.0),
    product=Scaled.of(1e-30),
    divergence=Scaled.of(1.0),
    rows=RowNorms(1, np.array([1.0, 0.0]), np.array([2.0, 3.0])),
)


def test_a_summary_agrees_with_itself_and_to_rounding():
    assert disagreements(WHOLE, WHOLE) == []
    assert disagreements(WHOLE, replace(WHOLE, reference_square=Scaled.of(2.0 + 1e-13))) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("elements", 4),
        ("reference_square", Scaled.of(2.0 + 1e-11)),
        ("relative_max", 1e-300),
        ("close", {"float32": 1}),
        ("divergence", Scaled.of(1.0 + 1e-11)),
        ("rows", RowNorms(0, np.array([1.0, 0.0]), np.array([2.0, 3.0]))),
        ("rows", RowNorms(1, np.array([1.0, 1e-20]), np.array([2.0, 3.0]))),
        ("rows", RowNorms(1, np.array([1.0]), np.array([2.0]))),
    ],
)
def test_a_difference_is_named(name, value):
    assert disagreements(WHOLE, replace(WHOLE, **{name: value})) == [name]


def test_what_cancels_is_judged_by_what_it_cancels_from():
    assert disagreements(WHOLE, replace(WHOLE, product=Scaled.of(1e-13))) == []
    assert disagreements(WHOLE, replace(WHOLE, product=Scaled.of(1e-10))) == ["product"]


def test_a_divergence_of_negative_values_means_nothing():
    negative = replace(WHOLE, negative=True)
    assert disagreements(negative, replace(negative, divergence=Scaled.of(7.0))) == []
