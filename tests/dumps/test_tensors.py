"""The tensors of a dump over all its shards."""

import numpy as np
import pytest
import torch

from precflow.agent.dump.writer import Writer
from precflow.dumps.formats import read_dump
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
    found = read_dump(folder).verify()
    assert len(found) == 1
    assert found[0].startswith("rank0/step1/tensors-0.safetensors is damaged: the bytes of ")
    assert found[0].endswith("; so are 11 more")


def test_a_cut_shard_is_told_with_what_it_lost(folder):
    path = folder / "rank0/step0/tensors-0.safetensors"
    path.write_bytes(path.read_bytes()[: -256 * 2])
    dump = read_dump(folder)
    size, lost = dump.verify()
    assert "is cut short: " in size
    assert lost.endswith("; so are 1 more")
    assert sum(readable(dump, call.outputs[0]) for call in dump.calls()) == 28


def test_bytes_that_change_after_they_were_verified_are_found(folder):
    dump = read_dump(folder)
    assert dump.verify() == []
    record = dump.calls()[0].outputs[0]
    dump.check(record, record.content)
    with pytest.raises(DumpError, match="is damaged"):
        dump.check(record, "0" * 32)


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
    read = read_dump(folder)
    assert [read.tensor(call.outputs[0]).sum() for call in read.calls()] == [8, 8]
    assert len(read.damage) == 1
    (folder / "rank0/step0/tensors-0.safetensors").unlink()
    again = read_dump(folder)
    with pytest.raises(DumpError, match=r"no shard holds its tensor; rank0/step0/.*the file is missing; rank0/step1"):
        again.tensor(again.calls()[0].outputs[0])


def test_tensors_that_an_earlier_version_compressed_are_refused_with_what_to_do(tmp_path, plain_header):
    writer = Writer(str(tmp_path))
    writer.open_step(0, 0)
    output = {"index": "0", "dtype": "float32", "shape": [4], "content": "a" * 32}
    call = {"order": 0, "level": "module", "module": "m", "call": 0, "operator": "", "ordinal": 0}
    when = {"phase": "forward", "step": 0, "rank": 0, "movement": False, "inputs": []}
    stored = writer.tensor("a" * 32 + ".zlib", torch.zeros(8, dtype=torch.uint8))
    writer.call({**call, **when, "outputs": [{**output, "stored": stored}]})
    writer.seal(plain_header)
    dump = read_dump(tmp_path)
    refusal = "tensors-0.safetensors holds tensors that an earlier version compressed: record the dump again"
    with pytest.raises(DumpError, match=f"no shard holds its tensor; .*{refusal}"):
        dump.tensor(dump.calls()[0].outputs[0])
    assert any(problem.endswith(refusal) for problem in dump.verify())
