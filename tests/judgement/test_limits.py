"""How much of a limit a record uses, exactly or within a range, and when a limit is blind."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow.config.schema import ToleranceRule
from precflow.judgement.limits import (
    Condition,
    describe_undecided,
    find_unavailable,
    is_blind,
    list_conditions,
    measure_uses,
    ratio,
)
from precflow.metrics import METRICS


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
    rule = ToleranceRule(match="a", relative_l2=0.5, cosine_similarity=0.0, because="x")
    assert list_conditions(rule, "a", "x") == [
        Condition("cosine_similarity", 0.0, "a", "x"),
        Condition("relative_l2", 0.5, "a", "x"),
    ]
    assert list_conditions(ToleranceRule(), "a") == []


def test_a_condition_is_written_with_its_direction():
    assert Condition("cosine_similarity", 0.999, "tolerance").text == "cosine_similarity >= 0.999"
    assert Condition("relative_l2", 2**-16, "default").text == "relative_l2 <= 1.52588e-05"


LIMIT = Condition("relative_l2", 1e-3, "default")
COSINE = Condition("cosine_similarity", 0.99, "tolerance")


def only(measure, condition=LIMIT):
    (use,) = measure_uses(measure, [condition])
    return use


def test_an_exact_number_is_its_own_range(measure):
    use = only(measure(relative_l2=5e-4))
    assert (use.share, use.best, use.worst, use.guessed, use.bounded) == (0.5, 0.5, 0.5, False, False)


@pytest.mark.parametrize(
    ("value", "fails", "is_undecided"),
    [(0.74e-3, False, False), (0.76e-3, False, True), (1.32e-3, False, True), (1.34e-3, True, False)],
)
def test_an_estimate_decides_nothing_near_its_limit(measure, value, fails, is_undecided):
    use = only(measure(relative_l2=value, ranges={"relative_l2": (0.75 * value, value / 0.75)}))
    assert (use.fails, use.is_undecided, use.guessed, use.value) == (fails, is_undecided, True, value)


def test_of_a_metric_that_is_only_bounded_the_better_end_is_told(measure):
    use = only(measure(metrics={}, ranges={"relative_l2": (2e-3, 2.0)}))
    assert (use.value, use.fails, use.bounded) == (2e-3, True, True)
    use = only(measure(metrics={}, ranges={"cosine_similarity": (-1.0, 0.98)}), COSINE)
    assert (use.value, use.fails, use.bounded) == (0.98, True, True)


def test_at_least_metrics_are_worst_at_their_lower_end(measure):
    use = only(measure(metrics={"cosine_similarity": 0.995}, ranges={"cosine_similarity": (0.985, 0.999)}), COSINE)
    assert (use.best, use.worst) == pytest.approx((0.1, 1.5))
    assert use.is_undecided


def test_what_cannot_be_had_is_lacking_and_what_has_no_meaning_is_not(measure):
    record = measure(metrics={}, absent={"relative_l2": "needs single elements"})
    assert measure_uses(record, [LIMIT, COSINE]) == []
    assert find_unavailable(record, [LIMIT, COSINE]) == [LIMIT]


def test_an_open_condition_in_words(measure):
    near = measure(relative_l2=1e-3, evidence="sketch", ranges={"relative_l2": (7.5e-4, 1.3e-3)})
    assert (
        describe_undecided(only(near), near)
        == "relative_l2 is about 0.001 by its sketch, too near to its limit 0.001 (default) to decide"
    )
    wide = measure(metrics={}, evidence="statistics", share=0.5, ranges={"relative_l2": (0.0, 2.0)})
    assert "between 0 and 2 by its statistics of 0.5 of its elements" in describe_undecided(only(wide), wide)


def test_a_range_without_an_upper_end_is_open(measure):
    use = only(measure(metrics={}, ranges={"relative_l2": (0.0, math.inf)}))
    assert (use.best, use.worst, use.is_undecided) == (0.0, math.inf, True)
