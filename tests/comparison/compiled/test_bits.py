"""Bit patterns as values: every one of the short types, and rounding as NumPy and ml_dtypes round."""

import ml_dtypes
import numba
import numpy as np
import pytest

from precflow.comparison.compiled import bits

EVERY = np.arange(1 << 16, dtype=np.uint16)
PATTERNS = {"float32": np.int32, "bfloat16": np.int16, "float16": np.uint16}
TYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


@numba.njit
def decoded(patterns, found):
    for i in range(patterns.size):
        found[i] = bits.decode(patterns[i])


@numba.njit
def exact(patterns, found):
    for i in range(patterns.size):
        found[i] = bits.exact(patterns[i])


@numba.njit
def ranks(patterns, partners, found):
    for i in range(patterns.size):
        found[i] = bits.ranked(patterns[i], partners[i])


@numba.njit
def distance(patterns, partners, found):
    for i in range(patterns.size):
        found[i] = bits.unranked(bits.decode(patterns[i]), patterns, i) - bits.unranked(bits.decode(partners[i]), partners, i)


@numba.njit
def fused(first, second, third):
    return bits.multiply_add(first, second, third)


@numba.njit
def kept(patterns, room, seen):
    whole = bits.decoded(patterns[3:9], room, seen)
    return whole[:6].copy(), bits.comparable(patterns, patterns), bits.comparable(patterns, whole)


def every(name):
    return EVERY.view(TYPES[name])


def patterns_of(values):
    name = values.dtype.name
    return values.view(PATTERNS[name])


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_finite_value_is_decoded_to_float32_s_bits(name):
    found = np.zeros(EVERY.size, np.int32)
    decoded(patterns_of(every(name)), found)
    expected = every(name).astype(np.float32)
    finite = np.isfinite(expected)
    assert np.array_equal(found[finite], expected[finite].view(np.int32))
    beyond = np.abs(found[~finite].view(np.float32)) >= 65536
    assert name == "bfloat16" or beyond.all(), "what is not finite in float16 is above all that is"


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_exact_values_are_infinite_and_nan_where_the_type_has_them(name):
    found = np.zeros(EVERY.size)
    exact(patterns_of(every(name)), found)
    with np.errstate(invalid="ignore"):
        expected = every(name).astype(np.float64)
    assert np.array_equal(found, expected, equal_nan=True)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_ranks_of_one_type_are_one_apart_for_neighbours_and_zeros_are_equal(name):
    values = np.unique(every(name)[np.isfinite(every(name).astype(np.float32))].astype(np.float32)).astype(TYPES[name])
    found = np.zeros(values.size, np.int64)
    ranks(patterns_of(values), patterns_of(values), found)
    assert np.array_equal(np.diff(found), np.ones(values.size - 1))
    zeros = np.array([0.0, -0.0], TYPES[name])
    ranks(patterns_of(zeros), patterns_of(zeros), found[:2])
    assert found[0] == found[1] == 0


@pytest.mark.parametrize("coarse", ["float16", "bfloat16"])
def test_a_finer_value_is_ranked_as_it_is_rounded(coarse):
    random = np.random.default_rng(4)
    fine = (random.standard_normal(20_000) * 10.0 ** random.uniform(-9, 4, 20_000)).astype(np.float32)
    partner = fine.astype(TYPES[coarse])
    finite = np.isfinite(partner.astype(np.float32))
    fine, partner = fine[finite], partner[finite]
    ours, theirs = np.zeros(fine.size, np.int64), np.zeros(fine.size, np.int64)
    ranks(patterns_of(fine), patterns_of(partner), ours)
    ranks(patterns_of(partner), patterns_of(fine), theirs)
    assert np.array_equal(ours, theirs)


def test_distances_of_one_type_and_sign_are_differences_of_patterns():
    for name in PATTERNS:
        values = np.array([1.0, 1.0, 3.5], TYPES[name])
        others = np.array([np.nextafter(values[0], TYPES[name](2)), 1.0, 3.5], TYPES[name])
        found = np.zeros(3, np.int64)
        distance(patterns_of(values), patterns_of(others), found)
        assert found.tolist() == [-1, 0, 0]


def test_a_fused_multiplication_rounds_once():
    first, third = np.float32(1 + 2.0**-12), np.float32(-1 - 2.0**-11)
    assert fused(first, first, third) == np.float32(2.0**-24)
    assert first * first + third == 0


@pytest.mark.parametrize("name", PATTERNS)
def test_a_segment_is_float32_s_bits_where_it_is_or_in_the_room(name):
    values = np.arange(1, 13).astype(TYPES[name])
    room = np.zeros(6, np.int32)
    segment, same, other = kept(patterns_of(values), room, room)
    assert np.array_equal(segment.view(np.float32), np.arange(4, 10, dtype=np.float32))
    assert same
    assert other == (name == "float32")
    assert room.any() == (name != "float32")


@pytest.mark.parametrize("name", ["decode", "ranked", "unranked", "decoded", "comparable", "exact"])
def test_what_is_compiled_cannot_be_called_from_python(name):
    arguments = [0] * getattr(bits, name).__code__.co_argcount
    with pytest.raises(RuntimeError, match="compiled helper"):
        getattr(bits, name)(*arguments)
