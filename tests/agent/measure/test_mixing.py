import torch

from precflow.agent.measure.checksums import mix32, mix32_of, shifted, signed


def test_the_hash_is_the_same_in_torch_and_in_python():
    places = [0, 1, 2, 65535, 1 << 20, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
    found = mix32(torch.tensor([signed(place) for place in places], dtype=torch.int32))
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
    assert shifted(torch.tensor([-1, -(1 << 31), 5], dtype=torch.int32), 16).tolist() == [0xFFFF, 0x8000, 0]
    assert shifted(torch.tensor([-1], dtype=torch.int32), 15).tolist() == [0x1FFFF]
