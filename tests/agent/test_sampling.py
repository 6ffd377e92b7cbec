import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precflow.agent.sampling import BLOCK, FEWEST, parse_slices, part_name, part_of

LARGE = FEWEST * BLOCK * 40
SHAPES = st.one_of(
    st.tuples(st.integers(1, 4 * LARGE)),
    st.tuples(st.integers(1, 64), st.integers(1, 2048), st.integers(1, 128)),
)


def kept(part, count):
    """Return the element numbers of a part whose axes are whole."""
    if part is None or part.blocks is None:
        return np.arange(count)
    blocks = [np.arange(number * BLOCK, (number + 1) * BLOCK) for number in part.blocks]
    return np.concatenate([*blocks, np.arange(part.tail, count)])


@settings(max_examples=120)
@given(SHAPES, st.floats(0.0005, 0.5))
def test_a_sample_is_ordered_distinct_of_its_share_and_reaches_the_last_element(shape, sample):
    count = math.prod(shape)
    part = part_of(shape, sample=sample)
    numbers = kept(part, count)
    assert np.all(np.diff(numbers) > 0)
    assert numbers[-1] == count - 1
    if part is None:
        assert count <= max(FEWEST, math.ceil(sample * (count // BLOCK))) * BLOCK + BLOCK
    else:
        assert part.share == pytest.approx(numbers.size / count)
        wanted = max(FEWEST, math.ceil(sample * (count // BLOCK)))
        assert wanted <= len(part.blocks) <= wanted + 1


@settings(max_examples=60)
@given(SHAPES, st.floats(0.0005, 0.5))
def test_a_sample_leaves_no_gap_of_two_strata(shape, sample):
    part = part_of(shape, sample=sample)
    if part is None:
        return
    whole = math.prod(shape) // BLOCK
    strata = max(FEWEST, math.ceil(sample * whole))
    gaps = np.diff([-1, *part.blocks, whole])
    assert gaps.max() <= 2 * math.ceil(whole / strata)


def test_a_sample_is_never_the_first_elements():
    part = part_of((LARGE * 10,), sample=0.01)
    middle = np.median(part.blocks) / (LARGE * 10 // BLOCK)
    assert 0.45 < middle < 0.55


def test_jitter_does_not_step_in_time_with_anything():
    gaps = set(np.diff(part_of((LARGE * 10,), sample=0.01).blocks).tolist())
    assert len(gaps) > 50


@pytest.mark.parametrize("size", [0, 1, BLOCK, FEWEST * BLOCK])
def test_small_tensors_are_kept_whole(size):
    assert part_of((size,), sample=0.001) is None


def test_five_gigabytes_are_sampled_in_no_time():
    part = part_of((5 * 10**9,), sample=0.01)
    assert part.share == pytest.approx(0.01, rel=0.01)
    assert part.tail == 5 * 10**9 // BLOCK * BLOCK


def test_another_process_keeps_the_same_places():
    code = "from precflow.agent.sampling import part_of; print(part_of((3, 77, 4099), sample=0.02))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert said == str(part_of((3, 77, 4099), sample=0.02))


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("[0, :, -1]", np.s_[0, :, -1]),
        ("0,::4", np.s_[0, ::4]),
        ("[..., :3]", np.s_[..., :3]),
        ("[1:5:2]", np.s_[1:5:2]),
        ("[2, ..., 0]", np.s_[2, ..., 0]),
        ("[-3:-1]", np.s_[-3:-1]),
    ],
)
def test_slices_mean_what_they_mean_in_numpy(text, index):
    array = np.arange(8 * 9 * 10).reshape(8, 9, 10)
    part = part_of(array.shape, text)
    assert np.array_equal(array[part.axes], array[index])
    assert part.shape == array[index].shape
    assert part.share == pytest.approx(array[index].size / array.size)


@pytest.mark.parametrize(
    ("text", "shape"), [("[0, :, -1]", (4, 4)), ("[9]", (4,)), ("[:]", (4,)), ("[4:4]", (4,)), ("[0]", ())]
)
def test_a_tensor_that_the_slices_do_not_fit_or_not_cut_is_kept_whole(text, shape):
    assert part_of(shape, text) is None


@pytest.mark.parametrize("text", ["", "[a]", "[::-1]", "[::0]", "[0, 1.5]", "[..., ...]", "[None]", "[0][1]"])
def test_what_is_no_index_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r"\[0, :, -1\]|at most one"):
        parse_slices(text)


def test_a_slice_can_be_sampled_again():
    part = part_of((4, LARGE), "[1]", sample=0.01)
    assert part.shape == (LARGE,)
    assert part.share == pytest.approx(len(part.blocks) * BLOCK / (4 * LARGE))


def test_names_tell_ways_of_taking_parts_apart_and_not_ways_of_writing_them():
    assert part_name("[0, :]", 1.0) == part_name("0,:", 1.0)
    assert len({part_name("[0]", 1.0), part_name("[1]", 1.0), part_name("[0]", 0.5), part_name("", 0.5)}) == 4


def test_the_places_are_those_of_the_written_contract():
    def mix32(value):
        value = ((value ^ value >> 16) * 0x7FEB352D) & 0xFFFFFFFF
        value = ((value ^ value >> 15) * 0x846CA68B) & 0xFFFFFFFF
        return value ^ value >> 16

    shape, whole = (3, 77, 4099), 3 * 77 * 4099 // BLOCK
    seed = 0x243F6A88
    for size in shape:
        seed = mix32(seed ^ size)
    edges = [stratum * whole // 64 for stratum in range(65)]
    wanted = [
        first + mix32((number + seed) & 0xFFFFFFFF) % (behind - first)
        for number, (first, behind) in enumerate(itertools.pairwise(edges))
    ]
    part = part_of(shape, sample=0.01)
    assert part.blocks == tuple(wanted)
    assert part.tail == whole * BLOCK
