"""A dump without a header: its finished steps are as good as sealed ones, and what is wrong with them is told."""

import json
import shutil

import numpy as np
import pytest

from precflow.agent.contract import checksum_of
from precflow.dumps.formats import read_dump
from precflow.dumps.unfinished import read_steps
from precflow.errors import DumpError

RECORDS, SHARD, SEAL = (f"rank0/step1/{name}" for name in ("records-0.jsonl", "tensors-0.safetensors", "step.json"))


@pytest.fixture
def folder(build):
    dump = build()
    for step in range(3):
        dump.call("a", "linear", [np.full(4, step, np.float32)], step=step)
        dump.call("b", "linear", [np.full(3, 7, np.float32)], step=step)
    return dump.write(sealed=False, steps=True)


def opened(folder):
    return read_dump(folder, allow_unsealed=True)


def test_finished_steps_are_whole_and_checked(folder):
    dump = opened(folder)
    assert not dump.sealed
    assert dump.damage == ()
    assert dump.verify() == []
    assert len(dump.calls()) == 6
    assert dump.calls()[0].site == "a.py:1 in f"
    steps = read_steps(folder)
    assert len(steps.files) == 6
    assert all(seal is not None for seal in steps.files.values())


def change(path, **changes):
    seal(path, {**json.loads(path.read_text()), **changes})


def seal(path, plain):
    path.write_text(json.dumps({**plain, "checksum": checksum_of(plain)}))


SEALS = {
    "gone": (lambda path: path.unlink(), "rank0/step1 was not finished"),
    "empty": (lambda path: path.write_text(""), "step.json is not usable: Expecting value"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:40]), "step.json is not usable"),
    "no object": (lambda path: path.write_text("[]"), "expected an object, found list"),
    "newer": (lambda path: change(path, schema=7), "it is of schema 7; this precflow reads schema 2"),
    "of another step": (lambda path: change(path, step=2), "it is of rank 0 and step 2"),
    "of another rank": (lambda path: change(path, rank=1), "it is of rank 1 and step 1"),
    "without files": (lambda path: seal(path, {"schema": 2, "rank": 0, "step": 1}), "'files' is missing"),
    "leads outside": (lambda path: change(path, files={"../../x": {"bytes": 1, "blake2b": "00"}}), "another folder: ../../x"),
    "of files elsewhere": (lambda path: change(path, files={"rank0/step0/a": {"bytes": 1, "blake2b": "00"}}), "another folder"),
    "without a checksum": (lambda path: change(path, files={RECORDS: {"bytes": 1}}), "blake2b is missing"),
    "changed": (lambda path: path.write_text(path.read_text().replace("a.py:1", "b.py:1")), "the checksum that it was sealed"),
    "without a seal of its own": (lambda path: path.write_text('{"schema": 2, "rank": 0, "step": 1}'), "'checksum' is missing"),
    "nested": (lambda path: path.write_text("[" * 100_000), "step.json is not usable"),
    "not text": (lambda path: path.write_bytes(b"\xff\xfe\x00"), "step.json is not usable"),
}


@pytest.mark.parametrize("name", SEALS)
def test_a_seal_that_is_not_usable_is_told_and_the_step_read_all_the_same(folder, name):
    damage, said = SEALS[name]
    damage(folder / SEAL)
    dump = opened(folder)
    assert len(dump.damage) == 1
    assert said in dump.damage[0]
    assert len(dump.calls()) == 6
    assert [dump.tensor(call.outputs[0])[0] for call in dump.calls()] == [0, 7, 1, 7, 2, 7]


def test_damage_in_a_finished_step_is_told(folder):
    for path, at in ((folder / RECORDS, 12), (folder / SHARD, 3)):
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)
    told = " ".join(opened(folder).damage)
    assert f"{RECORDS} is damaged" in told
    assert f"{SHARD} " in told


def test_files_of_a_finished_step_that_are_gone_are_told(folder):
    (folder / RECORDS).unlink()
    (folder / SHARD).unlink()
    dump = opened(folder)
    assert sorted(text.split()[-1] for text in dump.damage) == ["missing", "missing"]
    assert len(dump.calls()) == 4
    with pytest.raises(DumpError, match="no shard holds"):
        dump.tensor(dump.calls(step=1)[0].outputs[0]) if dump.calls(step=1) else dump.tensor(missing(dump))


def missing(dump):
    import msgspec

    return msgspec.structs.replace(dump.calls()[0].outputs[0], content="00" * 16)


@pytest.mark.parametrize("sealed", [True, False])
def test_swapped_steps_are_told_line_by_line(build, sealed):
    dump = build()
    for step in range(3):
        dump.call("a", "linear", [np.full(4, step, np.float32)], step=step)
    folder = dump.write(sealed=sealed, steps=not sealed)
    (folder / "rank0/step1").rename(folder / "x")
    (folder / "rank0/step2").rename(folder / "rank0/step1")
    (folder / "x").rename(folder / "rank0/step2")
    read = opened(folder)
    assert [call.step for call in read.calls()] == [0]
    told = "\n".join(read.damage)
    assert f"{RECORDS}:1 is torn: it is of rank 0 and step 2, in a file of rank 0 and step 1" in told
    assert (f"{RECORDS} is damaged" if sealed else f"{SEAL} is not usable") in told


def test_foreign_files_and_folders_are_nobodys_evidence(folder):
    for name in ("rank0/step1/notes.jsonl", "rank0/step1/records-0.jsonl.part", "rank0/README", "rank0/stepx/records-0.jsonl"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{")
    (folder / "rank0/step9.dropped").mkdir()
    (folder / "rank0/step7").write_text("a file")
    (folder / SEAL).unlink()
    dump = opened(folder)
    assert len(dump.damage) == 1
    assert len(dump.calls()) == 6


def test_steps_come_in_the_order_of_their_numbers(build):
    dump = build()
    for step in (10, 9, 2):
        dump.call("a", "linear", [np.ones(step, np.float32)], step=step)
    folder = dump.write(sealed=False, steps=True)
    assert [call.step for call in opened(folder).calls()] == [2, 9, 10]
    shutil.rmtree(folder / "rank0")
    with pytest.raises(DumpError, match="there is no dump"):
        opened(folder)


def test_every_rank_has_places_of_its_own(build):
    dump = build()
    for rank in (0, 1):
        dump.call("a", "linear", [np.full(4, rank, np.float32)], rank=rank)
    folder = dump.write(sealed=False, steps=True)
    change(folder / "rank1/step0/step.json", sites=["b.py:7 in g", "b.py:8 in g"])
    assert [call.site for call in opened(folder).calls()] == ["a.py:1 in f", "b.py:7 in g"]


def test_a_header_names_the_places_of_other_ranks(build):
    dump = build()
    for rank in (0, 1):
        dump.call("a", "linear", [np.full(4, rank, np.float32)], rank=rank)
    dump.header_changes = {"sites": ["a.py:1 in f"], "sites_of_ranks": {"1": ["b.py:7 in g"]}}
    assert [call.site for call in read_dump(dump.write()).calls()] == ["a.py:1 in f", "b.py:7 in g"]
