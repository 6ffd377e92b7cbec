import hashlib
import json
import os
import shutil
import time

import pytest
import torch

from precflow.agent.dump.finished_steps import FinishedStep, FinishedSteps, check_steps, index_outputs
from precflow.agent.dump.writer import Writer
from precflow.agent.measure.content_id import content_id


def finished(tmp_path, step, keys=(), size=10):
    place = tmp_path / f"rank0/step{step}"
    place.mkdir(parents=True, exist_ok=True)
    files = {f"rank0/step{step}/records-0.jsonl": {"bytes": size, "blake2b": "00"}}
    return FinishedStep(step, {"counts": {"calls": 1, "records": 2, "tensors": 3, "bytes": 4}, "files": files}, set(keys))


def add(kept, tmp_path, step, keys=()):
    for name, count in (("calls", 1), ("records", 2), ("tensors", 3), ("bytes", 4)):
        kept.counts[name] += count
    kept.line_bytes += 10
    facts = kept.describe_others((step, 0))
    kept.add(0, finished(tmp_path, step, keys))
    return facts


def test_without_a_ring_everything_stays(tmp_path):
    kept = FinishedSteps(str(tmp_path), 0)
    assert [add(kept, tmp_path, step, {f"c{step}"}) for step in range(3)] == [{}, {}, {}]
    assert not kept.drops_steps
    assert kept.contents == {"c0", "c1", "c2"}
    assert (kept.dropped, len(kept.files), kept.has((2, 0)), kept.has((3, 0))) == ({}, 3, True, False)


def test_a_seal_names_what_goes_for_its_step_before_it_goes(tmp_path):
    kept = FinishedSteps(str(tmp_path), 2)
    facts = [add(kept, tmp_path, step, {f"c{step}"}) for step in range(4)]
    assert [one["dropped"] for one in facts] == ["", "", "0", "0-1"]
    assert kept.counts == {"calls": 2, "records": 4, "tensors": 6, "bytes": 8}
    assert kept.line_bytes == 20
    assert kept.contents == set()
    assert kept.has((0, 0))
    assert list(kept.read_lines((0, 0))) == []
    assert sorted(path.name for path in (tmp_path / "rank0").iterdir()) == ["step2", "step3"]


def test_what_is_held_can_be_referred_to(tmp_path):
    kept = FinishedSteps(str(tmp_path), 2)
    for step in range(3):
        add(kept, tmp_path, step, {f"c{step}"})
    kept.hold((3, 0))
    assert kept.contents == {"c2"}
    assert add(kept, tmp_path, 3, {"c3"}) == {"held": True, "dropped": "0"}
    assert kept.contents == {"c2", "c3"}


def test_a_folder_that_cannot_be_removed_is_an_error(tmp_path):
    kept = FinishedSteps(str(tmp_path), 1)
    add(kept, tmp_path, 0)
    (tmp_path / "rank0/step0").rmdir()
    with pytest.raises(FileNotFoundError):
        add(kept, tmp_path, 1)


def line(step, content, order=0):
    who = {"order": order, "level": "api", "module": "a", "call": 0, "operator": "add", "ordinal": order, "phase": "forward"}
    return {**who, "step": step, "rank": 0, "inputs": [], "outputs": [{"index": "0", "content": content}]}


def fill(writer, steps):
    for step in steps:
        if writer.complete(step, 0):
            continue
        writer.open_step(step, 0)
        for tensor in (torch.full((3,), float(step)), torch.ones(5)):
            writer.tensor(content_id(tensor), tensor)
        if f"site {step}" not in writer.sites:
            writer.sites.append(f"site {step}")
        writer.call(line(step, content_id(torch.full((3,), float(step)))))


