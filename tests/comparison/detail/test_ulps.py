import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow.comparison.detail.errors import UlpCounts, ulp_counts

DISTANCES = st.lists(st.one_of(st.integers(0, 9), st.integers(0, 2**32 - 1)), max_size=40)


@given(DISTANCES)
def test_every_distance_is_in_its_class(distances):
    rows = ulp_counts(np.array(distances, np.uint32)).rows()
    assert sum(count for _, _, count in rows) == len(distances)
    for low, high, count in rows:
        assert count == sum(low <= distance <= high for distance in distances)


@given(DISTANCES, st.integers(0, 40))
def test_parts_add_up(distances, cut):
    whole = np.array(distances, np.uint64)
    assert ulp_counts(whole[:cut]) + ulp_counts(whole[cut:]) == ulp_counts(whole)


@given(DISTANCES)
def test_the_median_is_in_its_class(distances):
    low, high = ulp_counts(np.array(distances, np.uint64)).median()
    middle = sorted(distances)[(len(distances) - 1) // 2] if distances else 0
    assert low <= middle <= high


@pytest.mark.parametrize("width", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_every_width_up_to_its_largest(width):
    found = ulp_counts(np.array([0, np.iinfo(width).max], width))
    assert found.counts[0] == 1
    assert found.counts[-1] == 1
    assert sum(found.counts) == 2


def test_no_element_has_no_class():
    assert ulp_counts(np.zeros(0, np.uint32)) == UlpCounts()
    assert UlpCounts().median() == (0, 0)
