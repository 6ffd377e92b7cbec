"""Ratios and blindness."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow.comparison.metrics import METRICS
from precflow.config.schema import Rule
from precflow.judgement.limits import Condition, conditions, family, is_blind, ratio


@pytest.mark.parametrize(
    ("metric", "value", "limit", "expected"),
    [
        ("relative_l2", 1.0, 4.0, 0.25),
        ("relative_l2", 0.0, 0.0, 0.0),
        ("relative_l2", 1e-300, 0.0, math.inf),
        ("relative_l2", math.inf, 1.0, math.inf),
        ("relative_l2", math.inf, math.inf, 1.0),
        ("relative_l2", math.nan, 1.0, math.inf),
        ("cosine_similarity", 0.5, 0.75, 2.0),
        ("cosine_similarity", 1.0, 1.0, 0.0),
        ("cosine_similarity", -1.0, 0.0, 2.0),
        ("cosine_similarity", 0.5, 1.0, math.inf),
        ("allclose_share", math.nan, 0.0, math.inf),
    ],
)
def test_ratio(metric, value, limit, expected):
    assert ratio(metric, value, limit) == expected


@given(st.sampled_from(sorted(METRICS)), st.floats(0, 1), st.floats(0, 1))
def test_a_ratio_above_one_is_exactly_a_broken_limit(metric, value, limit):
    kept = value >= limit if METRICS[metric].at_least else value <= limit
    rounding = abs(value - limit) < 1e-15
    assert (ratio(metric, value, limit) <= 1) == kept or rounding


@pytest.mark.parametrize(
    ("metric", "limit", "dtype", "expected"),
    [
        ("relative_l2", 0.1, "float32", True),
        ("relative_l2", 0.099, "float32", False),
        ("relative_l2", 0.1, "float16", False),
        ("relative_l2", 0.5, "bfloat16", True),
        ("cosine_similarity", 0.99, "float32", True),
        ("cosine_similarity", 0.99, "bfloat16", False),
        ("ulp_distance", 0.1 * 2**23, "float32", True),
        ("ulp_distance", 0.1 * 2**23, "float64", False),
        ("ulp_distance", 512.0, "float16", True),
        ("max_abs_error", 1e9, "float32", False),
        ("max_abs_error", math.inf, "float32", True),
        ("share_within_one_thousandth", 0.0, "float32", True),
        ("share_within_one_thousandth", 0.01, "float32", False),
    ],
)
def test_blind_limits(metric, limit, dtype, expected):
    assert is_blind(metric, limit, dtype) is expected


def test_conditions_are_the_limits_that_are_set():
    rule = Rule(match="a", relative_l2=0.5, cosine_similarity=0.0, because="x")
    assert conditions(rule, "a", "x") == [
        Condition("cosine_similarity", 0.0, "a", "x"),
        Condition("relative_l2", 0.5, "a", "x"),
    ]
    assert conditions(Rule(), "a") == []


def test_texts_and_families():
    assert Condition("cosine_similarity", 0.999, "tolerance").text == "cosine_similarity >= 0.999"
    assert Condition("relative_l2", 2**-16, "default").text == "relative_l2 <= 1.52588e-05"
    assert family("allclose_share_float16") == family("allclose_share")
    assert family("rmse") == "rmse"
