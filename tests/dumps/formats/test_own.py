"""A dump as a whole: what is read, and what is damaged."""

import json
import os
import re
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from precflow.agent.capture.call_stack import CallStack
from precflow.agent.capture.record_lines import Heading, Lines
from precflow.agent.capture.weights import Weights
from precflow.agent.dump.writer import Writer
from precflow.agent.selection import Selection
from precflow.dumps import tensors
from precflow.dumps.digest import content_id, lanes
from precflow.dumps.formats import read_dump
from precflow.errors import DumpError

RECORDS = "rank0/step0/records-0.jsonl"
SHARD = "rank0/step0/tensors-0.safetensors"


@pytest.fixture
def folder(build):
    dump = build()
    dump.call("b", "linear", [np.ones((2, 3), np.float32)], [np.zeros(4, np.float32)])
    dump.call("b", "", [np.full((2, 3), 2, np.float32)])
    dump.call("a", "linear", [np.arange(3, dtype=np.float16)], step=1)
    return dump.write()


def test_calls_and_tensors(folder):
    dump = read_dump(folder)
    assert [call.name for call in dump.calls()] == ["b / linear", "b", "a / linear (step 1)"]
    assert [call.name for call in dump.calls(step=1)] == ["a / linear (step 1)"]
    assert dump.calls(rank=3) == []
    assert dump.calls()[0].site == "model.py:3 in forward <- run.py:1"
    tensors = [dump.tensor(record).sum() for call in dump.calls() for record in (*call.inputs, *call.outputs)]
    assert tensors == [0, 6, 12, 3]
    assert dump.damage == ()
    assert dump.verify() == []


def test_no_folder_and_no_header(tmp_path, folder):
    with pytest.raises(DumpError, match="there is no dump at"):
        read_dump(tmp_path / "nowhere")
    (folder / "dump.json").unlink()
    with pytest.raises(DumpError, match=r"never sealed.*stopped before it finished"):
        read_dump(folder)


@pytest.mark.parametrize(("text", "said"), [('{"message": "ValueError: no"}', "ValueError: no"), ("{", "an error")])
def test_an_unsealed_dump_says_what_its_workload_raised(folder, text, said):
    (folder / "dump.json").unlink()
    (folder / "error.json").write_text(text)
    with pytest.raises(DumpError, match=f"its workload raised {said}"):
        read_dump(folder)


def test_an_unsealed_dump_can_be_read_as_far_as_it_goes(folder):
    (folder / "dump.json").unlink()
    dump = read_dump(folder, allow_unsealed=True)
    assert not dump.sealed
    assert len(dump.calls()) == 3
    assert dump.damage == tuple(
        f"rank0/step{step} was not finished: its writer was stopped; what is whole of it is read" for step in (0, 1)
    )
    assert dump.calls()[0].site == ""
    assert dump.tensor(dump.calls()[0].outputs[0]).shape == (2, 3)


def test_a_folder_that_holds_no_dump_is_not_one_that_was_never_sealed(tmp_path):
    with pytest.raises(DumpError, match="there is no dump in"):
        read_dump(tmp_path, allow_unsealed=True)


def test_a_torn_last_line_is_reported_and_the_rest_kept(folder):
    (folder / "dump.json").unlink()
    path = folder / RECORDS
    path.write_bytes(path.read_bytes()[:-30])
    dump = read_dump(folder, allow_unsealed=True)
    assert [call.name for call in dump.calls(step=0)] == ["b / linear"]
    assert len(dump.damage) == 3
    assert f"{RECORDS}:2 is torn" in dump.damage[2]


def test_a_torn_line_in_a_sealed_dump_is_damage_twice_over(folder):
    path = folder / RECORDS
    path.write_bytes(path.read_bytes()[:-30])
    damage = read_dump(folder).damage
    assert f"{RECORDS} is cut short" in damage[0]
    assert "is torn" in damage[1]


