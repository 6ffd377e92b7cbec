"""Freed memory stays with the agent: the same tensors again need no new pages."""

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from precflow.agent import memory

def allocate():
    kept = [bytearray(b"x") * (4 << 20) for _ in range(50)]  # 200 MB, written to

if {keeps}:
    memory.keep_freed()
allocate()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
allocate()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def count_new_pages(*, keeps, **variables):
    words = [sys.executable, "-c", PROGRAM.format(keeps=keeps)]
    found = subprocess.run(words, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    return int(found.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_the_same_memory_again_needs_no_new_pages():
    pages = (200 << 20) // os.sysconf("SC_PAGE_SIZE")
    assert count_new_pages(keeps=True) < pages / 20
    assert count_new_pages(keeps=False) > pages / 2


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_what_users_have_set_stays():
    assert count_new_pages(keeps=True, MALLOC_TRIM_THRESHOLD_="131072") > (100 << 20) // os.sysconf("SC_PAGE_SIZE")
