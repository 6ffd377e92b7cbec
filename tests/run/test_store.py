"""A store never shows a half-made value, refuses a second maker, and explains a disk that cannot be written."""

import contextlib
import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from precflow.errors import BusyError, SideError, StoreError
from precflow.files import replacing
from precflow.run.store import SEAL_FILE, Store, explain_disk_errors, read_seal


def make(store, name="judge", key="aa11", text="hello", **seal):
    with store.making(name, key) as attempt:
        (attempt.folder / "verdict.json").write_text(text)
        return store.seal(attempt, {"name": name, "key": key, "declared": {}, "needs": {}, "note": "", **seal})


def test_sealed_instance_is_found_again(tmp_path):
    store = Store(tmp_path)
    made = make(store, note="aligned", declared={"a": 1})
    found = store.find("judge", "aa11")
    assert found == made
    assert (found.note, found.declared, found.bytes) == ("aligned", {"a": 1}, 5)
    assert (found.folder / "verdict.json").read_text() == "hello"


def test_what_a_killed_writer_left_is_not_sealed(tmp_path):
    store = Store(tmp_path)
    with store.making("judge", "aa11") as attempt:
        (attempt.folder / "in" / "it").mkdir(parents=True)
        with replacing(attempt.folder / "in" / "it" / "verdict.json") as temporary:
            temporary.write_text("half")
            left = temporary.name, temporary.read_text()  # a process that is killed removes nothing
        (attempt.folder / "in" / "it" / left[0]).write_text(left[1])
        sealed = store.seal(attempt, {"name": "judge", "key": "aa11", "declared": {}, "needs": {}, "note": ""})
    assert [path.name for path in (sealed.folder / "in" / "it").iterdir()] == ["verdict.json"]


def test_seal_is_of_content(tmp_path):
    store = Store(tmp_path)
    assert make(store, key="1").seal == make(store, key="2").seal
    assert make(store, key="3", text="other").seal != make(store, key="1").seal
    assert make(store, key="4", seal="given").seal == "given"


def test_unknown_instance_is_none(tmp_path):
    assert Store(tmp_path).find("judge", "aa11") is None
    assert Store(tmp_path / "absent").list_sealed("judge") == []


def test_failed_attempt_is_kept_aside_and_never_found(tmp_path):
    store = Store(tmp_path)
    with pytest.raises(SideError), store.making("dump.target", "k") as attempt:
        (attempt.folder / "agent.log").write_text("boom")
        raise SideError("died")
    assert store.find("dump.target", "k") is None
    assert (tmp_path / "dump.target-k.failed" / "agent.log").read_text() == "boom"
    make(store, name="dump.target", key="k")
    assert not (tmp_path / "dump.target-k.failed").exists()


@pytest.mark.parametrize("damage", ["remove", "shorten", "tear seal", "newer schema"])
def test_damaged_instance_is_not_found(tmp_path, damage):
    store = Store(tmp_path)
    folder = make(store).folder
    seal = folder / SEAL_FILE
    if damage == "remove":
        (folder / "verdict.json").unlink()
    elif damage == "shorten":
        (folder / "verdict.json").write_text("hel")
    elif damage == "tear seal":
        seal.write_text(seal.read_text()[:-20])
    else:
        seal.write_text(json.dumps({**json.loads(seal.read_text()), "schema": 99}))
    assert store.find("judge", "aa11") is None
    assert make(store).folder == folder
    assert store.find("judge", "aa11") is not None


def test_named_gives_newest_first(tmp_path):
    store = Store(tmp_path)
    make(store, name="dump.reference", key="5be0-aa")
    time.sleep(0.01)
    make(store, name="dump.reference", key="5be0-bb")
    make(store, name="dump.reference", key="77-cc")
    assert [one.key for one in store.list_sealed("dump.reference", "5be0")] == ["5be0-bb", "5be0-aa"]


def test_a_clock_that_goes_backwards_makes_nothing_older(tmp_path, monkeypatch):
    store, times = Store(tmp_path), iter([4e9, 3e9, 2e9, 1e9])
    monkeypatch.setattr(time, "time", lambda: next(times))
    monkeypatch.setattr(store, "_locked", lambda *_: contextlib.nullcontext())
    for key in "abcd":
        make(store, name="dump.reference", key=key)
    assert [one.key for one in store.list_sealed("dump.reference")] == ["d", "c", "b", "a"]
    assert all(one.seconds >= 0 for one in store.list_sealed("dump.reference"))


