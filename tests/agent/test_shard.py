import hashlib
import json

import pytest
import safetensors.torch
import torch

from precflow.agent.contract import DTYPE_OF_SAFETENSORS
from precflow.agent.digest import content_id
from precflow.agent.shard import entry, header_bytes, storable, write_shard

TENSORS = [
    torch.arange(6, dtype=torch.float32).reshape(2, 3).t(),
    torch.tensor([1.5, -2.5], dtype=torch.bfloat16),
    torch.tensor([[0.1], [65504.0]], dtype=torch.float16),
    torch.tensor([True, False, True]),
    torch.tensor(2**60),
    torch.tensor(3.5, dtype=torch.float64),
    torch.empty(0, 4),
    torch.tensor([1, 2, 3], dtype=torch.uint8),
]


def entries(tensors, *, copied=True):
    return [entry(content_id(tensor), tensor, copied=copied) for tensor in tensors]


@pytest.mark.parametrize("copied", [True, False])
def test_the_real_library_reads_what_was_written(tmp_path, copied):
    path = str(tmp_path / "a.safetensors")
    write_shard(path, entries(TENSORS, copied=copied))
    found = safetensors.torch.load_file(path)
    assert sorted(found) == sorted(content_id(tensor) for tensor in TENSORS)
    for tensor in TENSORS:
        same = found[content_id(tensor)]
        assert same.dtype == tensor.dtype
        assert same.shape == tensor.shape
        assert torch.equal(same, tensor)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_goes_through_the_real_library(tmp_path, name):
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"this torch has no {name}")
    tensor = torch.tensor([0, 56, 200], dtype=torch.uint8).view(dtype)
    write_shard(str(tmp_path / "a"), entries([tensor]))
    found = safetensors.torch.load_file(str(tmp_path / "a"))[content_id(tensor)]
    assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))


def test_every_type_of_the_contract_is_stored_by_its_width(tmp_path):
    known = [getattr(torch, name) for name in DTYPE_OF_SAFETENSORS.values() if hasattr(torch, name)]
    tensors = [torch.ones(3, dtype=torch.float32).to(dtype) for dtype in known]
    path = tmp_path / "a"
    write_shard(str(path), entries(tensors))
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    places = json.loads(data[8 : 8 + length].decode())
    assert all(storable(dtype) for dtype in known)
    assert length % 8 == 0
    for tensor in tensors:
        begin, end = places[content_id(tensor)]["data_offsets"]
        assert end - begin == 3 * tensor.element_size()
        assert begin % tensor.element_size() == 0
    assert len(data) == 8 + length + sum(3 * tensor.element_size() for tensor in tensors)


def test_size_and_checksum_are_those_of_the_file(tmp_path):
    path = tmp_path / "a"
    written = write_shard(str(path), entries(TENSORS))
    data = path.read_bytes()
    assert written.bytes == len(data)
    assert written.blake2b == hashlib.blake2b(data, digest_size=16).hexdigest()


def test_a_copied_entry_keeps_the_values_of_its_moment(tmp_path):
    tensor = torch.ones(2)
    kept = entry("a", tensor, copied=True)
    tensor.zero_()
    write_shard(str(tmp_path / "a"), [kept])
    assert torch.equal(safetensors.torch.load_file(str(tmp_path / "a"))["a"], torch.ones(2))


def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path):
    def broken():
        yield b"\0" * 4
        raise OSError(28, "No space left on device")

    failing = entries([torch.ones(4)])[0]._replace(pieces=broken())
    with pytest.raises(OSError, match="No space"):
        write_shard(str(tmp_path / "a"), [failing])
    assert list(tmp_path.iterdir()) == []


def test_unknown_types_are_not_storable():
    assert not storable(torch.complex32)
    assert not storable(torch.qint8)


def test_header_of_nothing_is_an_empty_object():
    assert json.loads(header_bytes([])[8:].decode()) == {}