def test_a_separator_inside_a_name_does_not_tear_a_line(build):
    dump = build().call("层\u2028x\x85y<script>", "linear", [np.ones(2, np.float32)])
    dump.lines[0, 0][0]["module"] = "层\u2028x"
    folder = dump.write()
    path = folder / RECORDS
    path.write_text(json.dumps(dump.lines[0, 0][0], ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "dump.json").unlink()
    read = read_dump(folder, allow_unsealed=True)
    assert len(read.damage) == 1
    assert read.calls()[0].module == "层\u2028x"


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def test_a_flipped_byte_makes_one_tensor_unreadable_and_leaves_the_others(folder):
    flip(folder / SHARD, -1)
    dump = read_dump(folder)
    good, bad = dump.calls()[0].outputs[0], dump.calls()[1].outputs[0]
    assert dump.tensor(good).sum() == 6
    assert dump.view(bad).shape == (2, 3)
    for read in (dump.tensor, dump.check):
        with pytest.raises(DumpError, match=r"is damaged: the bytes of \w+ are not(.|\n)*in b/forward\.output\.0"):
            read(bad)
    assert [problem for problem in dump.verify() if bad.content in problem]
    assert dump.damage == ()
    assert dump.tensor(dump.calls(step=1)[0].outputs[0]).sum() == 3


def test_a_tensor_is_checked_once_in_a_process_by_any_number_of_threads(folder, monkeypatch):
    read = []
    monkeypatch.setattr(tensors, "lanes", lambda piece: read.append(piece.size) or lanes(piece))
    dump = read_dump(folder)
    record = dump.calls()[0].outputs[0]
    threads = [threading.Thread(target=dump.tensor, args=(record,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    dump.check(record)
    assert read == [24]


def test_who_reads_a_view_says_what_it_found(folder, monkeypatch):
    monkeypatch.setattr(tensors, "lanes", lambda piece: pytest.fail("read again"))
    dump = read_dump(folder)
    record, other = dump.calls()[0].outputs[0], dump.calls()[1].outputs[0]
    dump.check(record, content_id(dump.view(record)))
    dump.check(record)
    with pytest.raises(DumpError, match="is damaged"):
        dump.check(other, "0" * 32)


def test_a_large_tensor_is_checked_in_pieces(build, monkeypatch):
    monkeypatch.setattr(tensors, "_PIECE", 1 << 18)
    array = np.arange(200_000, dtype=np.float32)
    dump = read_dump(build().call("a", "linear", [array, np.ones((0, 3), np.float32), np.float32(1)]).write())
    read = [dump.tensor(record) for record in dump.calls()[0].outputs]
    assert np.array_equal(read[0], array)
    assert [one.shape for one in read[1:]] == [(0, 3), ()]
    flip(dump.path / SHARD, -100_000)
    again = read_dump(dump.path)
    with pytest.raises(DumpError, match="is damaged"):
        again.tensor(again.calls()[0].outputs[0])


def test_sketches_and_rows_are_checked_by_the_index(build, content_of):
    array, sketch, rows = np.ones((2, 3), np.float32), np.full((1, 509), 0.5, np.float32), np.ones(2, np.float32)
    content = content_of(array)
    built = (
        build().call("a", "linear", [array], store=False).attach(f"{content}.sketch", sketch).attach(f"{content}.rows", rows)
    )
    folder = built.write()
    dump = read_dump(folder)
    record = dump.calls()[0].outputs[0]
    assert np.array_equal(dump.sketch(record), sketch)
    assert np.array_equal(dump.rows(record), rows)
    assert dump.verify() == []
    flip(folder / SHARD, -1)
    dump = read_dump(folder)
    assert dump.sketch(record) is not None
    with pytest.raises(DumpError, match=r"is damaged: the bytes of \w+\.rows"):
        dump.rows(record)
    assert len(dump.verify()) == 1


def test_what_has_no_sketch_says_so(folder):
    dump = read_dump(folder)
    assert dump.sketch(dump.calls()[0].outputs[0]) is None
    assert dump.rows(dump.calls()[0].outputs[0]) is None


def test_a_part_of_a_tensor_has_a_key_and_a_shape_of_its_own(build, content_of):
    whole, part = np.arange(12, dtype=np.float32), np.arange(4, dtype=np.float32)
    built = build().call("a", "linear", [whole])
    built.lines[0, 0][0]["outputs"][0].update(share=0.3, part="ab12")
    built.tensors[0, 0] = {f"{content_of(whole)}.ab12": part}
    folder = built.write()
    dump = read_dump(folder)
    record = dump.calls()[0].outputs[0]
    assert np.array_equal(dump.tensor(record), part)
    assert dump.verify() == []
    flip(folder / SHARD, -1)
    with pytest.raises(DumpError, match="is damaged"):
        read_dump(folder).tensor(record)


def test_missing_files_are_damage(folder):
    (folder / SHARD).unlink()
    (folder / RECORDS).unlink()
    dump = read_dump(folder)
    assert [call.name for call in dump.calls()] == ["a / linear (step 1)"]
    assert sum("missing" in text for text in dump.damage) == 2
    assert any(RECORDS in problem for problem in dump.verify())


def test_a_record_whose_content_no_shard_holds(folder):
    path = folder / RECORDS
    lines = path.read_text().splitlines()
    line = json.loads(lines[1])
    line["outputs"][0]["content"] = "00ff"
    path.write_text(lines[0] + "\n" + json.dumps(line) + "\n")
    dump = read_dump(folder)
    with pytest.raises(DumpError, match="no shard holds its tensor"):
        dump.tensor(dump.calls()[1].outputs[0])
    assert any("is not in any shard" in problem for problem in dump.verify())


@pytest.mark.parametrize("change", [{"dtype": "float64"}, {"shape": [6]}])
def test_a_record_that_contradicts_its_shard(folder, change):
    path = folder / RECORDS
    line = json.loads(path.read_text().splitlines()[0])
    line["outputs"][0].update(change)
    path.write_text(json.dumps(line) + "\n")
    dump = read_dump(folder)
    with pytest.raises(DumpError, match=r"holds float32 \[2, 3\] where the record says"):
        dump.tensor(dump.calls()[0].outputs[0])


def test_a_tensor_that_was_not_stored(build):
    folder = build().call("a", "view", [np.ones(2, np.float32)], store=False, movement=True).write()
    dump = read_dump(folder)
    with pytest.raises(DumpError, match="was not stored"):
        dump.tensor(dump.calls()[0].outputs[0])
    assert dump.verify() == []


@pytest.fixture
def summed_up(tmp_path, plain_header):
    """Return a dump of statistics alone, as an agent writes it, and its tensors."""
    tensors = [torch.randn(4, 77, 512), torch.randn(3, 2048), torch.ones(2, 3), torch.randn(70, 33)]
    writer = Writer(str(tmp_path))
    lines = Lines(writer, Weights(), detail="statistics", rank=0)
    lines.begin_step(0)
    heading = Heading("api", CallStack(Selection(("*",))).outside, "add", 0, 0, movement=False, arguments={})
    lines.emit(heading, [], lines.describe([(str(number), each) for number, each in enumerate(tensors)], store=True))
    lines.flush()
    writer.seal(plain_header)
    return tmp_path, tensors


def test_norms_of_rows_of_many_tensors_lie_in_one_entry(summed_up):
    folder, tensors = summed_up
    dump = read_dump(folder)
    records = dump.calls()[0].outputs
    for record, tensor in zip(records, tensors, strict=True):
        assert (record.content, record.stored, bool(record.mark), record.known) == ("", False, True, record.mark)
        if tensor.numel() < 1025:
            assert dump.rows(record) is None
        else:
            assert dump.rows(record) == pytest.approx(torch.linalg.vector_norm(tensor.double().flatten(0, -2), dim=1), rel=1e-6)
    assert len({record.row_norms[0] for record in records if record.row_norms}) == 1
    assert dump.verify() == []


def test_norms_that_are_said_to_lie_elsewhere_are_damage(summed_up):
    folder, _ = summed_up
    dump = read_dump(folder)
    record = dump.calls()[0].outputs[0]
    key, start, count = record.row_norms
    for place in ((key, start, 10**6), (key, -1, count), ("0" * 32, start, count)):
        with pytest.raises(DumpError, match="norms of its rows"):
            dump.rows(msgspec.structs.replace(record, row_norms=place))


SAID = {
    "calls": ({"counts": {"calls": 3, "records": 3, "tensors": 2, "bytes": 32}}, "the number of calls: 3, and 2"),
    "records": ({"counts": {"calls": 2, "records": 9, "tensors": 2, "bytes": 32}}, "the number of records: 9, and 3"),
    "ranks": ({"sites_of_ranks": {"1": []}}, r"the ranks: \[0, 1\], and \[0\]"),
    "steps": ({"capture": {"step": [0, 1, 2]}}, r"the steps of rank 0: \[0, 1, 2\], and \[0, 1\]"),
    "fewer steps": ({"capture": {"step": [0]}}, r"the steps of rank 0: \[0\], and \[0, 1\]"),
    "levels": ({"capture": {"level": ["module"]}}, r"every level: \[\], and \['api'\]"),
    "phases": ({"capture": {"phase": ["backward"]}}, r"every phase: \[\], and \['forward'\]"),
    "type": ({"dtype": "float16", "capture": {"scope": ["*"]}}, "the type of the weights: float16, and float32"),
}


@pytest.mark.parametrize("what", SAID)
def test_a_header_that_says_something_else_of_the_run_than_its_records_is_damage(build, what):
    dump = build()
    for step in (0, 1):
        dump.call("a", "linear", [np.ones(4, np.float32)], [np.ones(2, np.float32)] if step else [], step=step)
    dump.lines[0, 1][0]["inputs"][0]["weight"] = "a.weight"
    assert read_dump(dump.write()).damage == ()
    changes, told = SAID[what]
    dump.header_changes = changes
    (damage,) = read_dump(dump.write()).damage
    assert re.search(f"dump.json and the records disagree on {told}", damage)


def test_steps_that_went_round_are_not_missing(build):
    dump = build()
    dump.call("a", "linear", [np.ones(4, np.float32)], step=3)
    dump.header_changes = {"capture": {"step": [0, 1, 2, 3]}, "dropped": {"0": "0-2"}}
    assert read_dump(dump.write()).damage == ()


def test_an_unreadable_folder_is_told(build, monkeypatch):
    folder = build().call("a", "linear").write()

    def refused(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(DumpError, match="dump cannot be read: Permission denied"):
        read_dump(folder)


def as_pipe(path):
    os.mkfifo(path)


def as_zero(path):
    path.symlink_to("/dev/zero")


def as_kernel_log(path):
    path.symlink_to("/proc/kmsg")


@pytest.mark.parametrize("become", [as_pipe, as_zero, as_kernel_log])
@pytest.mark.parametrize("name", ["rank0/step0/records-0.jsonl", "rank0/step0/tensors-0.safetensors", "rank0/step0/step.json"])
def test_what_never_ends_is_damage_and_is_not_waited_for(build, become, name):
    folder = build().call("a", "linear", [np.ones(4, np.float32)]).write(sealed="step.json" not in name, steps=True)
    (folder / name).unlink()
    become(folder / name)
    dump = read_dump(folder, allow_unsealed=True)
    assert "it is not a regular file but" in " ".join([*dump.damage, *dump.verify()])


@pytest.mark.parametrize("become", [as_pipe, as_zero, as_kernel_log])
def test_a_header_that_never_ends_is_refused(build, become):
    folder = build().call("a", "linear").write()
    (folder / "dump.json").unlink()
    become(folder / "dump.json")
    with pytest.raises(DumpError, match="it is not a regular file but"):
        read_dump(folder, allow_unsealed=True)
