"""A file that is cut while it is read ends the process with a message, whichever thread reads."""

import subprocess
import sys

import pytest

from precflow.dumps import bus_errors

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="says so on Linux")
SCRIPT = """
import os, sys, threading
import numpy as np
{before}
from precflow.dumps import bus_errors

bus_errors.explain_bus_errors()
mapped = np.memmap(sys.argv[1], dtype=np.uint8, mode="r")
os.truncate(sys.argv[1], 4096)

def read():
    print(int(mapped[:4096].sum()), flush=True)
    print(int(mapped.sum()), flush=True)

{read}
print("went on")
"""
THREAD = "thread = threading.Thread(target=read); thread.start(); thread.join()"


@pytest.fixture
def ended(tmp_path):
    """Return a function that reads a file that is cut in a process of its own."""

    def run(read, before=""):
        path = tmp_path / "file"
        path.write_bytes(bytes(1 << 20))
        words = [sys.executable, "-c", SCRIPT.format(read=read, before=before), str(path)]
        return subprocess.run(words, capture_output=True, text=True, timeout=60)

    return run


@pytest.mark.parametrize("read", ["read()", THREAD])
def test_it_says_so_and_leaves(ended, read):
    done = ended(read)
    assert done.returncode == bus_errors.EXIT_CODE
    assert done.stdout == "0\n"  # what is there can be read
    assert done.stderr == bus_errors.MESSAGE


def test_what_is_whole_is_read_on(ended):
    done = ended("print(int(mapped[:4096].sum()), flush=True)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\nwent on\n", "")


def test_a_fault_handler_that_is_on_keeps_its_way_of_telling(ended):
    done = ended("read()", before="import faulthandler; faulthandler.enable()")
    assert done.returncode < 0
    assert "Bus error" in done.stderr
