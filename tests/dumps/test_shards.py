"""Shards: read by our own code, written by the builder and by the safetensors library."""

import hashlib
import os

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.dumps.header import FileSeal
from precflow.dumps.shards import Shard
from precflow.errors import DumpError


def sealed(path):
    data = path.read_bytes()
    index = data[: 8 + int.from_bytes(data[:8], "little")]
    return FileSeal(len(data), index=hashlib.blake2b(index, digest_size=16).hexdigest())


@pytest.fixture
def shard_file(build, content_of):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    folder = build().call("a", "linear", [array, np.zeros((0, 4), np.float16), np.float64(2.5)]).write()
    return folder / "rank0/step0/tensors-0.safetensors", array, content_of(array)


def test_tensors_come_back_read_only(shard_file):
    path, array, content = shard_file
    shard = Shard(path, "tensors-0.safetensors", sealed(path))
    read = shard.view(content)
    assert np.array_equal(read, array)
    assert not read.flags.writeable
    shapes = sorted(shard.view(content).shape for content in shard.index.slots)
    assert shapes == [(), (0, 4), (3, 4)]


def test_the_library_and_we_agree_on_every_dtype(tmp_path):
    names = [name for name in NUMPY_DTYPES if name != "complex128"]
    tensors = {name: torch.arange(0, 6).reshape(2, 3).to(getattr(torch, name)) for name in names}
    path = tmp_path / "all.safetensors"
    save_file(tensors, path)
    shard = Shard(path, "all.safetensors", None)
    for name, tensor in tensors.items():
        read = shard.view(name)
        assert read.dtype.name == name
        assert read.tobytes() == bytes(tensor.contiguous().flatten().view(torch.uint8).tolist())


def test_a_cut_shard_is_said_to_be_cut_and_loses_only_what_is_cut(shard_file):
    path, array, content = shard_file
    for seal, problem in ((sealed(path), "t is cut short: "), (None, "")):
        shard = Shard(path, "t", seal)
        path.write_bytes(path.read_bytes()[:-4])
        assert shard.index.problem.startswith(problem)
        assert np.array_equal(shard.view(content), array)
        last = max(shard.index.slots, key=lambda content: shard.index.slots[content].data_offsets)
        with pytest.raises(DumpError, match="the file at"):
            shard.view(last)


def test_a_longer_file_is_told_and_its_tensors_are_there(shard_file):
    path, array, content = shard_file
    shard = Shard(path, "t", sealed(path))
    path.write_bytes(path.read_bytes() + b"more")
    assert "too long" in shard.index.problem
    assert np.array_equal(shard.view(content), array)


@pytest.mark.parametrize("at", [0, 9, 40])
def test_a_flipped_bit_in_the_index_is_found(shard_file, at):
    path, _, content = shard_file
    seal = sealed(path)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(DumpError, match=r"t (is damaged|cannot be read)"):
        Shard(path, "t", seal).view(content)


@pytest.mark.parametrize("blake2b", ["", "00", "zz" * 16, "00" * 65])
def test_a_seal_without_a_usable_checksum_is_no_seal_of_this_file(shard_file, blake2b):
    path, _, content = shard_file
    with pytest.raises(DumpError, match="is damaged"):
        Shard(path, "t", FileSeal(path.stat().st_size, index=blake2b)).view(content)


def test_a_file_that_shrinks_or_goes_while_it_is_read_is_an_error_and_no_crash(shard_file):
    path, _, content = shard_file
    shard = Shard(path, "t", None)
    assert shard.view(content).size == 12
    os.truncate(path, path.stat().st_size - 64)
    with pytest.raises(DumpError, match="cut short"):
        shard.view(content)
    path.unlink()
    with pytest.raises(DumpError, match="t cannot be read: the file is missing"):
        shard.view(content)


def test_padding_is_nobodys_tensor(build, content_of):
    dump = build().call("a", "linear", [np.ones(3, np.float32)]).attach("padding-0", np.zeros(2, np.uint8))
    shard = Shard(dump.write() / "rank0/step0/tensors-0.safetensors", "t", None)
    assert list(shard.index.slots) == [content_of(np.ones(3, np.float32))]


