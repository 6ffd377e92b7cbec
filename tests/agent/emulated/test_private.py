"""The canary: each private thing of torch that the emulated device rests on still behaves as it must.

A failure here means that this release of torch changed something without promise. What to do: read the message, adapt
``precflow/agent/emulated/private.py`` (the only file that names private things) to both the old and the new form, run this
folder again on the oldest supported torch (2.10) and on the new one; if there is no new form, cap torch in
``emulated.describe_problem()``, so that people get a sentence and not a crash.
"""

import ctypes
import inspect

import pytest
import torch

from precflow.agent.emulated import private

ADVICE = f"torch {torch.__version__} changed %s: see the head of this file for what to do"


def test_torch_lets_python_bring_a_device():
    parameters = list(inspect.signature(private.set_up_backend).parameters)
    assert parameters[:2] == ["rename", "backend_module"], ADVICE % "_setup_privateuseone_for_python_backend"
    assert callable(private.set_up_storage_methods), ADVICE % "_generate_storage_methods_for_privateuse1_backend"


def test_a_capsule_says_where_its_bytes_are():
    tensor = torch.arange(6.0)[2:]
    capsule = private.export_capsule(tensor)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    start = pointer(capsule, b"dltensor")
    data, device = ctypes.c_void_p.from_address(start).value, (ctypes.c_int32 * 2).from_address(start + 8)
    assert data == tensor.data_ptr(), ADVICE % "the first field of DLTensor"
    assert list(device) == [1, 0], ADVICE % "the device field of DLTensor"
    again = private.import_capsule(capsule)
    assert again.data_ptr() == tensor.data_ptr(), ADVICE % "_from_dlpack"


def test_code_12_of_dlpack_is_the_private_device(npu):
    assert torch.ones(1, device="npu").device.type == "npu", ADVICE % "the meaning of kDLExtDev"


def test_a_kernel_can_be_run_by_its_key():
    result = private.run_on_key(torch.ops.aten.add.Tensor, "CPU", torch.ones(2), torch.ones(2))
    assert result.tolist() == [2.0, 2.0], ADVICE % "OpOverload._op_dk"


@pytest.mark.parametrize("key", ["CPU", "PrivateUse1", "AutogradPrivateUse1", "AutocastPrivateUse1", "Conjugate", "Negative"])
def test_dispatch_keys_have_their_names(key):
    assert hasattr(private.DispatchKey, key), ADVICE % f"DispatchKey.{key}"


def test_the_dispatcher_lists_its_operators_and_kernels():
    names = private.all_operator_names()
    assert "aten::native_layer_norm" in names, ADVICE % "_dispatch_get_all_op_names"
    assert private.has_kernel("aten::native_layer_norm", "CPU") is True, ADVICE % "_dispatch_has_kernel_for_dispatch_key"
    assert private.has_kernel("aten::native_layer_norm", "CompositeExplicitAutograd") is True, ADVICE % "layer_norm's kernels"


def test_keys_can_be_left_out():
    keys = private.DispatchKeySet(private.DispatchKey.AutocastPrivateUse1)
    with private.ExcludeDispatchKeys(keys):
        assert torch.ones(1).item() == 1.0, ADVICE % "_ExcludeDispatchKeyGuard"


def test_a_running_backward_can_be_told():
    seen = []
    tensor = torch.ones(1, requires_grad=True)
    tensor.register_hook(lambda gradient: seen.append(private.running_backward()))
    tensor.sum().backward()
    assert private.running_backward() == -1, ADVICE % "_current_graph_task_id"
    assert seen[0] != -1, ADVICE % "_current_graph_task_id"


def test_a_schema_says_what_is_written():
    out = private.schema_of(torch.ops.aten.add.out).arguments[-1]
    assert (out.name, out.kwarg_only, out.alias_info.is_write) == ("out", True, True), ADVICE % "FunctionSchema"
    assert out.alias_info.before_set, ADVICE % "AliasInfo.before_set"


def test_generators_can_be_derived_from_and_keep_their_identity():
    class Derived(private.PlainGenerator):
        def __new__(cls, device="cpu"):
            return super().__new__(cls, device)

    assert isinstance(Derived()._cdata, int), ADVICE % "Generator._cdata"


def test_lazy_bits_can_be_toggled():
    values = torch.tensor([1 + 2j])
    assert private.toggle_conjugate(values).is_conj(), ADVICE % "aten._conj"
    assert private.toggle_negative(values.real).is_neg(), ADVICE % "torch._neg_view"


def test_recurrent_layers_have_decompositions():
    assert [name for name, kernel in private.recurrent_kernels if callable(kernel)] == [
        "lstm.input", "lstm.data", "gru.input", "gru.data",
    ], ADVICE % "torch._decomp.decompositions"  # fmt: skip


def test_softmax_has_the_arguments_that_are_replaced():
    for operator in (private.softmax, private.log_softmax):
        names = [argument.name for argument in private.schema_of(operator).arguments]
        assert names == ["self", "dim", "half_to_float"], ADVICE % "aten._softmax"


def test_dispatch_modes_are_counted_and_can_be_left(npu):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    assert private.count_dispatch_modes() == 0, ADVICE % "_len_torch_dispatch_stack"
    with Mode():
        assert private.count_dispatch_modes() == 1, ADVICE % "_len_torch_dispatch_stack"
        with private.without_dispatch_modes():
            assert private.count_dispatch_modes() == 0, ADVICE % "_disable_current_modes"
        assert private.count_dispatch_modes() == 1, ADVICE % "_disable_current_modes"
