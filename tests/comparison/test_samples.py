"""What a part of a tensor says about the whole."""

import math

import pytest

from precflow.comparison.measures import Measure
from precflow.comparison.metrics import METRICS
from precflow.comparison.samples import of_whole


def part(metrics, **facts):
    plain = Measure("a/forward.output.0", "a", "a", "", "module", "forward", 0, "paired")
    return Measure(**{**vars(plain), "metrics": metrics, "evidence": "tensors", "share": 0.25, **facts})


def test_a_whole_tensor_stays_as_it_is():
    for measure in (part({"relative_l2": 0.1}, share=1.0), part({"relative_l2": 0.0}, equal=True)):
        assert of_whole(measure) is measure


def test_means_are_estimates_and_maxima_lower_bounds():
    whole = of_whole(part({"relative_l2": 0.3, "max_abs_error": 2.0, "bitwise_equal": 0.0}))
    assert whole.metrics == {"relative_l2": 0.3, "bitwise_equal": 0.0}
    assert whole.ranges == {"relative_l2": pytest.approx((0.225, 0.4)), "max_abs_error": (2.0, math.inf)}


def test_shares_leave_the_elements_open_that_were_not_looked_at():
    whole = of_whole(part({"allclose_share": 1.0, "share_within_one_thousandth": 0.5}))
    assert whole.ranges["allclose_share"] == (0.25, 1.0)
    assert whole.ranges["share_within_one_thousandth"] == (0.125, 0.875)


def test_the_cosine_varies_with_the_square_of_the_error():
    low, high = of_whole(part({"cosine_similarity": 0.91})).ranges["cosine_similarity"]
    assert (1 - low, 1 - high) == pytest.approx((0.16, 0.050625))


def test_a_part_that_is_equal_where_the_whole_is_not_bounds_nothing_from_above():
    whole = of_whole(part({"relative_l2": 0.0, "max_abs_error": 0.0, "cosine_similarity": 1.0}))
    assert whole.ranges["relative_l2"] == (0.0, math.inf)
    assert whole.ranges["cosine_similarity"] == (-1.0, 1.0)


def test_ranges_of_a_part_become_wider():
    whole = of_whole(part({}, ranges={"relative_l2": (0.3, 0.6), "max_abs_error": (1.0, 2.0), "allclose_share": (0.5, 1.0)}))
    assert whole.ranges["relative_l2"] == pytest.approx((0.225, 0.8))
    assert whole.ranges["max_abs_error"] == (1.0, math.inf)
    assert whole.ranges["allclose_share"] == (0.125, 1.0)


@pytest.mark.parametrize("metric", METRICS)
def test_no_metric_of_a_part_is_an_exact_number_of_the_whole(metric):
    whole = of_whole(part({metric: 0.5}))
    assert (metric in whole.ranges) == (metric != "bitwise_equal")
