import zlib

import pytest
import torch

from precflow.agent.contract import COMPRESSED_BLOCK
from precflow.agent.dump.compression import compress_entry
from precflow.agent.dump.shard import TensorEntry

NOISE = torch.Generator().manual_seed(1)


def entry(tensor):
    return TensorEntry("aa", tensor, private=False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "complex64", "int64", "bool", "float8_e5m2"])
def test_zeros_and_repetitions_get_smaller_in_every_type(dtype):
    made = compress_entry(entry(torch.ones(9000).to(getattr(torch, dtype))))
    assert made.key == "aa.zlib"
    assert made.private
    assert made.host.dtype == torch.uint8
    assert made.size < 2000
    assert made.size % 8 == 0


def test_bytes_of_equal_weight_stand_side_by_side():
    tensor = torch.arange(5000, dtype=torch.int32)
    plain = zlib.decompressobj().decompress(bytes(compress_entry(entry(tensor)).host.tolist()))
    raw = tensor.numpy().tobytes()
    assert plain == b"".join(raw[place::4] for place in range(4))


def test_noise_is_left_as_it_is():
    kept = entry(torch.randn(100_000, generator=NOISE))
    assert compress_entry(kept) is kept


def test_small_and_empty_tensors_are_left_as_they_are():
    for count in (0, 1, 1000):
        kept = entry(torch.zeros(count))
        assert compress_entry(kept) is kept


def test_the_first_block_decides_and_a_large_tensor_goes_block_by_block():
    zeros, noise = torch.zeros(COMPRESSED_BLOCK // 4), torch.randn(COMPRESSED_BLOCK // 4 + 3, generator=NOISE)
    assert compress_entry(entry(torch.cat([noise, zeros]))).key == "aa"
    made = compress_entry(entry(torch.cat([zeros, noise])))
    assert made.key == "aa.zlib"
    assert COMPRESSED_BLOCK // 2 < made.size < 1.1 * COMPRESSED_BLOCK


def test_half_zeros_after_a_relu_pay():
    tensor = torch.randn(200_000, generator=NOISE).relu()
    assert compress_entry(entry(tensor)).size < 0.75 * 4 * tensor.numel()


def test_a_strided_tensor_is_taken_in_order():
    tensor = torch.zeros(300, 200)
    tensor[:, 0] = torch.arange(300.0)
    one, other = compress_entry(entry(tensor.t())), compress_entry(entry(tensor.t().contiguous()))
    assert torch.equal(one.host, other.host)
