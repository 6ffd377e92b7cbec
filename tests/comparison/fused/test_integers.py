"""Integers and booleans: exact at the ends of 64 bits."""

import numpy as np
import pytest

from precflow.comparison.formulas import measure_all
from precflow.comparison.fused.integers import summarize_integers
from precflow.comparison.fused.summarize import summarize

LOW, HIGH, TOP = -(2**63), 2**63 - 1, 2**64 - 1


@pytest.mark.parametrize(
    ("reference", "target", "expected"),
    [
        (np.int64([LOW]), np.int64([HIGH]), TOP),
        (np.int64([HIGH]), np.int64([HIGH - 1]), 1),
        (np.uint64([TOP]), np.uint64([TOP - 1]), 1),
        (np.uint64([TOP]), np.int64([-1]), TOP + 1),
        (np.uint64([TOP]), np.uint8([255]), TOP - 255),
        (np.uint8([0]), np.uint8([255]), 255),
        (np.int8([-128]), np.int16([127]), 255),
        (np.array([True]), np.array([False]), 1),
        (np.array([True]), np.uint64([3]), 2),
    ],
)
def test_differences_are_exact(reference, target, expected):
    assert summarize_integers(reference, target).difference_max == expected
    assert summarize_integers(target, reference).difference_max == expected


@pytest.mark.parametrize("name", ["int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"])
def test_metrics_of_integers(name):
    reference = np.array([[0, 1], [1, 1]]).astype(name)
    target = np.array([[0, 1], [1, 0]]).astype(name)
    assert measure_all(summarize(reference, target)) == {"max_abs_error": 1.0, "mean_abs_error": 0.25, "bitwise_equal": 0.0}
    assert measure_all(summarize(reference, reference))["bitwise_equal"] == 1.0


def test_another_type_is_not_bitwise_equal():
    metrics = measure_all(summarize(np.int64([1]), np.int32([1])))
    assert (metrics["max_abs_error"], metrics["bitwise_equal"]) == (0.0, 0.0)


def test_an_integer_against_a_float_is_compared_as_numbers():
    metrics = measure_all(summarize(np.int64([1, 2]), np.float32([1, 2.5])))
    assert metrics["max_abs_error"] == 0.5
    assert metrics["relative_l2"] == pytest.approx(0.5 / np.sqrt(5))