def test_content_that_is_not_there(shard_file):
    path, _, _ = shard_file
    with pytest.raises(DumpError, match="does not hold content nothing"):
        Shard(path, "t", None).view("nothing")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 40,
        (2).to_bytes(8, "little") + b"[]",
        (9).to_bytes(8, "little") + b'{"a": []}',
        (64).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":["x"],"data_offsets":[0,4]}}'.ljust(64),
        (64).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4]}}'.ljust(64),
        (64).to_bytes(8, "little") + b'{"__metadata__":{"a":3}}'.ljust(64),
        (1 << 20).to_bytes(8, "little") + b"[" * (1 << 20),
    ],
)
def test_a_torn_index_is_a_dump_error(tmp_path, data):
    path = tmp_path / "t.safetensors"
    path.write_bytes(data)
    with pytest.raises(DumpError, match="cannot be read"):
        _ = Shard(path, "t.safetensors", None).index


@pytest.mark.parametrize(
    "entry",
    [
        "{}",
        '{"dtype":"F32","shape":[1],"data_offsets":[8,4]}',
        '{"dtype":"F32","shape":[1],"data_offsets":[-8,-4]}',
        '{"dtype":"F32","shape":[-1,-1],"data_offsets":[0,4]}',
        '{"dtype":"Q9","shape":[1],"data_offsets":[0,4]}',
    ],
)
def test_an_entry_that_makes_no_sense_costs_its_own_tensor_alone(tmp_path, entry):
    good = '{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    text = f'{{"a":{entry},"b":{good}}}'.ljust(128).encode()
    path = tmp_path / "t.safetensors"
    path.write_bytes((128).to_bytes(8, "little") + text + np.float32(7).tobytes())
    shard = Shard(path, "t", None)
    with pytest.raises(DumpError, match="t is damaged: a "):
        shard.view("a")
    assert shard.view("b") == [7]


def test_an_index_that_contradicts_itself(tmp_path):
    path = tmp_path / "t.safetensors"
    path.write_bytes((64).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,4]}}'.ljust(64) + b"1234")
    with pytest.raises(DumpError, match="takes 4 bytes, its shape needs 12"):
        Shard(path, "t", None).view("a")


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(DumpError, match="gone cannot be read: the file is missing"):
        _ = Shard(tmp_path / "gone", "gone", None).index


def test_bfloat16_keeps_its_bits(build, content_of):
    array = np.array([1.0, -0.0, np.nan, 3e38], ml_dtypes.bfloat16)
    folder = build().call("a", "linear", [array]).write()
    read = Shard(folder / "rank0/step0/tensors-0.safetensors", "t", None).view(content_of(array))
    assert read.tobytes() == array.tobytes()


def test_tensors_of_one_type_and_shape_are_copied_together(build, content_of):
    arrays = [np.full((2, 3), number, np.float32) for number in range(5)]
    other = np.arange(6, dtype=np.int32).reshape(2, 3)
    folder = build().call("a", "linear", [*arrays, other, np.zeros((0, 4), np.float32)]).write()
    path = folder / "rank0/step0/tensors-0.safetensors"
    shard, keys = Shard(path, path.name, sealed(path)), [content_of(array) for array in arrays]
    assert shard.gather(keys[::-1], "float32", (2, 3)).tobytes() == b"".join(array.tobytes() for array in arrays[::-1])
    for some, dtype, shape in (
        ([*keys, content_of(other)], "float32", (2, 3)),
        (keys, "float32", (3, 2)),
        (keys, "float64", (2, 3)),
        ([content_of(np.zeros((0, 4), np.float32))], "float32", (0, 4)),
        ([], "float32", (2, 3)),
    ):
        assert shard.gather(some, dtype, shape) is None
    os.truncate(path, path.stat().st_size - 1)  # what is mapped behind the end of its file kills the process that reads it
    assert shard.gather([content_of(array) for array in (*arrays, other)], "float32", (2, 3)) is None
