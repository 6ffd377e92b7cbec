import importlib
import importlib.util
import sys

import pytest


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
