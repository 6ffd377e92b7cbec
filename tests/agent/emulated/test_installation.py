import importlib.machinery
import re
import subprocess
import sys

import pytest
import torch

from precflow.agent import emulated


@pytest.fixture
def clean(monkeypatch):
    """Make this process look as if nothing had been installed."""
    monkeypatch.setattr(emulated, "is_installed", lambda: False)
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: "privateuseone")
    return monkeypatch


def test_it_installs_once_and_answers_the_same_afterwards(npu):
    assert emulated.is_installed()
    assert emulated.describe_problem() == ""
    assert emulated.install() is npu
    assert emulated.install(device_count=9).device_count() == 2


@pytest.mark.parametrize("version", ["2.9.1", "2.1.0+cpu", "1.13.1"])
def test_an_older_torch_is_refused_with_what_is_needed_and_what_is_here(clean, version):
    clean.setattr(torch, "__version__", version)
    with pytest.raises(RuntimeError, match=re.escape(f"needs torch 2.10 or newer, here is torch {version}")):
        emulated.install()


@pytest.mark.parametrize("version", ["2.10.0", "2.13.0+cpu", "2.14.0a0+git123", "3.0"])
def test_a_newer_torch_has_no_problem(clean, version):
    clean.setattr(torch, "__version__", version)
    assert emulated.describe_problem() == ""


def test_a_real_torch_npu_is_left_alone(clean):
    clean.setattr(importlib.util, "find_spec", lambda name: importlib.machinery.ModuleSpec(name, None))
    assert "torch_npu is installed in this interpreter" in emulated.describe_problem()


def test_another_backend_is_left_alone(clean):
    clean.setattr(torch._C, "_get_privateuse1_backend_name", lambda: "openreg")
    assert "another device backend" in emulated.describe_problem()


def test_importing_the_package_imports_no_torch_and_installs_nothing():
    code = "import sys, precflow.agent.emulated; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_asking_for_problems_installs_nothing_and_warnings_as_errors_do_not_stop_the_installation():
    code = """
from precflow.agent import emulated
import torch
assert emulated.describe_problem() == '' and not hasattr(torch, 'npu')
emulated.install(3)
assert torch.npu.device_count() == 3
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
