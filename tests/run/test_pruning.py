"""Space is freed of what no kept run needs, and of nothing else."""

import datetime
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import filelock
import pytest

from precflow.agent.contract import checksum_of
from precflow.errors import StoreError
from precflow.run import pruning
from precflow.run.manifest import Manifest, RunEntry
from precflow.run.pruning import PruneRequest
from precflow.run.store import SEAL_FILE, Store, lock_file

DAY = 86400.0


def ago(days):
    return datetime.datetime.fromtimestamp(time.time() - days * DAY, tz=datetime.timezone.utc).isoformat(timespec="minutes")


def make(root, name, *, days=0.0, size=1000, files=None):
    """Seal an instance ``NAME-KEY`` that was last used so many days ago."""
    store, (stage, key) = Store(root), name.split("-")
    with store.making(stage, key) as attempt:
        (attempt.folder / "data").write_bytes(b"x" * size)
        for file, text in (files or {}).items():
            (attempt.folder / file).write_text(text, encoding="utf-8")
        sealed = store.seal(attempt, {"name": stage, "key": key, "declared": {}, "needs": {}, "note": ""})
    when = time.time() - days * DAY
    seal = json.loads((sealed.folder / SEAL_FILE).read_text(encoding="utf-8"))
    seal["finished"] = when
    (sealed.folder / SEAL_FILE).write_text(json.dumps({**seal, "checksum": checksum_of(seal)}), encoding="utf-8")
    os.utime(sealed.folder / SEAL_FILE, (when, when))
    return sealed.folder


def left(root, name, *, days=0.0):
    """Leave a folder as a failed or killed maker does."""
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "log").write_text("x" * 100, encoding="utf-8")
    when = time.time() - days * DAY
    os.utime(folder, (when, when))
    return folder


