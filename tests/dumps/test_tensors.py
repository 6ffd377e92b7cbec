"""The tensors of a dump over all its shards."""

import zlib

import ml_dtypes
import numpy as np
import pytest
import torch

from precflow.agent.contract import COMPRESSED_BLOCK
from precflow.agent.dump.compression import compress_entry
from precflow.agent.dump.shard import TensorEntry
from precflow.agent.dump.writer import Writer
from precflow.agent.measure.content_id import content_id
from precflow.dumps.digest import content_id as content_of
from precflow.dumps.mapped_pages import mapping_of
from precflow.dumps.reader import Dump
from precflow.dumps.tensors import decompress
from precflow.errors import DumpError


@pytest.fixture
def folder(build):
    dump = build()
    for number in range(30):
        dump.call(f"m{number}", "", [np.full(64, number, np.float32)], step=number % 2)
    return dump.write()


def test_a_shard_full_of_damage_is_one_line(folder):
    path = folder / "rank0/step1/tensors-0.safetensors"
    data = bytearray(path.read_bytes())
    for at in range(len(data) - 256 * 12, len(data), 256):
        data[at] ^= 1
    path.write_bytes(data)
    found = Dump.open(folder).verify()
    assert len(found) == 1
    assert found[0].startswith("rank0/step1/tensors-0.safetensors is damaged: the bytes of ")
    assert found[0].endswith("; so are 11 more")


def test_a_cut_shard_is_told_with_what_it_lost(folder):
    path = folder / "rank0/step0/tensors-0.safetensors"
    path.write_bytes(path.read_bytes()[: -256 * 2])
    dump = Dump.open(folder)
    size, lost = dump.verify()
    assert "is cut short: " in size
    assert lost.endswith("; so are 1 more")
    assert sum(readable(dump, call.outputs[0]) for call in dump.calls()) == 28


def readable(dump, record):
    try:
        dump.tensor(record)
    except DumpError:
        return False
    return True


def test_the_first_shard_that_has_a_content_is_read(build, content_of):
    array = np.ones(8, np.float32)
    dump = build().call("a", "", [array]).call("b", "", [array], step=1)
    folder = dump.write()
    (folder / "rank0/step1/tensors-0.safetensors").unlink()
    read = Dump.open(folder)
    assert [read.tensor(call.outputs[0]).sum() for call in read.calls()] == [8, 8]
    assert len(read.damage) == 1
    (folder / "rank0/step0/tensors-0.safetensors").unlink()
    again = Dump.open(folder)
    with pytest.raises(DumpError, match=r"no shard holds its tensor; rank0/step0/.*the file is missing; rank0/step1"):
        again.tensor(again.calls()[0].outputs[0])


def packed(tensor):
    return compress_entry(TensorEntry("aa", tensor, private=True)).host.numpy()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "complex128", "int16", "bool", "uint8", "float8_e4m3fn"])
@pytest.mark.parametrize("shape", [(8000,), (30, 0, 3), (COMPRESSED_BLOCK // 8 + 5, 2)])
def test_what_comes_back_is_what_went_in(dtype, shape):
    if 0 in shape:
        assert content_of(np.zeros(shape, np.float32)) == content_id(torch.zeros(shape))
        return
    tensor = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(3)).to(getattr(torch, dtype))
    read = decompress(packed(tensor), dtype, shape, "t")
    assert content_of(read) == content_id(tensor)
    assert not read.flags.writeable


def test_what_is_not_this_tensor_is_refused():
    data = packed(torch.zeros(5000))
    for dtype, shape in (("float32", (5001,)), ("float32", (4999,)), ("bfloat16", (5000,))):
        with pytest.raises(DumpError, match="t holds a compressed tensor of another size"):
            decompress(data, dtype, shape, "t")
    with pytest.raises(DumpError, match="cannot be decompressed"):
        decompress(data[3:], "float32", (5000,), "t")
    with pytest.raises(DumpError, match="of another size"):
        decompress(data[:8], "float32", (5000,), "t")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_large_comes_back_by_a_file(monkeypatch, dtype):
    monkeypatch.setattr("precflow.dumps.tensors.IN_MEMORY", 1000)
    tensor = torch.arange(COMPRESSED_BLOCK // 2 + 77).remainder(5).to(getattr(torch, dtype))
    read = decompress(packed(tensor), dtype, tuple(tensor.shape), "t")
    assert content_of(read) == content_id(tensor)
    assert mapping_of(read) is not None
    assert not read.flags.writeable


def test_a_few_bytes_that_unfold_to_gigabytes_take_little_memory(grown):
    size, packer, data = 1 << 28, zlib.compressobj(1), bytearray()
    for _ in range(size >> 20):
        data += packer.compress(bytes(1 << 20))
    data += packer.flush()
    read = decompress(np.frombuffer(data, np.uint8), "float32", (size // 4,), "t")
    assert content_of(read)
    assert grown() < 100_000_000
    with pytest.raises(DumpError, match="of another size"):
        decompress(np.frombuffer(data, np.uint8), "float32", (1 << 40,), "t")
    with pytest.raises(DumpError, match="of another size"):  # it goes on behind the size that is said, and nobody unfolds it
        decompress(np.frombuffer(data, np.uint8), "float32", (1000,), "t")


def test_a_disk_without_room_is_told(monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("precflow.dumps.tensors.IN_MEMORY", 1000)
    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(DumpError, match=r"needs 0 MB in .* to be read: No space left on device"):
        decompress(packed(torch.zeros(5000)), "float32", (5000,), "t")


@pytest.fixture
def compressed_folder(tmp_path, plain_header):
    writer = Writer(str(tmp_path), compress=True)
    writer.open_step(0, 0)
    for order, tensor in enumerate((torch.ones(50_000), torch.ones(70_000).bfloat16(), torch.randn(5000))):
        content = content_id(tensor)
        output = {"index": "0", "dtype": str(tensor.dtype)[6:], "shape": list(tensor.shape), "content": content}
        who = {"order": order, "level": "module", "module": f"m{order}", "call": 0, "operator": "", "ordinal": 0}
        place = {"phase": "forward", "step": 0, "rank": 0, "movement": False, "inputs": []}
        writer.call({**who, **place, "outputs": [{**output, "stored": writer.tensor(content, tensor)}]})
    writer.seal(plain_header)
    return tmp_path


def test_a_compressed_dump_is_read_like_any_other(compressed_folder):
    assert sum(path.stat().st_size for path in compressed_folder.rglob("*.safetensors")) < 30_000
    dump = Dump.open(compressed_folder)
    read = [dump.tensor(call.outputs[0]) for call in dump.calls()]
    assert np.array_equal(read[0], np.ones(50_000, np.float32))
    assert read[1].dtype == ml_dtypes.bfloat16
    assert read[1].astype(np.float32).sum() == 70_000
    assert dump.verify() == []


def test_a_flipped_byte_in_what_was_compressed_is_found(compressed_folder):
    path = next(compressed_folder.rglob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    dump = Dump.open(compressed_folder)
    found = dump.verify()
    assert len(found) == 1
    assert ".zlib are not those that were written" in found[0]
    with pytest.raises(DumpError, match="is damaged"):
        [dump.tensor(call.outputs[0]) for call in dump.calls()]
