import importlib
import importlib.util
import sys

import pytest
import torch


def test_everything_says_emulated(npu):
    assert "emulated" in npu.get_device_name()
    assert "emulated" in npu.get_device_properties(1).name
    assert npu.emulated is True
    assert "mulated" in npu.__doc__


def test_torch_finds_the_module_and_the_device(npu):
    assert torch.npu is npu is torch.get_device_module("npu")
    assert torch.accelerator.current_accelerator() == torch.device("npu")
    assert str(torch.device("npu:1")) == "npu:1"
    torch.accelerator.synchronize()


def test_what_migration_code_asks_first(npu):
    assert npu.is_available() is True
    assert npu.is_initialized() is True
    assert npu.device_count() == 2
    assert npu.is_bf16_supported() is True
    assert npu.get_device_capability() is None
    assert npu.can_device_access_peer(0, 1) is True
    assert npu.init() is None
    assert not npu._is_in_bad_fork()


def test_tensors_modules_and_attributes_know_the_device(npu):
    tensor = torch.ones(2).npu(1)
    assert tensor.is_npu
    assert tensor.device.index == 1
    assert next(torch.nn.Linear(2, 2).npu().parameters()).device.type == "npu"
    assert "npu:1" in repr(tensor)


def test_a_device_context_and_a_default_device(npu):
    with torch.device("npu:1"):
        assert torch.ones(1).device == torch.device("npu:1")
    torch.set_default_device("npu")
    try:
        assert torch.ones(1).device.type == "npu"
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("ask", ["get_device_name", "get_device_properties", "get_device_capability", "synchronize"])
def test_a_device_that_is_not_here_is_refused(npu, ask):
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        getattr(npu, ask)(9)


def test_pinned_memory_costs_nothing(npu):
    loader = torch.utils.data.DataLoader(torch.arange(4.0), batch_size=2, pin_memory=True)
    assert next(iter(loader)).npu().cpu().tolist() == [0.0, 1.0]


def test_migrated_code_imports_the_stand_in(npu):
    torch_npu = importlib.import_module("torch_npu")
    assert torch_npu.npu is npu
    assert importlib.import_module("torch.npu.amp").GradScaler is npu.amp.GradScaler
    assert importlib.import_module("torch_npu.npu") is npu


def test_the_stand_in_says_what_it_is(npu):
    import torch_npu

    assert torch_npu.emulated is True
    assert "emulated" in torch_npu.__version__
    assert "emulated" in torch_npu.__doc__
    assert importlib.util.find_spec("torch_npu").origin == "precflow emulated npu"


def test_a_fused_operator_is_refused_with_the_way_out(npu):
    from torch_npu import npu_fusion_attention

    with pytest.raises(RuntimeError, match=r"not emulated; use attn_implementation='eager'"):
        npu_fusion_attention(1, 2, 3)


def test_transformers_takes_the_device_for_available_and_loads(npu, clip):
    import transformers

    assert transformers.is_torch_npu_available(check_device=True)
    assert clip().npu().device.type == "npu"
    assert "torch_npu" in sys.modules
