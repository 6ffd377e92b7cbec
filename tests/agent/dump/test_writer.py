import errno
import hashlib
import json
import os
import resource

import pytest
import safetensors.torch
import torch

from precflow.agent.dump import shard as shard_module
from precflow.agent.dump import step_files
from precflow.agent.dump.writer import WriteError, Writer, evidence_id
from precflow.agent.measure.content_id import content_id

LINE = {"order": 0, "operator": "add", "inputs": [], "outputs": [{"index": "0"}]}
HEADER = {
    "schema": 1,
    "dtype": "float16",
    "device": {"name": "npu", "kind": "emulated"},
    "weights": {"digest": "aa"},
    "inputs": {"digest": "bb"},
    "seconds": {"forward": 1.0},
}


def put(writer, *tensors):
    return [writer.tensor(content_id(tensor), tensor) for tensor in tensors]


def opened(folder, **options):
    writer = Writer(str(folder), **options)
    writer.open_step(0, 0)
    return writer


def lines(folder, step=0):
    text = (folder / f"rank0/step{step}/records-0.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_a_sealed_dump_lists_every_file_with_its_checksum(tmp_path):
    writer = opened(tmp_path)
    put(writer, torch.ones(3), torch.zeros(2))
    writer.call(LINE)
    sealed = writer.seal(HEADER)
    assert json.loads((tmp_path / "dump.json").read_text()) == sealed
    assert sorted(sealed["files"]) == ["rank0/step0/records-0.jsonl", "rank0/step0/tensors-0.safetensors"]
    for name, facts in sealed["files"].items():
        data = (tmp_path / name).read_bytes()
        index = data[: 8 + int.from_bytes(data[:8], "little")]
        kind, sealed_part = ("index", index) if name.endswith("safetensors") else ("blake2b", data)
        assert facts == {"bytes": len(data), kind: hashlib.blake2b(sealed_part, digest_size=16).hexdigest()}
    assert sealed["counts"] == {"calls": 1, "records": 1, "tensors": 2, "bytes": 20}
    assert not list(tmp_path.rglob("*.part"))


def test_each_content_is_stored_once_in_the_whole_dump(tmp_path):
    writer = opened(tmp_path)
    assert put(writer, torch.ones(3), torch.ones(3)) == [True, True]
    writer.open_step(1, 0)
    assert put(writer, torch.ones(3)) == [True]
    writer.call(LINE)
    assert sorted(writer.seal(HEADER)["files"]) == [
        "rank0/step0/records-0.jsonl",
        "rank0/step0/tensors-0.safetensors",
        "rank0/step1/records-0.jsonl",
    ]
    assert writer.stored(content_id(torch.ones(3)))


def test_each_shard_takes_twice_as_much_as_the_one_before(tmp_path):
    writer = opened(tmp_path, shard_bytes=64)
    tensors = [torch.full((8,), float(number)) for number in range(3)] + [torch.arange(100.0), torch.zeros(1)]
    put(writer, *tensors)
    files = [name for name in writer.seal(HEADER)["files"] if name.endswith("safetensors")]
    shards = [safetensors.torch.load_file(str(tmp_path / name)) for name in files]
    assert [sum(tensor.numel() * 4 for tensor in shard.values()) for shard in shards] == [64, 32, 400, 4]
    found = {key: tensor for shard in shards for key, tensor in shard.items()}
    assert all(torch.equal(found[content_id(tensor)], tensor) for tensor in tensors)


def test_a_large_step_has_few_files(tmp_path):
    writer = opened(tmp_path, shard_bytes=1000)
    for number in range(200):
        put(writer, torch.full((200,), float(number)))
    assert len(writer.seal(HEADER)["files"]) == 9
    assert len(list((tmp_path / "rank0/step0").iterdir())) == 10


def test_a_tensor_written_to_later_is_stored_as_it_was(tmp_path):
    writer = opened(tmp_path)
    tensor = torch.ones(3)
    content = content_id(tensor)
    writer.tensor(content, tensor)
    tensor.add_(1)
    writer.seal(HEADER)
    assert torch.equal(safetensors.torch.load_file(str(tmp_path / "rank0/step0/tensors-0.safetensors"))[content], torch.ones(3))


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_unknown_types_are_recorded_without_the_tensor(tmp_path):
    writer = opened(tmp_path)
    assert put(writer, torch.zeros(2, dtype=torch.complex32)) == [False]
    assert writer.counts["tensors"] == 0


def test_lines_reach_the_file_at_once_and_keep_odd_names(tmp_path):
    writer = opened(tmp_path)
    writer.call({**LINE, "module": "注意力 <script>\n\udc80"})
    assert lines(tmp_path)[0]["module"] == "注意力 <script>\n\udc80"


def test_lines_that_are_ready_are_appended_as_they_are(tmp_path):
    writer = Writer(str(tmp_path))
    writer.open_step(0, 0)
    writer.append(b'{"inputs": [], "outputs": []}\n{"inputs": [{}], "outputs": [{}]}\n', 2, 2)
    writer.seal({})
    assert (tmp_path / "rank0/step0/records-0.jsonl").read_bytes().count(b"\n") == 2
    assert (writer.counts["calls"], writer.counts["records"]) == (2, 2)


def test_content_depends_on_evidence_only(tmp_path):
    one = evidence_id({**HEADER, "files": {"a": 1}})
    assert one == evidence_id({**HEADER, "files": {"a": 1}, "seconds": {}, "facts": {"host": "x"}, "recipe": "other"})
    others = [{"dtype": "float32"}, {"schema": 2}, {"device": {"name": "cpu"}}, {"weights": {"digest": "x"}}, {"files": {}}]
    changed = [evidence_id({**HEADER, "files": {"a": 1}, **other}) for other in others]
    assert one not in changed
    assert len(evidence_id({})) == 32


def test_an_abandoned_dump_is_readable_and_has_no_seal(tmp_path):
    writer = opened(tmp_path)
    tensor = torch.ones(3)
    put(writer, tensor)
    writer.call(LINE)
    assert writer.abandon({"message": "boom"}) is True
    assert not (tmp_path / "dump.json").exists()
    assert json.loads((tmp_path / "error.json").read_text()) == {"message": "boom"}
    assert lines(tmp_path) == [LINE]
    shard = safetensors.torch.load_file(str(tmp_path / "rank0/step0/tensors-0.safetensors"))
    assert torch.equal(shard[content_id(tensor)], tensor)


def test_over_budget_names_what_was_allowed_and_needed(tmp_path):
    writer = opened(tmp_path, budget_bytes=1000)
    put(writer, torch.zeros(200))
    with pytest.raises(WriteError, match=r"budget: 1.0 kB allowed, 800 bytes written, 800 bytes more needed") as caught:
        put(writer, torch.ones(200))
    assert caught.value.kind == "budget"
    assert "capture.budget" in caught.value.next_step
    assert writer.failure is caught.value
    assert writer.abandon({}) is True
    assert len(safetensors.torch.load_file(str(tmp_path / "rank0/step0/tensors-0.safetensors"))) == 1


def test_lines_count_against_the_budget(tmp_path):
    writer = opened(tmp_path, budget_bytes=100)
    writer.call(LINE)
    with pytest.raises(WriteError, match="budget"):
        writer.call(LINE)
    assert lines(tmp_path) == [LINE]


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.ENOSPC, "disk_full", "no space left in"),
        (errno.EDQUOT, "disk_full", "no space left in"),
        (errno.EROFS, "read_only", "cannot be written to"),
        (errno.EACCES, "read_only", "cannot be written to"),
        (errno.EIO, "unwritable", "failed"),
    ],
)
def test_a_refusing_disk_is_explained(tmp_path, monkeypatch, number, kind, words):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    writer = opened(tmp_path)
    writer.call(LINE)
    put(writer, torch.zeros(1000))
    monkeypatch.setattr(shard_module, "_write_all", refuse)
    with pytest.raises(WriteError, match=words) as caught:
        writer.close_step(0, 0)
    assert caught.value.kind == kind
    assert str(tmp_path) in caught.value.message
    assert "4.0 kB" in caught.value.message
    assert writer.abandon({"message": "x"}) is True
    assert lines(tmp_path) == [LINE]


