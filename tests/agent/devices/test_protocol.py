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


def test_the_cpu_fulfils_it():
    assert outcome("cpu") == "fulfilled"


@pytest.mark.usefixtures("emulation")
def test_the_emulated_npu_fulfils_it():
    assert outcome("emulated") == "fulfilled"


@pytest.mark.parametrize("kind", ["cuda", "npu"])
def test_hardware_fulfils_it_or_says_why_it_is_missing(kind):
    found = outcome(kind)
    if found.startswith("missing: "):
        assert len(found) > len("missing: ")
        pytest.skip(found)
    assert found == "fulfilled"
