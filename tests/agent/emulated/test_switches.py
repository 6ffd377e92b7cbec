import pytest
import torch


@pytest.fixture
def restored(npu):
    yield npu
    npu.matmul.allow_hf32, npu.conv.allow_hf32, npu.config.allow_internal_format = False, True, True
    npu.set_compile_mode(jit_compile=False)


def test_defaults_are_those_of_torch_npu(npu):
    assert npu.matmul.allow_hf32 is False
    assert npu.conv.allow_hf32 is True
    assert npu.is_jit_compile_false() is True
    assert npu.get_task_queue_enable() == 1


def test_switches_are_kept(restored):
    restored.matmul.allow_hf32 = True
    restored.config.allow_internal_format = False
    restored.set_compile_mode(jit_compile=True)
    assert restored.matmul.allow_hf32 is True
    assert restored.config.allow_internal_format is False
    assert restored.is_jit_compile_false() is False


def test_a_switch_is_strictly_a_bool_and_must_exist(restored):
    with pytest.raises(RuntimeError, match=r"torch\.npu\.matmul\.allow_hf32 must be True or False, got 1"):
        restored.matmul.allow_hf32 = 1
    with pytest.raises(AttributeError, match=r"no switch 'allow_tf32'; it has: allow_hf32"):
        restored.conv.allow_tf32 = True
    with pytest.raises(AttributeError, match=r"no switch 'allow_tf32'"):
        _ = restored.conv.allow_tf32


def test_options_are_accepted_and_must_be_a_mapping(npu):
    npu.set_option({"ACL_PRECISION_MODE": "must_keep_origin_dtype"})
    with pytest.raises(TypeError, match="expects a dict"):
        npu.set_option("ACL_PRECISION_MODE")


def test_the_task_queue_is_only_remembered(npu):
    npu.set_task_queue_enable(2)
    assert npu.get_task_queue_enable() == 2
    npu.set_task_queue_enable(1)


def test_the_deterministic_level_reaches_torch(npu):
    npu.set_deterministic_level(1)
    assert torch.are_deterministic_algorithms_enabled()
    npu.set_deterministic_level(0)
    assert not torch.are_deterministic_algorithms_enabled()


def test_overflow_is_seen_in_values_and_not_in_a_flag(npu):
    assert npu.utils.is_support_inf_nan() is True
    with pytest.raises(RuntimeError, match="INF/NAN mode"):
        npu.get_npu_overflow_flag()
    with pytest.warns(UserWarning, match="no overflow flag to clear"):
        npu.clear_npu_overflow_flag()


@pytest.mark.parametrize(
    ("value", "overflow"), [(1.0, False), (float("inf"), True), (float("-inf"), True), (float("nan"), True)]
)
def test_an_overflow_check_of_a_tensor_and_of_a_number(npu, value, overflow):
    assert npu.npu_check_overflow(torch.tensor([0.0, value], device="npu")) is overflow
    assert npu.npu_check_overflow(value) is overflow


def test_float16_overflows_to_infinity(npu):
    assert torch.isinf(torch.tensor([6e4], dtype=torch.float16, device="npu") * 2).item()
