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
