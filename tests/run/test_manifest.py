"""The history of a run folder survives damage by saying so, and counts runs."""

import json
import time
from dataclasses import asdict, replace

import filelock
import pytest

from precflow.agent.contract import checksum_of
from precflow.errors import BusyError, StoreError
from precflow.run import manifest as manifests
from precflow.run.manifest import Manifest, RunEntry


def test_runs_are_numbered_and_updated(tmp_path):
    manifest = Manifest(tmp_path / "runs" / "one")
    first = manifest.begin("2026-11-21T10:00", "precflow +recipe=one")
    manifest.update(replace(first, verdict="aligned", exit_code=0, instances={"judge": "k1"}))
    second = manifest.begin("2026-11-21T10:05", "precflow +recipe=one")
    assert (first.number, second.number) == (1, 2)
    assert [entry.verdict for entry in manifest.entries()] == ["aligned", ""]
    assert manifest.last("judge") == "k1"
    assert manifest.last("report") == ""


def test_no_history_is_empty(tmp_path):
    assert Manifest(tmp_path).entries() == []


NONE = {"schema": 2, "runs": []}
DAMAGED = {
    "torn": "{",
    "older": '{"schema": 1, "runs": []}',
    "unsealed": json.dumps(NONE),
    "another": json.dumps({**NONE, "checksum": "00"}),
    "no map": "[]",
    "nothing": "null",
    "nested": "[" * 10_000,
    "infinite": '{"schema": 1e999}',
    "unknown key": {**NONE, "runs": [{"unknown": 1}]},
    "number of another kind": {**NONE, "runs": [{**asdict(RunEntry(1, "then", "precflow")), "exit_code": "0"}]},
    "missing key": {**NONE, "runs": [{"number": 1, "started": "then", "command": "precflow"}]},
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_damaged_history_says_what_to_do(tmp_path, text):
    text = text if isinstance(text, str) else json.dumps({**text, "checksum": checksum_of(text)})
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(StoreError, match=r"damaged.*\n.*store beside it is kept"):
        Manifest(tmp_path).entries()


def test_a_lock_that_somebody_keeps_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("precflow.run.manifest._PATIENCE", 0.1)
    with filelock.FileLock(tmp_path / "run.lock"), pytest.raises(BusyError, match=r"run\.lock is held by another run"):
        Manifest(tmp_path).begin("2026-11-21T10:00", "precflow +recipe=one")


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "run.lock").mkdir()  # a lock that cannot be opened, also by root
    with pytest.raises(StoreError, match="cannot write in"):
        Manifest(tmp_path).begin("2026-11-21T10:00", "precflow +recipe=one")


def test_newer_history_is_refused(tmp_path):
    (tmp_path / "run.json").write_text('{"schema": 99, "runs": []}')
    with pytest.raises(StoreError, match="newer precflow"):
        Manifest(tmp_path).entries()


def test_a_long_history_is_moved_and_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(manifests, "_MOST_RECENT", 20)
    monkeypatch.setattr(manifests, "_STAY", 10)
    manifest, end = Manifest(tmp_path), 45
    for number in range(1, end + 1):
        entry = manifest.begin("2026-11-22T10:00+00:00", f"precflow {number}")
        assert entry.number == number
        manifest.update(replace(entry, instances={"judge": f"{number:x}"}, exit_code=0))
    assert [entry.number for entry in manifest.entries()] == list(range(1, end + 1))
    assert [entry.command for entry in manifest.entries()][:2] == ["precflow 1", "precflow 2"]
    assert len(json.loads((tmp_path / "run.json").read_text())["runs"]) <= 20
    old = manifest.entries()[3]
    manifest.update(replace(old, verdict="aligned"))  # it has run all the time
    assert manifest.entries()[3].verdict == "aligned"
    assert manifest.last("judge") == f"{end:x}"
    assert manifest.last("compare") == ""


@pytest.fixture
def moved(tmp_path):
    """Return a history with older runs."""
    manifest = Manifest(tmp_path)
    manifest._write([RunEntry(number, "2026-11-22T10:00+00:00", f"précflow {number}") for number in range(1, 202)])
    return manifest


def test_a_run_that_was_killed_while_it_moved_others_loses_none(moved, tmp_path):
    whole, recent = moved.entries(), moved._read_recent()
    assert len(recent) == 100
    before = (tmp_path / "run.older").read_bytes()
    (tmp_path / "run.older").write_bytes(before + before[: len(before) // 2])  # half a line
    assert moved.entries() == whole
    moved._move(recent[:50])  # and run.json was not written
    assert moved.entries() == whole
    assert (tmp_path / "run.older").read_bytes().startswith(before)


@pytest.mark.parametrize("place", [0, 40, 5000])
def test_damage_of_older_runs_is_said(moved, tmp_path, place):
    data = bytearray((tmp_path / "run.older").read_bytes())
    data[place] ^= 1
    (tmp_path / "run.older").write_bytes(data)
    with pytest.raises(StoreError, match=r"run\.older is damaged") as caught:
        moved.entries()
    assert "mv " in caught.value.next_step
    assert moved.begin("2026-11-22T10:00+00:00", "").number == 202  # a run needs no older ones


def test_twenty_thousand_runs_are_opened_in_two_seconds(tmp_path):
    manifest, names = Manifest(tmp_path), "dump.reference dump.target determinism compare judge localize advise report".split()
    made = RunEntry(1, "2026-11-22T10:00+00:00", "precflow +recipe=x" + " seed=1" * 20, dict.fromkeys(names, "0123456789"))
    for first in range(1, 20_000, 2000):
        manifest._move([replace(made, number=number) for number in range(first, first + 2000)])
    began = time.process_time()  # however busy the machine is
    assert manifest.begin("2026-11-22T10:00+00:00", "").number == 20_001
    assert len(manifest.entries()) == 20_001
    assert manifest.last("nothing") == ""
    assert time.process_time() - began < 2
