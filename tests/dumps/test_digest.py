"""Content ids as agents make them: by their golden file, by whole numbers in Python, and the same in parts and by threads."""

import itertools
import json
import mmap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from precflow.dumps import digest
from precflow.dumps.digest import BLOCK_BYTES, BLOCK_WORDS, content_id, content_ids, id_of_lanes, lanes
from precflow.dumps.dtypes import NUMPY_DTYPES

GOLDEN = json.loads((Path(__file__).parents[1] / "agent" / "golden" / "digest.json").read_text(encoding="utf-8"))
WORD = 0xFFFFFFFF


def mixed(value):
    value &= WORD
    value = ((value ^ (value >> 16)) * 0x7FEB352D) & WORD
    value = ((value ^ (value >> 15)) * 0x846CA68B) & WORD
    return value ^ (value >> 16)


def by_definition(data):
    """Lanes in plain whole numbers, from the text of the contract."""
    data += bytes(-len(data) % 4)
    found = []
    for start in range(0, len(data), 4 * BLOCK_WORDS):
        block, sums = data[start : start + 4 * BLOCK_WORDS], [0, 0]
        for place in range(len(block) // 4):
            word = int.from_bytes(block[4 * place : 4 * place + 4], "little")
            first, second = mixed(place + 0x243F6A88), mixed(place + 0x85A308D3)
            term = ((word ^ first) * 0x9E3779B1) & WORD
            term ^= term >> 16
            sums[0] += term * (first | 1)
            sums[1] += term * second
        found.append([each & WORD for each in sums])
    return found


def bytes_of(case):
    if "hex" in case:
        return bytes.fromhex(case["hex"])
    size = int(np.prod(case["shape"], dtype=np.int64)) * NUMPY_DTYPES[case["dtype"]].itemsize
    words = [mixed(case["mix32"] + place) for place in range(-(-size // 4))]
    return np.array(words, "<u4").tobytes()[:size]


def some_bytes(size, seed=3):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


@pytest.fixture(params=[False, True], ids=["numpy", "compiled"])
def compiled(request):
    if request.param:
        pytest.importorskip("numba")
        assert digest._find_compiled() is not None
    return request.param


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['dtype']}{case['shape']}")
def test_golden(case, compiled):
    data = np.frombuffer(bytes_of(case), np.uint8)
    found = lanes(data, compiled=compiled)
    assert found.tolist() == case["lanes"]
    assert id_of_lanes(case["dtype"], case["shape"], found) == case["content"]
    assert content_id(data.view(NUMPY_DTYPES[case["dtype"]]).reshape(case["shape"])) == case["content"]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 77, 4096, 4097])
def test_definition(size, compiled):
    data = some_bytes(size)
    assert lanes(data, compiled=compiled).tolist() == by_definition(data.tobytes())


@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_bytes_may_lie_anywhere(offset, compiled):
    data = some_bytes(BLOCK_BYTES + 100)
    there = np.zeros(data.size + 8, np.uint8)
    there[offset : offset + data.size] = data
    assert np.array_equal(lanes(there[offset : offset + data.size], compiled=compiled), lanes(data, compiled=False))


def test_parts_that_start_with_a_block_make_the_whole(compiled):
    data = some_bytes(70 * BLOCK_BYTES + 6)
    whole = lanes(data, compiled=compiled)
    cuts = [0, BLOCK_BYTES, 4 * BLOCK_BYTES, 65 * BLOCK_BYTES, data.size]
    parts = [data[start:stop] for start, stop in itertools.pairwise(cuts)]
    with ThreadPoolExecutor(4) as pool:
        together = np.concatenate(list(pool.map(lambda part: lanes(part, compiled=compiled), parts)))
    assert np.array_equal(whole, together)
    assert whole.shape == (71, 2)


def test_every_bit_every_place_and_every_swap_counts():
    data = some_bytes(2 * BLOCK_BYTES)
    known = {lanes(data).tobytes()}
    for place in (0, 1, 4095, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES - 1):
        for bit in range(8):
            changed = data.copy()
            changed[place] ^= 1 << bit
            known.add(lanes(changed).tobytes())
    words = data.view(np.uint32)
    for first, second in ((0, 1), (7, 16000), (3, BLOCK_WORDS + 3)):
        swapped = words.copy()
        swapped[[first, second]] = words[[second, first]]
        known.add(lanes(swapped.view(np.uint8)).tobytes())
    assert len(known) == 1 + 6 * 8 + 3


@pytest.mark.parametrize("step", [1, 2, 5, 64])
def test_equally_spaced_steps_in_the_last_place_do_not_cancel(step):
    """A sum that weighs words by their place alone misses most of these patterns."""
    random = np.random.default_rng(step)
    values = random.standard_normal(4096).astype(np.float32)
    before = lanes(values.view(np.uint8)).tolist()
    for _ in range(50):
        places = random.choice(4096 // 4, 3, replace=False)[0] + np.arange(4) * step
        changed = values.view(np.int32).copy()
        changed[places] += np.array([1, -1, -1, 1], np.int32)
        assert lanes(changed.view(np.uint8)).tolist() != before


def test_type_and_shape_belong_to_the_content():
    values = np.zeros((2, 3), np.float32)
    ids = {content_id(values), content_id(values.T.copy()), content_id(values.reshape(-1)), content_id(values.view(np.int32))}
    assert len(ids) == 4
    assert content_id(values.T) == content_id(np.ascontiguousarray(values.T))
    assert content_id(np.float32(0).reshape(())) != content_id(np.zeros(1, np.float32))


def test_a_mapped_file_is_read_without_being_held(tmp_path):
    path = tmp_path / "bytes"
    data = some_bytes(20 * BLOCK_BYTES)
    data.tofile(path)
    mapped = np.memmap(path, np.uint8, "r").view(np.ndarray)
    assert isinstance(mapped.base.base, mmap.mmap)
    assert np.array_equal(lanes(mapped), lanes(data))
    assert np.array_equal(mapped, data)


def test_a_process_with_much_to_read_compiles(monkeypatch):
    asked = []
    monkeypatch.setattr(digest, "_find_compiled", lambda: asked.append(1))
    monkeypatch.setattr(digest, "_read", 0)
    monkeypatch.setattr(digest, "WORTH_COMPILING", 300)
    for _ in range(3):
        lanes(some_bytes(120))
    assert len(asked) == 1


def test_a_compiled_form_that_is_wrong_is_not_taken(monkeypatch):
    lanes_module = pytest.importorskip("precflow.dumps.compiled.lanes")
    monkeypatch.setattr(lanes_module, "measure_lanes", lambda words, weights, blocks: None)
    assert digest._load_and_test.__wrapped__() is None

    def broken(words, weights, blocks):
        raise RuntimeError("no LLVM for this processor")

    monkeypatch.setattr(lanes_module, "measure_lanes", broken)
    assert digest._load_and_test.__wrapped__() is None


def test_without_numba_numpy_does_it(monkeypatch):
    monkeypatch.setattr(digest.importlib.util, "find_spec", lambda name: None)
    assert digest._load_and_test.__wrapped__() is None


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 64, 4097, BLOCK_BYTES - 1, BLOCK_BYTES])
def test_ids_of_many_tensors_at_once_are_those_of_each(size):
    tensors = some_bytes(5 * size).reshape(5, size)
    assert content_ids("uint8", (size,), tensors) == [content_id(tensor) for tensor in tensors]
    assert content_ids("uint8", (size,), tensors[::-2]) == [content_id(tensor) for tensor in tensors[::-2]]


def test_ids_of_many_tensors_have_type_and_shape_in_them():
    tensors = some_bytes(4 * 24).reshape(4, 24)
    for dtype, shape in (("float32", (2, 3)), ("float64", (3,)), ("bfloat16", (3, 2, 2)), ("uint8", (4, 6))):
        singly = [content_id(tensor.view(NUMPY_DTYPES[dtype]).reshape(shape)) for tensor in tensors]
        assert content_ids(dtype, shape, tensors) == singly
