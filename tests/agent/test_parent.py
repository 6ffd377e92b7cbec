import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from precflow.agent import __main__

CHILD = (
    "import os, time; from precflow.agent.__main__ import die_with; die_with(os.getppid());"
    "print(os.getpid(), flush=True); time.sleep(60)"
)


def test_an_agent_dies_with_its_judge():
    judge = (
        "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE);"
        "sys.stdout.write(child.stdout.readline().decode()); sys.stdout.flush(); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", judge, CHILD], stdout=subprocess.PIPE) as process:
        child = int(process.stdout.readline())
        assert _alive(child)
        process.kill()
    deadline = time.monotonic() + 10
    while _alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(child)


def test_a_judge_that_is_gone_already_ends_the_agent():
    script = "from precflow.agent.__main__ import die_with; die_with(1 << 22); print('still here')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""


def test_a_system_without_prctl_goes_on(monkeypatch):
    monkeypatch.setattr(__main__.ctypes, "CDLL", lambda _: object())
    assert __main__.die_with(os.getppid()) is None


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_this_process_is_not_bound():
    assert _alive(os.getpid())
