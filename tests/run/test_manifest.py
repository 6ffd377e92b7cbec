"""The history of a run folder survives damage by saying so, and counts runs."""

import json
from dataclasses import asdict, replace

import filelock
import pytest

from precflow.agent.contract import checksum_of
from precflow.errors import BusyError, StoreError
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
