import numpy as np
import pytest

from precflow.comparison.detail.quantiles import SHARES, compare_quantiles

VALUES = np.random.default_rng(5).standard_normal(200_000)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_one_rounding_lies_on_the_line(dtype):
    """The reference in float64 and the target rounded once: the errors are those of a rounding."""
    found = compare_quantiles(VALUES, VALUES.astype(dtype))
    inner = slice(3, -2)  # of the smallest ones the share of exact values is large, of the largest there are few
    assert np.array(found.found)[inner] == pytest.approx(np.array(found.own)[inner], rel=0.05)


def test_a_larger_error_lies_above_it_by_its_factor():
    found = compare_quantiles(VALUES.astype(np.float32), (VALUES * (1 + 2.0**-20)).astype(np.float32))
    assert found.median_found == pytest.approx(np.median(np.abs(VALUES)) * 2.0**-20, rel=0.02)
    assert found.median_found > 30 * found.median_own


def test_a_few_wrong_elements_are_seen_at_the_end_alone():
    target = VALUES.astype(np.float32)
    target[:40:4] += 100
    found = compare_quantiles(VALUES, target)
    assert found.found[-1] > 99
    assert found.found[SHARES.index(0.99)] == pytest.approx(found.own[SHARES.index(0.99)], rel=0.1)


def test_there_are_none_of_integers_of_equal_tensors_and_of_none_that_is_finite():
    whole = np.arange(5)
    assert compare_quantiles(whole, whole + 1) is None
    assert compare_quantiles(VALUES, VALUES) is None
    assert compare_quantiles(np.full(3, np.nan), np.zeros(3)) is None
    assert compare_quantiles(np.zeros(0), np.zeros(0)) is None
