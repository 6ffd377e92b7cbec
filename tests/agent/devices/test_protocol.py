"""One contract, every device. Each runs in a process of its own: an emulated device stays in its process for good."""

import subprocess
import sys
from pathlib import Path

import pytest

CONTRACT = Path(__file__).with_name("contract.py")


def outcome(kind):
    done = subprocess.run([sys.executable, str(CONTRACT), kind], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("kind", ["cpu", "emulated"])
def test_a_device_that_is_always_here(kind):
    assert outcome(kind) == "fulfilled"


@pytest.mark.parametrize("kind", ["cuda", "npu"])
def test_hardware_fulfils_it_or_says_why_it_is_missing(kind):
    found = outcome(kind)
    if found.startswith("missing: "):
        assert len(found) > len("missing: ")
        pytest.skip(found)
    assert found == "fulfilled"
