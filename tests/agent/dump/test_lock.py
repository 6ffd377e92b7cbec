import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from precflow.agent.dump import lock as lock_module
from precflow.agent.dump.lock import WriterLock
from precflow.agent.dump.write_errors import WriteError
from precflow.agent.dump.writer import Writer

HOLDER = """
    import sys, time
    from precflow.agent.dump.lock import WriterLock
    lock = WriterLock(sys.argv[1])
    print("held", flush=True)
    time.sleep(60)
"""


def owner_in(path):
    return json.loads(Path(path).read_text())


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "writer-rank0.lock")


@pytest.fixture
def holder(path):
    """Start a process that has the lock."""
    command = [sys.executable, "-c", textwrap.dedent(HOLDER), path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, universal_newlines=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_another_live_process_is_refused_by_pid_and_host(holder, path):
    with pytest.raises(WriteError, match=f"is being written by process {holder.pid} on ") as caught:
        WriterLock(path)
    assert caught.value.kind == "busy"
    assert path in caught.value.next_step
    assert owner_in(path)["pid"] == holder.pid


def test_the_lock_of_a_killed_process_is_taken_over(holder, path):
    holder.kill()
    holder.wait()
    assert Path(path).exists()
    lock = WriterLock(path)
    assert owner_in(path)["pid"] == os.getpid()
    lock.release()
    assert not Path(path).exists()


def test_one_process_has_it_once(path):
    first = WriterLock(path)
    with pytest.raises(WriteError, match=f"process {os.getpid()} on"):
        WriterLock(path)
    first.release()
    first.release()
    WriterLock(path).release()


def is_free(path):
    """Tell whether the lock can be had: the file then names this process, and is gone when it is given back."""
    lock = WriterLock(path)
    owner = json.loads(Path(path).read_text())
    lock.release()
    return owner == lock_module._describe_process() and not Path(path).exists()


def test_a_lock_that_nobody_refers_to_is_free(path):
    lock = WriterLock(path)
    del lock
    assert is_free(path)


def leave(path, **facts):
    owner = {**lock_module._describe_process(), **facts}
    Path(path).write_text(json.dumps(owner))


def test_after_a_restart_of_the_machine_it_is_free(path):
    leave(path, boot="another", pid=1)
    assert is_free(path)


def test_in_another_container_of_the_same_machine_it_is_free(path):
    leave(path, host="container-7", namespace="pid:[1]", pid=1)
    assert is_free(path)


def test_of_another_machine_nothing_is_known(path):
    leave(path, host="elsewhere", boot="another", pid=1)
    with pytest.raises(WriteError, match="process 1 on elsewhere"):
        WriterLock(path)
    assert Path(path).exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00\xff", "{}"])
def test_a_file_that_names_nobody_is_free(path, text):
    Path(path).write_text(text)
    assert is_free(path)


@pytest.mark.parametrize(("pid", "free"), [(2**22 + 1, True), (os.getppid(), False), (None, True)])
def test_without_locks_of_the_file_system_the_process_is_looked_for(path, monkeypatch, pid, free):
    def no_locks(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(lock_module.fcntl, "lockf", no_locks)
    leave(path, pid=pid)
    if free:
        assert is_free(path)
    else:
        with pytest.raises(WriteError, match=f"process {pid} on"):
            WriterLock(path)


def test_no_clock_is_asked(path, monkeypatch):
    leave(path, pid=2**22 + 1)
    os.utime(path, (4e9, 4e9))
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert is_free(path)


def test_two_writers_on_one_dump_are_refused(tmp_path):
    first = Writer(str(tmp_path))
    with pytest.raises(WriteError, match="is being written by process"):
        Writer(str(tmp_path))
    Writer(str(tmp_path), rank=1).abandon({})
    first.seal({})
    Writer(str(tmp_path)).abandon({})
    assert not list(tmp_path.glob("*.lock"))
