import sys
import types

import pytest
import torch

from precflow.agent.devices.emulated import Emulated


def test_an_old_torch_is_named(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.6.0+cpu")
    reason = Emulated().missing()
    assert "2.10" in reason
    assert "2.6.0" in reason


@pytest.mark.usefixtures("emulation")
def test_beside_torch_npu_it_steps_back(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_npu", types.ModuleType("torch_npu"))
    assert "torch_npu" in Emulated().missing()
