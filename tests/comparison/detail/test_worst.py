import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from precflow.comparison.detail.errors import MOST, Worst, first_places, worst

FIGURES = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, float("inf")]), max_size=60)


def oracle(figures):
    order = sorted((place for place, figure in enumerate(figures) if figure > 0), key=lambda place: (-figures[place], place))
    return Worst(tuple(figures[place] for place in order[:MOST]), tuple(order[:MOST]))


@given(FIGURES)
def test_the_largest_come_first_and_of_equals_the_first(figures):
    assert worst(np.array(figures), 0) == oracle(figures)


@given(FIGURES, st.integers(0, 60))
def test_parts_give_the_worst_of_the_whole(figures, cut):
    first = worst(np.array(figures[:cut]), 0)
    second = worst(np.array(figures[cut:]), len(figures[:cut]), first.floor)
    assert first + second == oracle(figures)


def test_a_floor_keeps_out_what_does_not_lie_above_it():
    assert worst(np.array([1.0, 2.0, 3.0]), 100, 2.0) == Worst((3.0,), (102,))
    assert worst(np.array([1.0]), 0, 1.0) == Worst()
    assert Worst((3.0,), (0,)).floor == 0


def test_the_first_places_of_a_mask():
    assert first_places(np.array([False, True, True, True]), 10, most=2) == (11, 12)
