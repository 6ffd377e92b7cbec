"""One contract, every device. Each runs in a process of its own: an emulated device stays in its process for good."""

import os
from pathlib import Path

import pytest

CONTRACT = Path(__file__).with_name("contract.py")


@pytest.fixture
def outcome(warm_server, tmp_path):
    """Return a function that tells what a process of its own says of a device."""

    def of(kind):
        code, said, wrong = warm_server.run([CONTRACT, kind], cwd=tmp_path, env=dict(os.environ), timeout=100, module="")
        assert code == 0, wrong
        return said.strip()

    return of


def test_the_cpu_fulfils_it(outcome):
    assert outcome("cpu") == "fulfilled"


@pytest.mark.usefixtures("emulation")
def test_the_emulated_npu_fulfils_it(outcome):
    assert outcome("emulated") == "fulfilled"


@pytest.mark.parametrize("kind", ["cuda", "npu"])
def test_hardware_fulfils_it_or_says_why_it_is_missing(kind, outcome):
    found = outcome(kind)
    if found.startswith("missing: "):
        assert len(found) > len("missing: ")
        pytest.skip(found)
    assert found == "fulfilled"
