import pytest
import torch

from precflow.agent.emulated import ordinal


@pytest.mark.parametrize(("written", "index"), [(None, 0), (1, 1), ("npu", 0), ("npu:1", 1), (torch.device("cpu"), None)])
def test_what_callers_write_is_read_or_refused(npu, written, index):
    if index is None:
        with pytest.raises(RuntimeError, match=r"expected a device of type npu .* got cpu"):
            ordinal.index_of(written)
    else:
        assert ordinal.index_of(written) == index


@pytest.mark.parametrize("written", [2, "npu:7"])
def test_a_device_that_is_not_here_is_refused_with_their_number(npu, written):
    with pytest.raises(RuntimeError, match=r"invalid device ordinal npu:\d.* 2 emulated npu devices"):
        ordinal.index_of(written)


def test_the_current_device_is_where_a_bare_name_leads(npu):
    npu.set_device("npu:1")
    try:
        assert npu.current_device() == 1
        assert torch.ones(1, device="npu").device.index == 1
        assert torch.ones(1).npu().device.index == 1
    finally:
        npu.set_device(0)


def test_the_context_changes_the_device_and_changes_it_back(npu):
    with npu.device(1):
        assert torch.ones(1, device="npu").device.index == 1
        with npu.device(None):
            assert npu.current_device() == 1
    assert npu.current_device() == 0
    with npu.device_of(torch.ones(1, device="npu:1")):
        assert npu.current_device() == 1
    with npu.device_of(torch.ones(1)):
        assert npu.current_device() == 0


def test_tensors_cannot_be_made_on_a_device_that_is_not_here(npu):
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(1, device="npu:5")
