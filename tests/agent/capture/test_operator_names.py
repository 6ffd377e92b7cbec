import pytest
import torch
from torch.nn import functional

from precflow.agent.capture.operator_names import canonical_name, operator_name


@pytest.mark.parametrize(
    ("names", "canonical"),
    [
        (("add", "__add__", "__radd__", "_add", "add.Tensor"), "add"),
        (("add_", "__iadd__", "_add_", "add_.Tensor"), "add_"),
        (("__rsub__", "sub"), "sub"),
        (("__rsub__", "__sub__"), "sub"),
        (("__truediv__", "__rdiv__", "__rtruediv__", "div"), "div"),
        (("__itruediv__", "div_"), "div_"),
        (("__floordiv__", "__rfloordiv__", "floor_divide"), "floor_divide"),
        (("__mod__", "__rmod__", "remainder"), "remainder"),
        (("__ror__", "__or__", "bitwise_or"), "bitwise_or"),
        (("__ixor__", "bitwise_xor_"), "bitwise_xor_"),
        (("__invert__", "bitwise_not"), "bitwise_not"),
        (("__imatmul__",), "matmul_"),
        (("__getitem__",), "getitem"),
        (("__setitem__",), "setitem"),
        (("__round__",), "round"),
        (("__reversed__",), "reversed"),
        (("_foreach_add_",), "foreach_add_"),
        (("relu", "relu"), "relu"),
        (("",), ""),
    ],
)
def test_one_operator_has_one_name(names, canonical):
    assert {canonical_name(name) for name in names} == {canonical}


@pytest.mark.parametrize(
    "function",
    [
        torch.softmax,
        functional.softmax,
        torch.Tensor.softmax,
        torch.ops.aten.softmax,
        torch.ops.aten.softmax.int,
        torch._softmax,
    ],
)
def test_an_operator_has_one_name_wherever_it_lives(function):
    assert operator_name(function) == "softmax"


def test_access_to_attributes_is_no_operator():
    assert operator_name(torch.Tensor.shape.__get__) == ""
    assert operator_name(torch.Tensor.data.__set__) == ""
    assert operator_name(object()) == ""