def _hold(folder, ready, release):
    with Store(folder).making("dump.target", "k"):
        ready.set()
        release.wait(30)


def test_second_maker_is_refused_with_pid_and_host(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(tmp_path, ready, release))
    holder.start()
    try:
        assert ready.wait(30)
        with pytest.raises(BusyError) as refused, Store(tmp_path).making("dump.target", "k"):
            pass
        assert f"pid {holder.pid} on {os.uname().nodename}" in str(refused.value)
    finally:
        release.set()
        holder.join()


_KILLED_MAKER = """
import sys, time
from pathlib import Path
from precflow.run.store import Store
with Store(Path(sys.argv[1])).making("dump.target", "k") as attempt:
    (attempt.folder / "half").write_text("x")
    print("ready", flush=True)
    time.sleep(60)
"""


def test_what_a_killed_maker_left_does_not_stand_in_the_way(tmp_path):
    maker = subprocess.Popen([sys.executable, "-c", _KILLED_MAKER, str(tmp_path)], stdout=subprocess.PIPE)
    assert maker.stdout.readline() == b"ready\n"
    maker.send_signal(signal.SIGKILL)
    maker.wait()
    store = Store(tmp_path)
    assert store.find("dump.target", "k") is None
    made = make(store, name="dump.target", key="k")
    assert sorted(path.name for path in made.folder.iterdir()) == [SEAL_FILE, "verdict.json"]
    assert not [path for path in (tmp_path / ".making").iterdir() if path.is_dir()]


def test_full_disk_is_explained(tmp_path):
    with (
        pytest.raises(StoreError, match=r"is full .* MB free.*\n.*finished stages are kept"),
        explain_disk_errors(tmp_path / "not" / "there"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_read_only_folder_is_explained(tmp_path):
    with pytest.raises(StoreError, match=r"cannot write in .*Read-only file system"), explain_disk_errors(tmp_path):
        raise OSError(errno.EROFS, "Read-only file system")


def test_seal_of_nothing_is_none(tmp_path):
    assert read_seal(tmp_path) is None


def test_what_a_killed_maker_left_is_thrown_away_or_gone_on_with(tmp_path):
    for resumes in (False, True):
        store = Store(tmp_path / str(resumes))
        left = store.root / ".making" / "dump.target-ab12-999999"
        for name in ("dump.target-ab12-999999", "dump.target-ab12-999998", "dump.target-cd34-999999"):
            (store.root / ".making" / name / "rank0").mkdir(parents=True)
        with store.making("dump.target", "ab12", resumes=resumes) as attempt:
            assert (attempt.folder / "rank0").exists() is resumes
            assert not left.exists()
            attempt.folder.joinpath("done").write_text("")
        others = sorted(path.name for path in (store.root / ".making").glob("dump*") if path.is_dir())
        assert others == ["dump.target-cd34-999999"]


@pytest.mark.parametrize("resumes", [False, True])
def test_after_ctrl_c_a_maker_that_can_goes_on(tmp_path, resumes):
    store = Store(tmp_path)
    with pytest.raises(KeyboardInterrupt), store.making("compare", "ab12", resumes=resumes) as attempt:
        attempt.folder.joinpath("half").write_text("")
        raise KeyboardInterrupt
    assert store.failed_folder("compare", "ab12").exists() is not resumes
    with store.making("compare", "ab12", resumes=resumes) as attempt:
        assert attempt.folder.joinpath("half").exists() is resumes


def test_a_damaged_stage_with_a_file_of_the_users_own_is_not_replaced(tmp_path):
    store = Store(tmp_path)
    sealed = make(store)
    (sealed.folder / "verdict.json").write_text("damaged")
    (sealed.folder / "mine.txt").write_text("mine")
    with pytest.raises(StoreError, match=r"is damaged, and holds mine\.txt, which no run has written"):
        make(store)
    assert (sealed.folder / "mine.txt").read_text() == "mine"
    (sealed.folder / "mine.txt").unlink()
    assert make(store).key == sealed.key


@pytest.mark.parametrize("resumes", [False, True])
def test_a_link_where_a_killed_maker_would_have_left_its_folder_is_not_followed(tmp_path, resumes):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years")
    store = Store(tmp_path / "store")
    (store.root / ".making").mkdir(parents=True)
    (store.root / ".making" / "judge-ab12-7").symlink_to(tmp_path / "mine")
    with store.making("judge", "ab12", resumes=resumes) as attempt:
        assert list(attempt.folder.iterdir()) == []
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years"