def checksums(folder):
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): hashlib.blake2b(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def stopped(tmp_path):
    """Write three steps, of which the last is not finished."""
    folder = tmp_path / "stopped"
    folder.mkdir()
    fill(Writer(str(folder), declared="x"), range(3))
    return folder


@pytest.fixture
def whole(tmp_path):
    """Write four steps without a stop."""
    folder = tmp_path / "whole"
    folder.mkdir()
    writer = Writer(str(folder), declared="x")
    fill(writer, range(4))
    writer.seal({})
    return checksums(folder)


def go_on(folder, declared="x", **settings):
    writer = Writer(str(folder), declared=declared, resume=True, **settings)
    done = [step for step in range(4) if writer.complete(step, 0)]
    fill(writer, range(4))
    writer.seal({})
    return done


def test_going_on_gives_what_nobody_stopped(stopped, whole):
    assert go_on(stopped) == [0, 1]
    assert checksums(stopped) == whole


def test_going_on_twice_and_with_nothing_left_to_do(stopped, whole):
    for done in ([0, 1], [0, 1, 2, 3], [0, 1, 2, 3]):
        assert go_on(stopped) == done
        assert checksums(stopped) == whole


def test_without_resume_everything_is_written_anew(stopped, whole):
    writer = Writer(str(stopped), declared="x")
    assert not list(stopped.glob("rank0/step*"))
    fill(writer, range(4))
    writer.seal({})
    assert checksums(stopped) == whole


def test_another_request_finds_nothing(stopped):
    assert go_on(stopped, declared="y") == []


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "lines cut": ("rank0/step1/records-0.jsonl", cut, [0]),
    "line changed": ("rank0/step0/records-0.jsonl", flip, []),
    "index changed": ("rank0/step0/tensors-0.safetensors", flip, []),
    "shard cut": ("rank0/step1/tensors-0.safetensors", cut, [0]),
    "shard gone": ("rank0/step0/tensors-0.safetensors", os.remove, []),
    "seal cut": ("rank0/step1/step.json", cut, [0, 1]),
    "seal torn": ("rank0/step1/step.json", lambda path: path.write_text(path.read_text()[:-30]), [0]),
    "seal of something else": ("rank0/step1/step.json", lambda path: path.write_text('["x"]'), [0]),
    "seal of a later version": ("rank0/step1/step.json", lambda path: path.write_text('{"schema": 9}'), [0]),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_steps_and_those_behind_them_are_written_anew(stopped, whole, name):
    place, damage, done = DAMAGE[name]
    damage(stopped / place)
    assert go_on(stopped) == done
    found = checksums(stopped)
    if name == "seal cut":  # the end of the line is not part of the JSON
        found["rank0/step1/step.json"] = whole["rank0/step1/step.json"]
    assert found == whole


def test_swapped_steps_are_not_taken_for_each_other(stopped, whole):
    place = stopped / "rank0"
    (place / "step0").rename(place / "x")
    (place / "step1").rename(place / "step0")
    (place / "x").rename(place / "step1")
    assert go_on(stopped) == []
    assert checksums(stopped) == whole


def test_a_clock_that_goes_backwards_changes_nothing(stopped, whole, monkeypatch):
    for number, path in enumerate(sorted(stopped.rglob("*"))):
        os.utime(path, (4e9 - 1e8 * number, 4e9 - 1e8 * number))
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    assert go_on(stopped) == [0, 1]
    assert checksums(stopped) == whole


def test_what_is_not_ours_is_left_alone(stopped):
    (stopped / "notes.txt").write_text("mine")
    (stopped / "rank0" / "README").write_text("mine")
    (stopped / "rank0" / "step3.dropped").mkdir()
    assert go_on(stopped) == [0, 1]
    assert (stopped / "notes.txt").read_text() == (stopped / "rank0" / "README").read_text() == "mine"
    assert not (stopped / "rank0" / "step3.dropped").exists()


def test_a_header_does_not_outlive_the_dump_that_it_sealed(stopped):
    go_on(stopped)
    (stopped / "error.json").write_text("{}")
    Writer(str(stopped), declared="x", resume=True)
    assert not (stopped / "dump.json").exists()
    assert not (stopped / "error.json").exists()


def test_budget_and_counts_go_on(stopped, whole):
    writer = Writer(str(stopped), declared="x", resume=True, budget_bytes=10_000)
    assert writer.counts == {"calls": 2, "records": 2, "tensors": 3, "bytes": 44}
    assert writer.sites == ["site 0", "site 1"]
    assert writer.stored(content_id(torch.ones(5)))


def test_other_ranks_are_left_alone(tmp_path):
    for rank in (0, 1):
        writer = Writer(str(tmp_path), rank=rank, declared="x")
        writer.open_step(0, rank)
        writer.close_step(0, rank)
        writer.abandon({})
    writer = Writer(str(tmp_path), rank=1, declared="x", resume=True)
    assert (writer.complete(0, 0), writer.complete(0, 1)) == (False, True)
    assert (tmp_path / "rank0/step0/step.json").exists()


def test_a_ring_goes_on_with_what_it_dropped_and_held(tmp_path):
    def made(name, stops):
        folder = tmp_path / name
        folder.mkdir()
        for stop in stops:
            writer = Writer(str(folder), declared="x", keep_last=2, resume=True)
            for step in range(stop):
                new = not writer.complete(step, 0)
                fill(writer, [step])
                if step == 3 and new:
                    writer.hold()
            if stop == 9:
                writer.seal({})
            del writer
        return checksums(folder)

    assert made("stopped", [3, 4, 5, 7, 9]) == made("whole", [9])
    assert sorted(path.name for path in (tmp_path / "whole/rank0").iterdir()) == ["step2", "step3", "step7", "step8"]


def test_lines_give_the_contents_of_outputs(stopped):
    writer = Writer(str(stopped), declared="x", resume=True)
    assert index_outputs(writer.lines(1, 0)) == {"a/add.0/forward.output.0@1.0": content_id(torch.full((3,), 1.0))}
    assert list(writer.lines(2, 0)) == []
    aten = {**line(0, "aa"), "level": "operator"}
    assert list(index_outputs([aten])) == ["a/aten.add.0/forward.output.0"]


def test_finished_steps_are_read_without_a_writer(stopped):
    found = check_steps(str(stopped), 0, "x")
    assert [one.step for one in found] == [0, 1]
    assert found[0].keys == {content_id(torch.zeros(3)), content_id(torch.ones(5))}
    shutil.rmtree(stopped)
    assert check_steps(str(stopped), 0, "x") == []
    assert json.dumps(found[1].seal["sites"]) == '["site 0", "site 1"]'
