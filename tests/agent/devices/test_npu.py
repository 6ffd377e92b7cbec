"""The NPU without an NPU: what is read from files and from ``torch.npu``, and how it says that it is missing."""

import sys
import types

import pytest
import torch

from precflow.agent.devices import npu


def test_without_torch_npu_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    assert "torch_npu cannot be imported" in npu.Npu().missing()


@pytest.mark.parametrize(("said", "shown"), [("wrong driver\nmore", "(wrong driver)"), ("", "(RuntimeError)")])
def test_a_torch_npu_that_does_not_load_is_missing_whatever_it_says(monkeypatch, tmp_path, said, shown):
    (tmp_path / "torch_npu.py").write_text(f"raise RuntimeError({said!r})")
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert npu.Npu().missing() == f"torch_npu does not load {shown}"


def test_a_torch_npu_without_driver_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_npu", types.ModuleType("torch_npu"))
    monkeypatch.setattr(torch, "npu", types.SimpleNamespace(is_available=lambda: False), raising=False)
    assert "sees no NPU" in npu.Npu().missing()


def test_switches_are_read_back_and_what_cannot_be_read_is_unknown():
    def refuse():
        raise RuntimeError("write only")

    fake = types.SimpleNamespace(
        matmul=types.SimpleNamespace(allow_hf32=False), conv=types.SimpleNamespace(allow_hf32=True), is_jit_compile_false=refuse
    )
    assert npu.switches(fake) == {
        "matmul.allow_hf32": "False",
        "conv.allow_hf32": "True",
        "jit_compile": "unknown",
        "allow_internal_format": "unknown",
        "inf_nan_mode": "unknown",
    }


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Version=8.0.RC3\ntimestamp=20241010\n", "8.0.RC3"),
        ("# of the toolkit\nruntime_running_version=[7.3.0.1.231:8.0.RC2]\n", "8.0.RC2"),
        ("nothing here\n", "unknown"),
    ],
)
def test_the_version_of_cann_comes_from_its_own_file(monkeypatch, tmp_path, text, version):
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    (tmp_path / "version.cfg").write_text(text)
    monkeypatch.setitem(sys.modules, "torch_npu", types.SimpleNamespace(__version__="2.6.0.post3"))
    assert npu.versions() == {"torch_npu": "2.6.0.post3", "cann": version}


def test_no_toolkit_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "torch_npu", types.ModuleType("torch_npu"))
    assert npu.versions() == {"torch_npu": "unknown", "cann": "unknown"}
