import numpy as np
import pytest
import torch

from precflow.agent.measure import checksums, scratch
from precflow.agent.measure.checksums import (
    BLOCK,
    block_checksums,
    mix32,
    mix32_of,
    row_checksums,
    shift_right,
    to_int32,
    words_of,
    wraps,
)


def mixed(x):
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def expected(data):
    """The definition, written down a second time with unsigned numbers."""
    data += bytes(-len(data) % 4)
    words = np.frombuffer(data, "<u4")
    found = []
    for start in range(0, len(words), BLOCK):
        block = words[start : start + BLOCK]
        place = np.arange(len(block), dtype=np.uint32)
        first, second = mixed(place + np.uint32(0x243F6A88)), mixed(place + np.uint32(0x85A308D3))
        y = (block ^ first) * np.uint32(0x9E3779B1)
        y ^= y >> 16
        found += [int((y * weight).sum(dtype=np.uint32)) for weight in (first | np.uint32(1), second)]
    return found


def unsigned(found):
    return [value & 0xFFFFFFFF for value in found.flatten().tolist()]


def numbers(count, seed=0):
    return torch.randint(-(1 << 31), (1 << 31) - 1, (count,), dtype=torch.int32, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("count", [0, 1, 2, 77, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 3])
def test_blocks_are_summed_as_defined(count):
    tensor = numbers(count)
    found = block_checksums(tensor)
    assert found.shape == (-(-count // BLOCK), 2)
    assert unsigned(found) == expected(tensor.numpy().tobytes())


@pytest.mark.parametrize("size", [1, 2, 3, 5, 4 * BLOCK - 1, 4 * BLOCK + 2])
@pytest.mark.parametrize("offset", [0, 1, 2])
def test_bytes_anywhere_in_memory_and_of_any_number(size, offset):
    tensor = torch.randint(0, 256, (size + offset,), dtype=torch.uint8)[offset:]
    assert unsigned(block_checksums(tensor)) == expected(tensor.numpy().tobytes())


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "int64", "int16", "int8", "bool", "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(), (3, 0), (5,), (2, 3, 4)])
def test_types_and_shapes(name, shape):
    tensor = (torch.rand(shape) * 10).to(getattr(torch, name))
    assert unsigned(block_checksums(tensor)) == expected(tensor.numpy().tobytes())


VIEWS = [
    lambda x: x.t(),
    lambda x: x[:, ::2],
    lambda x: x[:, 1:],
    lambda x: x.diagonal(),
    lambda x: x[0].expand(5, x.shape[1]),
    lambda x: x.flip(0).conj(),
    lambda x: torch.complex(x, x + 1).conj(),
    lambda x: torch.complex(x, x + 1).conj().imag,
    lambda x: torch.complex(x, x + 1).conj().t(),
]


@pytest.mark.parametrize("piece", [32, 300, checksums.PIECE_BYTES])
@pytest.mark.parametrize("view", VIEWS)
def test_views_are_read_in_pieces_of_any_size(view, piece, monkeypatch):
    tensor = view(torch.rand(600, 130))
    whole = expected(tensor.resolve_conj().resolve_neg().contiguous().numpy().tobytes())
    monkeypatch.setattr(checksums, "PIECE_BYTES", piece if tensor.numel() < 1000 else max(piece, 4099))
    assert unsigned(block_checksums(tensor)) == whole


def test_rows_are_as_if_each_were_alone():
    words = numbers(40 * 1000).view(40, 1000)
    assert torch.equal(row_checksums(words), torch.cat([block_checksums(row) for row in words]))


def test_many_rows_at_once_are_cut_to_the_memory_there_is():
    words = numbers(70000 * 8).view(70000, 8)
    found = row_checksums(words)
    assert torch.equal(found[[0, 12345, 69999]], row_checksums(words[[0, 12345, 69999]]))


def test_threads_and_order_do_not_count():
    tensor, before = numbers(9 * BLOCK + 5), torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(block_checksums(tensor))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


@pytest.mark.parametrize("pattern", [(1, -1, -1, 1), (1, -2, 1), (1, -3, 3, -1), (-(1 << 31), -(1 << 31))])
def test_equally_spaced_steps_of_an_ulp_and_flipped_signs_are_seen(pattern):
    """What a weighted sum does not see: 87 to 93 of 100 such differences leave it as it was."""
    generator = torch.Generator().manual_seed(1)
    missed = 0
    for trial in range(200):
        words = torch.randn(4096, generator=generator).view(torch.int32)
        start, step = (int(torch.randint(1, 900, (1,), generator=generator)) for _ in range(2))
        other = words.clone()
        places = [start + step * each for each in range(len(pattern))]
        other[places] += torch.tensor(pattern, dtype=torch.int32)
        pair = block_checksums(words)[0] == block_checksums(other)[0]
        missed += int(pair[0]) + int(pair[1])
        assert not pair.all(), trial
    assert missed == 0


@pytest.mark.parametrize(
    "change",
    [lambda x: x.flip(0), lambda x: -x, lambda x: x * 2, lambda x: torch.roll(x, 1), lambda x: x[torch.randperm(4096)]],
)
def test_whole_tensors_that_changed_are_seen(change):
    for seed in range(20):
        tensor = torch.randn(4096, generator=torch.Generator().manual_seed(seed))
        both = torch.stack([block_checksums(tensor), block_checksums(change(tensor))])
        assert bool((both[0] != both[1]).all())


def test_without_wrapping_there_is_no_content_id(monkeypatch):
    monkeypatch.setattr(checksums, "_wrapping", {})
    monkeypatch.setattr(checksums, "_KNOWN_CHECKSUMS", (1, 2))
    with pytest.raises(RuntimeError, match="does not wrap"):
        wraps(torch.device("cpu"))


def test_what_a_device_cannot_do_the_host_does(monkeypatch):
    class Elsewhere:
        """A tensor on a device that saturates."""

        device = torch.device("meta")

        def detach(self):
            return self

        def cpu(self):
            return torch.arange(9, dtype=torch.int32)

    monkeypatch.setattr(checksums, "_wrapping", {torch.device("meta"): False, torch.device("cpu"): True})
    assert unsigned(block_checksums(Elsewhere())) == expected(np.arange(9, dtype="<i4").tobytes())


def test_a_processor_wraps():
    assert wraps(torch.device("cpu")) is True


def test_words_share_memory_where_they_can():
    tensor = torch.ones(4)
    assert words_of(tensor).data_ptr() == tensor.data_ptr()
    assert words_of(torch.tensor([1, 2, 3], dtype=torch.int8)).tolist() == [0x030201]
    assert words_of(torch.ones(5, dtype=torch.bool)[1:]).tolist() == [0x01010101]


def test_what_is_kept_between_calls_serves_in_and_out_of_inference_mode(monkeypatch):
    monkeypatch.setattr(checksums, "_tables", {})
    monkeypatch.setattr(scratch, "_thread", scratch._Thread())
    tensor = torch.arange(4.0)
    with torch.inference_mode():
        inside = torch.arange(4.0)
        assert unsigned(block_checksums(inside)) == expected(tensor.numpy().tobytes())
    assert unsigned(block_checksums(tensor)) == expected(tensor.numpy().tobytes())
    with torch.inference_mode():
        assert unsigned(block_checksums(tensor)) == expected(tensor.numpy().tobytes())


def test_the_hash_is_the_same_in_torch_and_in_python():
    places = [0, 1, 2, 65535, 1 << 20, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
    found = mix32(torch.tensor([to_int32(place) for place in places], dtype=torch.int32))
    assert found.dtype == torch.int32
    assert [value & 0xFFFFFFFF for value in found.tolist()] == [mix32_of(place) for place in places]


def test_the_hash_is_one_to_one():
    found = mix32(torch.arange(1 << 20, dtype=torch.int32))
    assert torch.unique(found).numel() == 1 << 20


def test_every_bit_of_the_hash_is_even_and_neighbours_are_apart():
    found = mix32(torch.arange(1 << 16, dtype=torch.int32))
    for bit in range(32):
        ones = ((found >> bit) & 1).float()
        assert abs(ones.mean() - 0.5) < 0.01
        assert abs((ones[1:] * ones[:-1]).mean() - 0.25) < 0.01


def test_shifting_brings_zeros_in():
    assert shift_right(torch.tensor([-1, -(1 << 31), 5], dtype=torch.int32), 16).tolist() == [0xFFFF, 0x8000, 0]
    assert shift_right(torch.tensor([-1], dtype=torch.int32), 15).tolist() == [0x1FFFF]
