"""Sketches in NumPy: linear, and right about structured differences, not only about noise."""

import numpy as np
import pytest
from sketches import make_sketch

from precflow.comparison.estimated.sketch import (
    BLOCK,
    BUCKETS,
    DECISIVE,
    estimate_norm,
    mix32,
    sketch_block,
)

ROOT_MEAN_SQUARE_ERROR = 1 / (2 * BUCKETS) ** 0.5  # of an estimated norm, relative to it: 3.1 %
PATTERNS = (
    "noise",
    "constant",
    "one row",
    "one column",
    "one column, constant",
    "one head",
    "two rows swapped",
    "every 77th row",
    "equal rows",
    "equal columns",
    "one factor",
    "checkerboard",
    "plus minus minus plus",
    "plus one minus two plus one",
    "waves along rows",
    "one per cent",
    "last half",
)


def difference(pattern, rng, rows, columns):
    """Return a difference of two tensors with a structure that badly chosen buckets or signs are blind to."""
    changed = np.zeros((rows, columns))
    noise = rng.standard_normal((rows, columns))
    spaced = np.resize([1.0, -2.0, 1.0], (rows, len(range(0, columns, 7))))
    if pattern == "two rows swapped":
        swapped = noise.copy()
        swapped[[3, rows - 5]] = swapped[[rows - 5, 3]]
        return swapped - noise
    parts = {
        "one row": (rng.integers(rows), noise[0]),
        "one column": ((slice(None), rng.integers(columns)), noise[:, 0]),
        "one column, constant": ((slice(None), rng.integers(columns)), 1.0),
        "one head": ((slice(None), slice(64, 128)), noise[:, :64]),
        "every 77th row": (slice(None, None, 77), noise[::77]),
        "plus one minus two plus one": ((slice(None), slice(None, None, 7)), spaced),
        "last half": (slice(rows // 2, None), noise[rows // 2 :]),
    }
    if pattern in parts:
        where, values = parts[pattern]
        changed[where] = values
        return changed
    return {
        "noise": noise,
        "constant": np.ones_like(noise),
        "equal rows": np.tile(noise[0], (rows, 1)),
        "equal columns": np.tile(noise[:, :1], (1, columns)),
        "one factor": noise * 1e-3,
        "checkerboard": np.indices(noise.shape).sum(axis=0) % 2 * 2.0 - 1,
        "plus minus minus plus": np.resize([1.0, -1.0, -1.0, 1.0], noise.shape),
        "waves along rows": np.sin(np.arange(noise.size) * 2 * np.pi / columns).reshape(noise.shape),
        "one per cent": noise * (rng.random(noise.shape) < 0.01),
    }[pattern]


def errors(pattern, seeds=8):
    found = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        rows, columns = int(rng.integers(150, 400)), int(rng.choice([300, 512, 640, 768, 1024]))
        wrong = difference(pattern, rng, rows, columns)
        found.append(estimate_norm(make_sketch(wrong.reshape(-1))) / np.linalg.norm(wrong) - 1)
    return np.array(found)


def test_the_norm_of_seventeen_structured_differences_is_estimated_within_the_stated_error():
    found = {pattern: errors(pattern) for pattern in PATTERNS}
    assert len(found) == 17
    worst = {pattern: float(np.abs(one).max()) for pattern, one in found.items()}
    everything = np.concatenate(list(found.values()))
    assert np.sqrt(np.mean(everything**2)) <= 1.25 * ROOT_MEAN_SQUARE_ERROR
    assert max(worst.values()) <= 5 * ROOT_MEAN_SQUARE_ERROR, worst
    assert max(worst.values()) < 1 - DECISIVE


def test_a_sketch_is_linear():
    rng = np.random.default_rng(0)
    one, other = rng.standard_normal((2, 3 * BLOCK + 17))
    assert make_sketch(one) - make_sketch(other) == pytest.approx(make_sketch(one - other), abs=1e-9)
    assert make_sketch(np.zeros(5)) == pytest.approx(np.zeros(BUCKETS))
    assert make_sketch(np.zeros(0)).shape == (BUCKETS,)


def test_a_sketch_is_the_sum_of_its_blocks_and_each_block_has_other_signs():
    values = np.random.default_rng(1).standard_normal(2 * BLOCK)
    first, second = sketch_block(values[:BLOCK], 0), sketch_block(values[BLOCK:], 1)
    assert first + second == pytest.approx(make_sketch(values))
    assert estimate_norm(sketch_block(values[:BLOCK], 0) - sketch_block(values[:BLOCK], 1)) > estimate_norm(first) / 2


def test_one_element_is_known_exactly_by_bucket_and_sign():
    values = np.zeros(2 * BUCKETS)
    values[BUCKETS + 3] = -2.5
    found = make_sketch(values)
    assert np.flatnonzero(found).tolist() == [3]
    assert abs(found[3]) == 2.5


def test_the_hash_is_that_of_the_agents():
    assert mix32(np.array([0, 1], np.uint32)).tolist() == [0, 0x688990C0]


def test_a_norm_neither_overflows_nor_vanishes():
    assert estimate_norm(np.array([3e200, 4e200])) == pytest.approx(5e200)
    assert estimate_norm(np.array([3e-300, 4e-300])) == pytest.approx(5e-300)
    assert estimate_norm(np.zeros(0)) == 0.0
    assert estimate_norm(np.array([np.inf, 1.0])) == np.inf