def test_abandon_survives_a_disk_that_takes_nothing(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = opened(tmp_path)
    put(writer, torch.zeros(10))
    monkeypatch.setattr(shard_module, "_write_all", refuse)
    monkeypatch.setattr(step_files.os, "replace", refuse)
    assert writer.abandon({"message": "x"}) is False
    assert not (tmp_path / "error.json").exists()


def test_a_real_limit_of_the_system_leaves_earlier_files_readable(tmp_path):
    child = os.fork()
    if child == 0:  # a limit is for all of a process, and for good
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        writer, told = Writer(str(tmp_path), shard_bytes=50_000), 1
        writer.open_step(0, 0)
        try:
            for number in range(2, 10):
                put(writer, torch.full((number * 6000,), 1.0))
        except WriteError as error:
            told = 0 if error.kind == "disk_full" and writer.abandon({"message": error.message}) else 2
        finally:
            os._exit(told)
    assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 0
    files = sorted(path.name for path in (tmp_path / "rank0/step0").iterdir())
    assert files == ["records-0.jsonl", "tensors-0.safetensors", "tensors-1.safetensors", "tensors-2.safetensors"]
    sizes = [len(safetensors.torch.load_file(str(tmp_path / "rank0/step0" / name))) for name in files[1:]]
    assert sizes == [1, 1, 1]


def test_a_line_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    writer = opened(tmp_path)
    writer.call(LINE)
    real = writer._step._file

    class Full:
        def write(self, data):
            if self.left:
                self.left = False
                return real.write(data[:5])
            raise OSError(errno.ENOSPC, "No space left on device")

        left = True
        truncate, seek, close = real.truncate, real.seek, real.close

    monkeypatch.setattr(writer._step, "_file", Full())
    with pytest.raises(WriteError, match="no space left"):
        writer.call(LINE)
    assert lines(tmp_path) == [LINE]


def test_a_missing_folder_is_made_and_a_file_in_its_place_refused(tmp_path):
    (tmp_path / "rank0").write_text("in the way")
    with pytest.raises(WriteError) as caught:
        opened(tmp_path)
    assert caught.value.kind == "unwritable"


def test_steps_are_written_once(tmp_path):
    writer = opened(tmp_path)
    writer.open_step(0, 0)
    writer.call(LINE)
    writer.close_step(7, 0)
    writer.open_step(1, 0)
    writer.call(LINE)
    with pytest.raises(ValueError, match="step 0 of rank 0"):
        writer.open_step(0, 0)
    assert lines(tmp_path, 0) == lines(tmp_path, 1) == [LINE]


def test_nothing_is_written_outside_of_a_step(tmp_path):
    with pytest.raises(ValueError, match="open_step"):
        Writer(str(tmp_path)).call(LINE)


def written(folder, rank, steps=(0,), declared="d"):
    """Return the writer of a rank that has written these steps."""
    writer = Writer(str(folder), rank=rank, declared=declared)
    for step in steps:
        writer.sites.append(f"site of rank {rank}")
        writer.open_step(step, rank)
        writer.tensor(f"{rank:032x}", torch.full((4,), float(rank)))
        writer.call({"inputs": [], "outputs": [], "rank": rank})
    return writer


def test_one_rank_seals_for_all_that_have_finished(tmp_path):
    first, second = written(tmp_path, 0), written(tmp_path, 1)
    second.finish()
    sealed = first.seal({"sites": first.sites}, ranks=[1])
    assert sealed["sites_of_ranks"] == {"1": ["site of rank 1"]}
    assert {name.split("/")[0] for name in sealed["files"]} == {"rank0", "rank1"}
    assert sealed["counts"]["tensors"] == 2
    assert not list(tmp_path.glob("*.lock"))


def test_a_rank_that_still_writes_is_not_sealed(tmp_path):
    first, second = written(tmp_path, 0), written(tmp_path, 1)
    with pytest.raises(WriteError) as caught:
        first.seal({}, ranks=[1])
    assert caught.value.kind == "busy"
    assert not (tmp_path / "dump.json").exists()
    second.finish()


@pytest.mark.parametrize("steps", [(), (0,), (0, 1, 2)])
def test_a_rank_with_other_steps_is_not_sealed(tmp_path, steps):
    first, second = written(tmp_path, 0, steps=(0, 1)), written(tmp_path, 1, steps=steps)
    second.finish()
    with pytest.raises(WriteError, match=r"rank 1 did not finish in .*expected 0, 1"):
        first.seal({}, ranks=[1])
    assert not (tmp_path / "dump.json").exists()


def test_a_rank_that_failed_is_not_sealed(tmp_path):
    first, second = written(tmp_path, 0), written(tmp_path, 1)
    second.close_step(0, 1)
    second.abandon({"kind": "workload", "message": "it raised"})
    with pytest.raises(WriteError, match="rank 1 did not finish"):
        first.seal({}, ranks=[1])
    assert (tmp_path / "error.json").exists()


def test_a_rank_that_was_killed_goes_on_behind_its_own_steps(tmp_path):
    first, second = written(tmp_path, 0, steps=(0, 1)), written(tmp_path, 1, steps=(0,))
    second.finish()
    again = Writer(str(tmp_path), rank=1, declared="d", resume=True)
    assert (again.complete(0, 1), again.complete(1, 1)) == (True, False)
    again.open_step(1, 1)
    again.finish()
    assert len(first.seal({}, ranks=[1])["files"]) >= 4
