import pytest

from precflow.agent.dump.finished_steps import KeptSteps
from precflow.agent.dump.resumption import Finished


def finished(tmp_path, step, keys=(), size=10):
    place = tmp_path / f"rank0/step{step}"
    place.mkdir(parents=True, exist_ok=True)
    files = {f"rank0/step{step}/records-0.jsonl": {"bytes": size, "blake2b": "00"}}
    return Finished(step, {"counts": {"calls": 1, "records": 2, "tensors": 3, "bytes": 4}, "files": files}, set(keys))


def add(kept, tmp_path, step, keys=()):
    for name, count in (("calls", 1), ("records", 2), ("tensors", 3), ("bytes", 4)):
        kept.counts[name] += count
    kept.line_bytes += 10
    facts = kept.closing((step, 0))
    kept.add(0, finished(tmp_path, step, keys))
    return facts


def test_without_a_ring_everything_stays(tmp_path):
    kept = KeptSteps(str(tmp_path), 0)
    assert [add(kept, tmp_path, step, {f"c{step}"}) for step in range(3)] == [{}, {}, {}]
    assert not kept.go_round
    assert kept.contents == {"c0", "c1", "c2"}
    assert (kept.dropped, len(kept.files), kept.complete((2, 0)), kept.complete((3, 0))) == ({}, 3, True, False)


def test_a_seal_names_what_goes_for_its_step_before_it_goes(tmp_path):
    kept = KeptSteps(str(tmp_path), 2)
    facts = [add(kept, tmp_path, step, {f"c{step}"}) for step in range(4)]
    assert [one["dropped"] for one in facts] == ["", "", "0", "0-1"]
    assert kept.counts == {"calls": 2, "records": 4, "tensors": 6, "bytes": 8}
    assert kept.line_bytes == 20
    assert kept.contents == set()
    assert kept.complete((0, 0))
    assert list(kept.lines((0, 0))) == []
    assert sorted(path.name for path in (tmp_path / "rank0").iterdir()) == ["step2", "step3"]


def test_what_is_held_can_be_referred_to(tmp_path):
    kept = KeptSteps(str(tmp_path), 2)
    for step in range(3):
        add(kept, tmp_path, step, {f"c{step}"})
    kept.hold((3, 0))
    assert kept.contents == {"c2"}
    assert add(kept, tmp_path, 3, {"c3"}) == {"held": True, "dropped": "0"}
    assert kept.contents == {"c2", "c3"}


def test_a_folder_that_cannot_be_removed_is_an_error(tmp_path):
    kept = KeptSteps(str(tmp_path), 1)
    add(kept, tmp_path, 0)
    (tmp_path / "rank0/step0").rmdir()
    with pytest.raises(FileNotFoundError):
        add(kept, tmp_path, 1)
