import hashlib
import json

import pytest
import safetensors.torch
import torch

from precflow.agent.contract import DTYPE_OF_SAFETENSORS
from precflow.agent.dump import shard as shard_module
from precflow.agent.dump.shard import ShardFile, TensorEntry, storable
from precflow.agent.measure.content_id import content_id

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


def entries(tensors, *, private=False):
    return [TensorEntry(content_id(tensor), tensor, private) for tensor in tensors]


def write(path, wanted, limit=1 << 24):  # a sixteenth of it is reserved for the index
    shard = ShardFile(str(path), limit)
    for each in wanted:
        assert shard.fits(each)
        shard.add(each)
    return shard.close()


@pytest.fixture(params=[8 << 20, 0, 40], ids=["held", "streamed", "first held, then streamed"])
def held_bytes(request, monkeypatch):
    """Make shards small ones that wait in memory, or large ones that are written as tensors come."""
    monkeypatch.setattr(shard_module, "HELD_BYTES", request.param)
    return request.param


@pytest.mark.parametrize("private", [True, False])
def test_the_real_library_reads_what_was_written(tmp_path, private, held_bytes):
    path = str(tmp_path / "a.safetensors")
    write(path, entries(TENSORS, private=private))
    found = safetensors.torch.load_file(path)
    kept = [key for key in found if not key.startswith("padding-")]
    assert sorted(kept) == sorted(content_id(tensor) for tensor in TENSORS)
    assert kept == list(found) or held_bytes < 100
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
    write(tmp_path / "a", entries([tensor]))
    found = safetensors.torch.load_file(str(tmp_path / "a"))[content_id(tensor)]
    assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))


def test_every_type_of_the_contract_begins_at_a_multiple_of_its_width(tmp_path, held_bytes):
    known = [getattr(torch, name) for name in DTYPE_OF_SAFETENSORS.values() if hasattr(torch, name)]
    tensors = [torch.ones(3, dtype=torch.float32).to(dtype) for dtype in known]
    path = tmp_path / "a"
    write(path, entries(tensors))
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    places = json.loads(data[8 : 8 + length].decode())
    assert all(storable(dtype) for dtype in known)
    assert length % 8 == 0
    for tensor in tensors:
        begin, end = places[content_id(tensor)]["data_offsets"]
        assert end - begin == 3 * tensor.element_size()
        assert begin % min(tensor.element_size(), 8) == 0
    padding = sum(facts["shape"][0] for name, facts in places.items() if name.startswith("padding-"))
    assert len(data) == 8 + length + sum(3 * tensor.element_size() for tensor in tensors) + padding
    assert padding == 0 or held_bytes < 100


def test_size_and_checksum_are_those_of_file_and_index(tmp_path, held_bytes):
    path = tmp_path / "a"
    written = write(path, entries(TENSORS))
    data = path.read_bytes()
    index = data[: 8 + int.from_bytes(data[:8], "little")]
    assert written.bytes == len(data)
    assert written.index == hashlib.blake2b(index, digest_size=16).hexdigest()
    assert held_bytes < 100 or len(index) < 1000


def test_what_is_no_content_id_has_its_checksum_in_the_index(tmp_path, held_bytes):
    tensors = {"aa.sketch": torch.ones(1, 7), "aa": torch.zeros(5), "aa.rows": torch.arange(3.0)}
    write(tmp_path / "a", [TensorEntry(key, tensor, private=False) for key, tensor in tensors.items()])
    with safetensors.safe_open(str(tmp_path / "a"), "pt") as file:
        found = file.metadata()
    wanted = {
        key: hashlib.blake2b(bytes(tensors[key].numpy().data), digest_size=16).hexdigest() for key in ("aa.sketch", "aa.rows")
    }
    assert found == wanted


def test_the_values_of_the_moment_are_stored(tmp_path, held_bytes):
    tensor = torch.ones(20)
    shard = ShardFile(str(tmp_path / "a"), 1 << 20)
    shard.add(TensorEntry("a", tensor, private=False))
    tensor.zero_()
    shard.close()
    assert torch.equal(safetensors.torch.load_file(str(tmp_path / "a"))["a"], torch.ones(20))


def test_what_is_kept_is_copied_once_and_only_where_it_must_be():
    tensor = torch.ones(2)
    assert TensorEntry("a", tensor, private=True).freeze().host is tensor
    kept = TensorEntry("a", tensor, private=False).freeze()
    assert kept.host is not tensor
    assert kept.freeze() is kept


def test_a_shard_is_full_by_bytes_or_by_its_index(tmp_path, monkeypatch):
    one, large = TensorEntry("a", torch.ones(10), private=False), TensorEntry("b", torch.ones(100), private=False)
    shard = ShardFile(str(tmp_path / "a"), 100)
    assert shard.fits(large), "an empty shard takes what is larger than its limit"
    shard.add(one)
    assert shard.fits(one)
    assert not shard.fits(large)
    monkeypatch.setattr(shard_module, "HELD_BYTES", 0)
    monkeypatch.setattr(shard_module, "_LEAST_INDEX", 1000)
    shard = ShardFile(str(tmp_path / "b"), 1 << 20)
    count = 0
    while count == 0 or shard.fits(one):
        shard.add(TensorEntry(f"{count:032x}", torch.ones(64000), private=True))
        count += 1
    assert 1 < count < 20
    shard.close()
    assert len(safetensors.torch.load_file(str(tmp_path / "b"))) == count


def test_large_and_strided_tensors_go_through_in_pieces(tmp_path, held_bytes, monkeypatch):
    monkeypatch.setattr("precflow.agent.measure.transfer.PIECE_BYTES", 64)
    tensor = torch.arange(600.0).reshape(20, 30).t()
    write(tmp_path / "a", [TensorEntry("a", tensor, private=False)])
    assert torch.equal(safetensors.torch.load_file(str(tmp_path / "a"))["a"], tensor)


@pytest.mark.parametrize("streamed", [True, False])
def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path, monkeypatch, streamed):
    monkeypatch.setattr(shard_module, "HELD_BYTES", 0 if streamed else 1 << 20)
    shard = ShardFile(str(tmp_path / "a"), 1 << 20)
    shard.add(TensorEntry("a", torch.ones(4), private=False))
    monkeypatch.setattr(shard_module.os, "replace", refuse)
    with pytest.raises(OSError, match="No space"):
        shard.close()
    assert list(tmp_path.iterdir()) == []


def refuse(*_):
    raise OSError(28, "No space left on device")


def test_a_tensor_that_does_not_fit_on_the_disk_leaves_those_before_it(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_module, "HELD_BYTES", 0)
    shard = ShardFile(str(tmp_path / "a"), 1 << 20)
    first, second = torch.ones(400), torch.zeros(400)
    shard.add(TensorEntry("a", first, private=False))
    real = shard_module.byte_pieces
    with monkeypatch.context() as patched:

        def half(host):
            data = next(real(host))
            yield data[:100]
            refuse()

        patched.setattr(shard_module, "byte_pieces", half)
        with pytest.raises(OSError, match="No space"):
            shard.add(TensorEntry("b", second, private=False))
    shard.close()
    found = safetensors.torch.load_file(str(tmp_path / "a"))
    assert list(found) == ["a"]
    assert torch.equal(found["a"], first)


def test_unknown_types_are_not_storable():
    assert not storable(torch.complex32)
    assert not storable(torch.qint8)


def test_a_shard_of_nothing_is_a_file_of_the_format(tmp_path):
    write(tmp_path / "a", [])
    assert safetensors.torch.load_file(str(tmp_path / "a")) == {}