def write_runs(folder, *runs, store=""):
    """Write the history of a run folder: pairs of days ago and the instances that the run names."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = Manifest(folder)
    entries = [
        RunEntry(
            number, ago(days), "", {name.split("-")[0]: name.split("-")[1] for name in named}, exit_code=code, store=str(store)
        )
        for number, (days, named, code) in enumerate(((*run, 0)[:3] for run in runs), start=1)
    ]
    manifest._write(entries)
    return folder


def goes(found):
    return {rest.name for one in found for rest in one.goes}


def stays(found):
    return {rest.name for one in found for rest in one.stays}


@pytest.fixture
def folder(tmp_path):
    """Return a run folder of three runs, with one instance that none of them names."""
    store = tmp_path / "run" / "store"
    for name, days in (("dump-a", 40), ("judge-a", 40), ("judge-b", 20), ("judge-c", 1), ("judge-x", 25)):
        make(store, name, days=days)
    return write_runs(tmp_path / "run", (40, ["dump-a", "judge-a"]), (20, ["dump-a", "judge-b"]), (1, ["dump-a", "judge-c"]))


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        (PruneRequest(), {"judge-x"}),
        (PruneRequest(runs=1), {"judge-a", "judge-b", "judge-x"}),
        (PruneRequest(runs=2), {"judge-a", "judge-x"}),
        (PruneRequest(runs=9), {"judge-x"}),
        (PruneRequest(older=30 * DAY), {"judge-a"}),
        (PruneRequest(older=10 * DAY), {"judge-a", "judge-b", "judge-x"}),
        (PruneRequest(older=0.0), {"judge-a", "judge-b", "judge-x"}),
        (PruneRequest(older=30 * DAY, runs=1), {"judge-a"}),
        (PruneRequest(older=10 * DAY, runs=2), {"judge-a", "judge-x"}),
    ],
)
def test_what_no_kept_run_names_can_go(folder, wish, expected):
    found = pruning.find_prunable([folder], [], wish)
    assert goes(found) == expected
    assert goes(found) | stays(found) == {"dump-a", "judge-a", "judge-b", "judge-c", "judge-x"}


def test_sizes_and_reasons(folder):
    make(folder / "store", "judge-y", days=30, size=5000)
    rests = {rest.name: rest for one in pruning.find_prunable([folder], [], PruneRequest(runs=1)) for rest in one.goes}
    assert 5000 < rests["judge-y"].bytes < 6000
    assert (rests["judge-y"].why, rests["judge-b"].why) == ("no run names it", "run 2 was the last to name it")


def test_what_was_made_since_the_last_run_began_stays(folder):
    make(folder / "store", "dump-new")
    left(folder / "store", "dump-q.failed")
    left(folder / "store" / ".making", "dump-q-99999999")
    assert {"dump-new", "dump-q.failed", "dump-q-99999999"} <= stays(pruning.find_prunable([folder], [], PruneRequest(runs=1)))


def test_what_failed_and_killed_makers_left_can_go(folder):
    left(folder / "store", "dump-q.failed", days=10)
    left(folder / "store" / ".making", "dump-r-99999999", days=10)
    found = pruning.find_prunable([folder], [], PruneRequest())
    assert goes(found) == {"judge-x", "dump-q.failed", "dump-r-99999999"}
    deleted = [rest.name for one in found for rest, why in pruning.prune(one, one) if not why]
    assert set(deleted) == goes(found)
    assert {path.name for path in (folder / "store").iterdir()} == {".making", "dump-a", "judge-a", "judge-b", "judge-c"}


def test_what_is_being_made_stays(folder):
    store = folder / "store"
    left(store / ".making", "dump-r-4711", days=10)
    with filelock.FileLock(lock_file(store, "dump-r"), thread_local=False), filelock.FileLock(lock_file(store, "judge-x")):
        (found,) = pruning.find_prunable([folder], [], PruneRequest())
        assert "dump-r-4711" in stays([found])
        ((rest, why),) = pruning.prune(found, found)
    assert (rest.name, why) == ("judge-x", "it is being made right now")
    assert rest.folder.is_dir()


def test_what_a_run_names_since_it_was_shown_stays(folder):
    shown = pruning.find_prunable([folder], [], PruneRequest())
    write_runs(folder, (1, ["judge-x"]))
    again = pruning.find_prunable([folder], [], PruneRequest())
    assert [(rest.name, why) for rest, why in pruning.prune(shown[0], again[0])] == [("judge-x", "a run has come to use it")]
    assert (folder / "store" / "judge-x").is_dir()


def test_what_precflow_did_not_make_is_left_alone(folder, tmp_path):
    store = folder / "store"
    (store / "notes").mkdir()
    (store / "notes" / "a.txt").write_text("mine", encoding="utf-8")
    (store / "readme.txt").write_text("mine", encoding="utf-8")
    left(store, "judge-z", days=90)  # no seal
    make(store, "judge-w", days=90).rename(store / "copy-of-judge-w")  # the seal of another name
    (store / ".making" / "mine").mkdir()
    (found,) = pruning.find_prunable([folder], [], PruneRequest(older=0.0, runs=1))
    assert {"notes", "readme.txt", "judge-z", "copy-of-judge-w"} == set(found.foreign)
    assert "mine" not in goes([found])


def test_links_are_never_followed(folder, tmp_path):
    store, outside = folder / "store", tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x" * 10_000, encoding="utf-8")
    elsewhere = make(tmp_path / "other", "judge-l", days=90)
    (store / "judge-l").symlink_to(elsewhere)
    (store / ".making" / "judge-m-1").symlink_to(outside)
    (store / "judge-n.failed").symlink_to(outside)
    inside = make(store, "judge-o", days=90)
    (inside / "link").symlink_to(outside)
    (found,) = pruning.find_prunable([folder], [], PruneRequest(runs=1))
    rests = {rest.name: rest for rest in found.goes}
    assert not {"judge-l", "judge-m-1", "judge-n.failed"} & set(rests)
    assert rests["judge-o"].bytes < 5000
    assert [why for _, why in pruning.prune(found, found) if why] == []
    assert not inside.exists()
    assert (outside / "precious").stat().st_size == 10_000
    assert elsewhere.is_dir()


def test_a_dump_that_another_run_was_given_stays(folder, tmp_path):
    dump = make(folder / "store", "dump-x", days=90)
    other = write_runs(tmp_path / "other", (1, ["dump.target-g"]))
    make(other / "store", "dump.target-g", files={"given.json": json.dumps({"path": str(dump), "damage": []})})
    assert "dump-x" in stays(pruning.find_prunable([folder, other], [], PruneRequest()))
    assert "dump-x" in stays(pruning.find_prunable([folder], [], PruneRequest(), witnesses=[other]))


_KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from precflow.run import pruning
shutil.rmtree = lambda path: os.kill(os.getpid(), signal.SIGKILL)
(found,) = pruning.find_prunable([Path(sys.argv[1])], [], pruning.PruneRequest())
list(pruning.prune(found, found))
"""


