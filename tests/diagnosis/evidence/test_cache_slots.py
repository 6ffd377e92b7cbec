"""What is wrong in a cache, told by head and position."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precflow.diagnosis.evidence.cache_slots import describe_slots, is_pattern

RIGHT = np.random.default_rng(0).standard_normal((2, 3, 6, 8)).astype(np.float32)


def change(**places):
    """Return the cache with ``pN`` put at position N of all heads."""
    cache = RIGHT.copy()
    for name, value in places.items():
        cache[:, :, int(name[1:])] = value
    return cache


SHIFTED = np.concatenate([RIGHT[:, :, :2], RIGHT[:, :, 3:], RIGHT[:, :, -1:] * 0 + 9], axis=2)
ONE_HEAD = RIGHT.copy()
ONE_HEAD[:, 1, 4] = 0


@pytest.mark.parametrize(
    ("cache", "said"),
    [
        (RIGHT, ""),
        (RIGHT * np.float32(1.001), ""),  # rounding, of a coarse type
        (change(p2=0), "position 2 of all heads is zeros"),
        (change(p2=0, p3=0), "positions 2 to 3 of all heads are zeros"),
        (ONE_HEAD, "position 4 of head 1 is zeros"),
        (change(p5=RIGHT[:, :, 4]), "position 5 of all heads holds what belongs to position 4"),
        (np.roll(RIGHT, 1, axis=2)[:, :, :, :] * 1, "positions 0 to 5 of all heads differ"),
        (RIGHT[:, [0, 2, 1]], "heads 1 and 2 are exchanged"),
        (change(p1=3.0), "position 1 of all heads differs"),
        (RIGHT[:, :, :5], ""),
    ],
)
def test_slots_are_told(cache, said):
    assert describe_slots(RIGHT, cache) == said
    assert is_pattern(said) == (bool(said) and "differ" not in said)


def test_a_slot_that_was_dropped_moves_all_behind_it():
    dropped = np.concatenate([RIGHT[:, :, :2], RIGHT[:, :, 3:]], axis=2)
    assert (
        describe_slots(RIGHT[:, :, :5], dropped) == "positions 2 to 4 of all heads differ"
    )  # the last is none of the reference's
    longer = np.concatenate([RIGHT[:, :, :3], RIGHT[:, :, 2:5]], axis=2)
    assert describe_slots(RIGHT, longer) == "positions from 3 on of all heads hold what belongs 1 earlier"


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 2))
@settings(max_examples=40, deadline=None)
def test_whatever_slot_is_taken_from_another_is_named(place, source, head):
    cache = RIGHT.copy()
    cache[:, head, place] = RIGHT[:, head, source]
    said = describe_slots(RIGHT, cache)
    assert said == ("" if place == source else f"position {place} of head {head} holds what belongs to position {source}")
