import hashlib
import json

import pytest
import safetensors.torch
import torch

from precflow.agent.dump.shard import TensorEntry
from precflow.agent.dump.step_files import StepFiles, json_bytes, remove_step, write_json
from precflow.agent.dump.writer import WriteError, Writer


def entry(key, count, value=1.0):
    return TensorEntry(key, torch.full((count,), value), private=True)


def test_a_step_is_finished_when_its_seal_is_there(tmp_path):
    step = StepFiles(str(tmp_path), 3, 1, 1000)
    step.append(b"{}\n")
    step.store(entry("a", 10))
    assert step.waiting == 40
    step.finish_shard()
    step.finish_records()
    place = tmp_path / "rank1/step3"
    assert not (place / "step.json").exists()
    seal = step.seal({"schema": 1})
    assert json.loads((place / "step.json").read_text()) == seal
    assert (seal["step"], seal["rank"], seal["schema"], step.waiting) == (3, 1, 1, 0)
    records = seal["files"]["rank1/step3/records-0.jsonl"]
    assert records == {"bytes": 3, "blake2b": hashlib.blake2b(b"{}\n", digest_size=16).hexdigest()}
    assert sorted(path.name for path in place.iterdir()) == ["records-0.jsonl", "step.json", "tensors-0.safetensors"]


def test_shards_double_and_a_step_without_tensors_has_none(tmp_path):
    step = StepFiles(str(tmp_path), 0, 0, 100)
    for number in range(30):
        step.store(entry(str(number), 20))
    step.finish_shard()
    step.finish_shard()
    names = sorted(name for name in step.files if name.endswith("safetensors"))
    assert [len(safetensors.torch.load_file(str(tmp_path / name))) for name in names] == [1, 2, 5, 10, 12]
    empty = StepFiles(str(tmp_path), 1, 0, 100)
    empty.finish_shard()
    empty.finish_records()
    assert list(empty.files) == ["rank0/step1/records-0.jsonl"]


def test_what_was_left_of_the_step_is_gone(tmp_path):
    left = tmp_path / "rank0/step0"
    left.mkdir(parents=True)
    (left / "tensors-7.safetensors").write_text("old")
    StepFiles(str(tmp_path), 0, 0, 100)
    assert [path.name for path in left.iterdir()] == ["records-0.jsonl"]


def test_json_is_whole_or_not_there(tmp_path):
    path = tmp_path / "a.json"
    write_json(str(path), {"name": "层\udc80"})
    assert json.loads(path.read_text(encoding="utf-8")) == {"name": "层\udc80"}
    assert json_bytes({}) == b"{}\n"
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_json(str(path), {"name": object()})
    assert json.loads(path.read_text(encoding="utf-8")) == {"name": "层\udc80"}


@pytest.mark.parametrize("kind", ["file", "folder", "link", "linked step", "linked rank"])
def test_a_step_that_holds_what_no_writer_made_is_not_removed(tmp_path, kind):
    mine, place = tmp_path / "mine", tmp_path / "dump" / "rank0" / "step0"
    (mine / "step0").mkdir(parents=True)
    (mine / "step0" / "records-0.jsonl").write_text("mine")
    if kind.startswith("linked"):
        link, of = (place.parent, mine) if kind == "linked rank" else (place, mine / "step0")
        link.parent.mkdir(parents=True)
        link.symlink_to(of)
    else:
        place.mkdir(parents=True)
        (place / "records-0.jsonl").write_text("")
        other = place / ("tensors-0.safetensors" if kind == "link" else "results")
        if kind == "file":
            other.write_text("mine")
        elif kind == "folder":
            other.mkdir()
        else:
            other.symlink_to(mine)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(WriteError, match=r"is where a dump is to be written: .*\n *nothing was deleted"):
        Writer(str(tmp_path / "dump")).open_step(0, 0)
    left = {path for path in tmp_path.rglob("*") if not path.name.startswith(("writer", "last-call"))}
    assert left == set(before)


def test_a_step_that_was_stopped_is_removed(tmp_path):
    for name in ("records-0.jsonl", "tensors-0.safetensors", "tensors-1.safetensors.part", "step.json.part", "step.json"):
        (tmp_path / "rank0" / "step0").mkdir(parents=True, exist_ok=True)
        (tmp_path / "rank0" / "step0" / name).write_text("half")
    remove_step(str(tmp_path / "rank0" / "step0"))
    remove_step(str(tmp_path / "rank0" / "step0"))  # there is none: nothing to do
    assert list((tmp_path / "rank0").iterdir()) == []
