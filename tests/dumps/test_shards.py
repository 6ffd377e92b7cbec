"""Shards: read by our own code, written by the builder and by the safetensors library."""

import threading

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.dumps.header import FileSeal
from precflow.dumps.shards import Shard, checksum, seal_problem
from precflow.errors import DumpError


def sealed(path):
    return FileSeal(path.stat().st_size, checksum(path, 16))


@pytest.fixture
def shard_file(build, content_of):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    folder = build().call("a", "linear", [array, np.zeros((0, 4), np.float16), np.float64(2.5)]).write()
    return folder / "rank0/step0/tensors-0.safetensors", array, content_of(array)


def test_tensors_come_back_read_only(shard_file):
    path, array, content = shard_file
    shard = Shard(path, "tensors-0.safetensors", sealed(path))
    read = shard.tensor(content)
    assert np.array_equal(read, array)
    assert not read.flags.writeable
    shapes = sorted(shard.tensor(content).shape for content in shard.slots())
    assert shapes == [(), (0, 4), (3, 4)]


def test_the_library_and_we_agree_on_every_dtype(tmp_path):
    names = [name for name in NUMPY_DTYPES if name != "complex128"]
    tensors = {name: torch.arange(0, 6).reshape(2, 3).to(getattr(torch, name)) for name in names}
    path = tmp_path / "all.safetensors"
    save_file(tensors, path)
    shard = Shard(path, "all.safetensors", None)
    for name, tensor in tensors.items():
        read = shard.tensor(name)
        assert read.dtype.name == name
        assert read.tobytes() == bytes(tensor.contiguous().flatten().view(torch.uint8).tolist())


def test_a_cut_shard_is_said_to_be_cut(shard_file):
    path, _, content = shard_file
    seal = sealed(path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(DumpError, match=r"cut short: \d+ bytes instead of \d+"):
        Shard(path, "t", seal).tensor(content)


def test_a_cut_shard_without_a_seal_loses_only_what_is_cut(shard_file):
    path, array, content = shard_file
    path.write_bytes(path.read_bytes()[:-4])
    shard = Shard(path, "t", None)
    assert np.array_equal(shard.tensor(content), array)
    last = max(shard.slots(), key=lambda content: shard.slots()[content].stop)
    with pytest.raises(DumpError, match="the file at"):
        shard.tensor(last)


def test_a_flipped_bit_is_found(shard_file):
    path, _, content = shard_file
    seal = sealed(path)
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    with pytest.raises(DumpError, match="is damaged"):
        Shard(path, "t", seal).tensor(content)


def test_the_checksum_is_taken_once(shard_file, monkeypatch):
    path, _, content = shard_file
    taken = []
    monkeypatch.setattr("precflow.dumps.shards.checksum", lambda path, size: taken.append(path) or checksum(path, size))
    shard = Shard(path, "t", sealed(path))
    threads = [threading.Thread(target=shard.tensor, args=(content,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken == [path]


def test_content_that_is_not_there(shard_file):
    path, _, _ = shard_file
    with pytest.raises(DumpError, match="does not hold content nothing"):
        Shard(path, "t", None).tensor("nothing")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 40,
        (2).to_bytes(8, "little") + b"[]",
        (9).to_bytes(8, "little") + b'{"a": {}}',
        (64).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}}'.ljust(64),
        (64).to_bytes(8, "little") + b'{"a":{"dtype":"Q9","shape":[1],"data_offsets":[0,4]}}'.ljust(64),
    ],
)
def test_a_torn_index_is_a_dump_error(tmp_path, data):
    path = tmp_path / "t.safetensors"
    path.write_bytes(data)
    with pytest.raises(DumpError, match="cannot be read"):
        Shard(path, "t.safetensors", None).slots()


def test_an_index_that_contradicts_itself(tmp_path):
    path = tmp_path / "t.safetensors"
    path.write_bytes((64).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,4]}}'.ljust(64) + b"1234")
    with pytest.raises(DumpError, match="takes 4 bytes, its shape needs 12"):
        Shard(path, "t", None).tensor("a")


def test_missing_files_and_unusable_seals(tmp_path):
    path = tmp_path / "gone"
    assert seal_problem(path, "gone", FileSeal(1, "00")) == "gone is missing"
    with pytest.raises(DumpError, match="gone cannot be read: the file is missing"):
        Shard(path, "gone", None).slots()
    path.write_bytes(b"1")
    assert "damaged" in seal_problem(path, "gone", FileSeal(1, ""))
    assert "too long" in seal_problem(path, "gone", FileSeal(0, "00"))


def test_bfloat16_keeps_its_bits(build, content_of):
    array = np.array([1.0, -0.0, np.nan, 3e38], ml_dtypes.bfloat16)
    folder = build().call("a", "linear", [array]).write()
    read = Shard(folder / "rank0/step0/tensors-0.safetensors", "t", None).tensor(content_of(array))
    assert read.tobytes() == array.tobytes()
