import numpy as np
import pytest

from precflow.dumps import lookup
from precflow.dumps.formats import read_dump
from precflow.dumps.overview import describe_kept, find_complete_steps, summarize_dump, to_plain

X = np.ones((2, 3), np.float32)


def test_everything_is_counted(build):
    made = build()
    made.call("a", "linear", [X], [X]).call("a", "linear", [X * 2], [X]).call("a", "", [X * 2], step=1)
    made.call("a", "view", [X], store=False, movement=True, step=1)
    seen = summarize_dump(read_dump(made.write()))
    assert (seen.steps, seen.unfinished, seen.calls) == (((0, 0), (0, 1)), (), 4)
    assert seen.levels == {"api": 3, "module": 1}
    assert (seen.operators, seen.phases, seen.dtypes) == ({"linear": 2, "view": 1}, {"forward": 4}, {"float32": 6})
    assert (seen.inputs, seen.outputs, seen.tensors) == (2, 4, 2)
    assert (seen.kept, seen.shards, seen.damage) == ({"tensor": 5, "digest": 1}, 2, ())
    assert seen.bytes > 0
    assert find_complete_steps(seen) == {0: 1}


def test_an_unsealed_dump_is_complete_up_to_its_last_finished_step(build, tmp_path):
    made = build()
    for step in range(4):
        made.call("a", "linear", [X], step=step).call("a", "linear", [X], step=step, rank=1)
    folder = made.write(sealed=False, steps=True)
    (folder / "rank0" / "step2" / "step.json").unlink()
    (folder / "rank1" / "step0" / "step.json").unlink()
    seen = summarize_dump(read_dump(folder, allow_unsealed=True))
    assert seen.unfinished == ((0, 2), (1, 0))
    assert find_complete_steps(seen) == {0: 1, 1: -1}
    assert len(seen.damage) == 2


def test_what_is_kept_of_a_record(build):
    made = build()
    made.call("a", "linear", {"0": X}).call("b", "linear", {"0": X}, store=False)
    lines = made.lines[0, 0]
    lines[1]["outputs"][0]["statistics"] = [1, 1, 6, 6, 0, 0, 0, 0, 0, 0]
    made.call("c", "linear", {"0": X}, store=False).call("d", "linear", {"0": X}, store=False)
    lines[3]["outputs"][0]["content"] = ""
    records = list(lookup.list_records(read_dump(made.write())))
    assert [describe_kept(found.record) for found in records] == ["tensor", "statistics", "digest", "nothing"]
    assert [row["kept"] for row in to_plain(records)] == ["tensor", "statistics", "digest", "nothing"]


@pytest.mark.parametrize("sealed", [True, False])
def test_a_lost_file_is_damage(build, sealed):
    folder = build().call("a", "linear", [X]).write(sealed=sealed, steps=True)
    (folder / "rank0" / "step0" / "tensors-0.safetensors").unlink()
    assert summarize_dump(read_dump(folder, allow_unsealed=True)).damage


def test_a_folder_that_cannot_be_read_and_a_link_to_nowhere_are_damage(build, monkeypatch):
    folder = build().call("a", "linear", [np.ones(4, np.float32)]).write()
    shard = folder / "rank0/step0/tensors-0.safetensors"
    shard.unlink()
    shard.symlink_to("/nowhere")
    seen = summarize_dump(read_dump(folder))
    assert "the file is missing" in " ".join(seen.damage)

    def refused(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr("precflow.dumps.overview.own_files", refused)
    assert summarize_dump(read_dump(folder)).shards == 0
