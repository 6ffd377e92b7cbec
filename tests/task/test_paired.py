"""Paired tests and smallest effects, each against SciPy or by trying it out."""

import numpy as np
import pytest
from scipy import stats

from precflow.task import paired


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 8, 31, 200, 500])
@pytest.mark.parametrize("probability", [0.8, 0.95, 0.99])
def test_students_quantiles_are_scipys(freedom, probability):
    near = 1e-9 if freedom <= 200 else 5e-3  # beyond, the normal distribution stands for it
    assert paired.student_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=near)


@pytest.mark.parametrize(("hits", "count", "share"), [(0, 5, 0.1), (3, 10, 0.2), (50, 1000, 0.04), (7, 7, 0.9), (8, 7, 0.9)])
def test_the_binomial_tail_is_scipys(hits, count, share):
    assert paired.count_at_least(hits, count, share) == pytest.approx(stats.binom.sf(hits - 1, count, share), rel=1e-9)


@pytest.mark.parametrize("size", [5, 9, 14])
def test_few_samples_have_all_their_signs_tried(size):
    values = np.random.default_rng(size).normal(0.4, 1.0, size)
    exact = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", alternative="greater", n_resamples=np.inf, vectorized=False
    )
    assert paired.flip_signs(values) == pytest.approx(exact.pvalue)


@pytest.mark.parametrize("size", [40, 2000])
def test_more_samples_come_near_the_t_test(size):
    values = np.random.default_rng(size).normal(1.6 / np.sqrt(size), 1.0, size)
    assert paired.flip_signs(values) == pytest.approx(stats.ttest_1samp(values, 0, alternative="greater").pvalue, abs=0.01)


def test_equal_margins_are_as_rare_as_all_signs_alike():
    assert [paired.flip_signs([0.1] * count) for count in (1, 4, 5)] == [0.5, 0.0625, 0.03125]
    assert paired.flip_signs([]) == paired.flip_signs([0.0, 0.0]) == 1.0


def test_a_share_of_zeros_and_ones_is_held_to_the_binomial_test():
    amounts = [1.0] * 2 + [0.0] * 98
    expected = stats.binomtest(2, 100, 0.1, alternative="less").pvalue
    assert paired.bound_share(amounts, 0.1) == pytest.approx(expected)


def test_the_bound_for_other_shares_is_never_below_the_binomial_test():
    for count in (10, 40):
        halves = [0.5] * 2 + [0.0] * (count - 2)  # the same mean as one 1
        assert paired.bound_share(halves, 0.2) >= paired.bound_share([1.0] + [0.0] * (count - 1), 0.2)


def test_no_sample_of_thirty_shows_that_less_than_one_percent_differ():
    assert paired.bound_share([0.0] * 30, 0.01) > 0.7
    assert paired.bound_share([], 0.01) == paired.bound_share([1.0], 0.5) == 1.0


def test_changes_are_held_to_mcnemars_exact_test():
    assert paired.compare_changes(9, 2) == pytest.approx(stats.binomtest(9, 11, 0.5, alternative="greater").pvalue)


def test_the_smallest_shift_is_seen_as_often_as_it_says():
    generator = np.random.default_rng(1)
    amounts = generator.normal(0, 1, 30)
    amounts = (amounts - amounts.mean()) / amounts.std(ddof=1)  # a scatter of exactly 1
    shift = paired.find_smallest_shift(amounts)
    draws = generator.normal(shift, 1, (4000, 30))
    seen = np.mean(stats.ttest_1samp(draws, 0, axis=1, alternative="greater").pvalue <= paired.LEVEL)
    assert seen == pytest.approx(paired.POWER, abs=0.03)


def test_the_smallest_share_is_seen_as_often_as_it_says():
    share = paired.find_smallest_share(100, paired.FEWEST)
    assert stats.binom.sf(paired.FEWEST - 1, 100, share) == pytest.approx(paired.POWER)
    assert 1 - stats.binom.pmf(0, 16, paired.find_smallest_share(16)) == pytest.approx(paired.POWER)


def test_what_cannot_be_known_is_none():
    assert paired.find_smallest_shift([1.0, 2.0, 3.0, 4.0]) is None  # too few
    assert paired.find_smallest_shift([0.3] * 20) is None  # nothing scatters
    assert paired.find_smallest_share(0) is None
