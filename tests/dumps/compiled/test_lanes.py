"""The compiled lanes of content ids against NumPy's, word by word."""

import numpy as np
import pytest

from precflow.dumps.digest import BLOCK_WORDS, lanes, weights

compiled = pytest.importorskip("precflow.dumps.compiled.lanes", reason="needs extra `fast`")
RNG = np.random.default_rng(2)


def made(words):
    blocks = np.zeros((-(-words.size // BLOCK_WORDS), 2), np.uint32)
    compiled.measure_lanes(words, weights(), blocks)
    return blocks


def random_words(size):
    words = RNG.integers(0, 1 << 32, size, np.uint32)
    words.flags.writeable = False
    return words


def by_numpy(words):
    return lanes(words.view(np.uint8), compiled=False)


@pytest.mark.parametrize("size", [0, 1, 77, BLOCK_WORDS - 1, BLOCK_WORDS, BLOCK_WORDS + 1, 3 * BLOCK_WORDS + 5])
def test_a_whole_tensor(size):
    words = random_words(size)
    assert np.array_equal(made(words), by_numpy(words))


@pytest.mark.parametrize("value", [0, 1, 0xFFFFFFFF, 0x80000000])
def test_extreme_words_wrap_as_they_should(value):
    words = np.full(BLOCK_WORDS + 3, value, np.uint32)
    words.flags.writeable = False
    assert np.array_equal(made(words), by_numpy(words))


def test_one_changed_bit_anywhere_changes_both_lanes():
    words = random_words(1000)
    before = made(words)
    for place, bit in ((0, 0), (1, 31), (500, 15), (999, 16)):
        other = words.copy()
        other[place] ^= np.uint32(1 << bit)
        other.flags.writeable = False
        assert (made(other) != before).all()


def test_both_tensors_at_once_are_each_of_them_alone():
    numba = pytest.importorskip("numba")
    first, second, size = random_words(700), random_words(700), 700

    @numba.njit
    def together(words, others, table, blocks, others_blocks):
        compiled.add_lanes_of_both(words, others, 0, 300, table, blocks[0], others_blocks[0])
        compiled.add_lanes_of_both(words, others, 300, size, table, blocks[0], others_blocks[0])

    blocks = np.zeros((2, 1, 2), np.uint32)
    together(first, second, weights(), blocks[0], blocks[1])
    assert np.array_equal(blocks[0], by_numpy(first))
    assert np.array_equal(blocks[1], by_numpy(second))