def test_a_prune_that_is_killed_leaves_nothing_half_deleted_in_its_place(folder):
    done = subprocess.run([sys.executable, "-c", _KILLED, str(folder)])
    assert done.returncode == -signal.SIGKILL
    assert not (folder / "store" / "judge-x").exists()
    (aside,) = (folder / "store" / ".pruned").iterdir()
    (found,) = pruning.find_prunable([folder], [], PruneRequest(older=10 * DAY))
    assert aside.name in goes([found])  # whatever its age
    assert [why for _, why in pruning.prune(found, found) if why] == []
    assert not (folder / "store" / ".pruned").exists()


@pytest.fixture
def shared(tmp_path):
    """Return a store that two run folders use, each with an instance of its own, and a third that neither names."""
    store = tmp_path / "shared" / "recipe"
    for name, days in (("judge-a", 40), ("judge-b", 40), ("judge-c", 40), ("judge-d", 2)):
        make(store, name, days=days)
    one = write_runs(tmp_path / "one", (1, ["judge-a"]), store=store)
    return store, one, write_runs(tmp_path / "two", (1, ["judge-b"]), store=store)


def test_of_a_shared_store_only_what_is_old_can_go(shared):
    store, one, two = shared
    (found,) = pruning.find_prunable([one], [], PruneRequest())
    assert (found.store, found.shared, goes([found])) == (store, True, set())
    assert goes(pruning.find_prunable([one], [], PruneRequest(runs=1))) == set()
    assert goes(pruning.find_prunable([one, two], [], PruneRequest(older=30 * DAY))) == {"judge-c"}
    assert goes(pruning.find_prunable([one], [], PruneRequest(older=30 * DAY), witnesses=[two])) == {"judge-c"}
    assert goes(pruning.find_prunable([], [store], PruneRequest(older=30 * DAY), witnesses=[one])) == {"judge-b", "judge-c"}


def test_what_a_run_elsewhere_kept_lately_is_young(shared):
    store, one, _ = shared
    os.utime(store / "judge-b" / SEAL_FILE)  # as a run does that keeps it
    assert goes(pruning.find_prunable([one], [], PruneRequest(older=30 * DAY))) == {"judge-c"}


def test_a_run_that_has_not_ended_keeps_what_it_names(tmp_path):
    folder = write_runs(tmp_path / "run", (5, ["judge-a"], -1), (1, ["judge-b"]))
    for name in ("judge-a", "judge-b"):
        make(folder / "store", name, days=6)
    assert goes(pruning.find_prunable([folder], [], PruneRequest(runs=1))) == set()
    assert goes(pruning.find_prunable([folder], [], PruneRequest(older=3 * DAY))) == {"judge-a"}


def test_a_damaged_history_stops_it(folder):
    (folder / "run.json").write_text("{", encoding="utf-8")
    with pytest.raises(StoreError, match="damaged"):
        pruning.find_prunable([folder], [], PruneRequest())


def test_without_a_history_a_store_counts_as_shared(tmp_path):
    make(tmp_path / "run" / "store", "judge-a", days=40)
    (found,) = pruning.find_prunable([tmp_path / "run"], [], PruneRequest())
    assert (found.shared, goes([found])) == (True, set())


def test_run_folders_and_stores_are_found(folder, tmp_path, shared):
    assert pruning.list_run_folders(tmp_path) == [tmp_path / "one", tmp_path / "run", tmp_path / "two"]
    assert pruning.list_stores(tmp_path / "shared") == [shared[0]]
    assert pruning.list_stores(shared[0]) == [shared[0]]
    make(tmp_path / "team" / "llama" / "attention", "judge-a")
    assert pruning.list_stores(tmp_path / "team") == [tmp_path / "team" / "llama" / "attention"]


def test_a_folder_that_may_not_be_read_stops_no_search_for_stores(tmp_path, monkeypatch):
    make(tmp_path / "team" / "ours", "judge-a")
    (tmp_path / "team" / "another's").mkdir()
    listed = Path.iterdir

    def refuse(folder):
        if folder.name == "another's":
            raise PermissionError(13, "Permission denied", str(folder))
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert pruning.list_stores(tmp_path / "team") == [tmp_path / "team" / "ours"]


@pytest.mark.parametrize("name", ["mine.txt", "notes/mine.txt"])
def test_a_stage_with_a_file_of_the_users_own_stays(tmp_path, name):
    folder = make(tmp_path / "runs" / "a" / "store", "judge-11", days=9)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("mine")
    runs = write_runs(tmp_path / "runs" / "a", (9, ["judge-11"]), (1, ["judge-22"]))
    (found,) = pruning.find_prunable([runs], [], PruneRequest(runs=1))
    assert found.goes == ()
    assert found.stays[0].why == f"it holds {name}, which no run has written"
