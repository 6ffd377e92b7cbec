import dataclasses
from collections import OrderedDict, UserDict, namedtuple

import pytest
import torch

from precflow.agent.capture.nesting import LARGEST, leaves, output_tensors

ONE, TWO, THREE = torch.zeros(1), torch.zeros(2), torch.zeros(3)
Named = namedtuple("Named", "first second")  # noqa: PYI024  torch returns such tuples


@dataclasses.dataclass
class Output:
    hidden: torch.Tensor
    states: tuple = ()
    text: str = "x"


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        (ONE, {"0": ONE}),
        ((ONE, TWO), {"0": ONE, "1": TWO}),
        ([ONE], {"0": ONE}),
        ([[ONE, (TWO,)], THREE], {"0.0": ONE, "0.1.0": TWO, "1": THREE}),
        ({"key": [ONE], 3: TWO}, {"key.0": ONE, "3": TWO}),
        (OrderedDict(last_hidden_state=ONE, none=None), {"last_hidden_state": ONE}),
        (UserDict(input_ids=ONE), {"input_ids": ONE}),
        (Output(ONE, (TWO, THREE)), {"hidden": ONE, "states.0": TWO, "states.1": THREE}),
        (Named(ONE, TWO), {"0": ONE, "1": TWO}),
        ({1: ONE, "1": TWO, "a": {"b": THREE}, "a.b": ONE}, {"1": ONE, "'1'": TWO, "a.b": THREE, "'a.b'": ONE}),
        (None, {}),
        ("text", {}),
        ((), {}),
        (Output, {}),
        ({ONE}, {}),
    ],
)
def test_paths_of_tensors(value, paths):
    found = output_tensors(value)
    assert [path for path, _ in found] == list(paths)
    assert all(tensor is paths[path] for path, tensor in found)


def test_torch_return_types_are_tuples():
    found = output_tensors(torch.max(torch.tensor([[1.0, 2.0]]), 1))
    assert [(path, tensor.item()) for path, tensor in found] == [("0", 2.0), ("1", 1)]


def test_a_container_that_holds_itself_ends():
    value = [ONE]
    value.append(value)
    assert [path for path, _ in output_tensors(value)] == ["0"]


def test_a_huge_container_is_one_value():
    assert [path for path, _ in leaves([0] * (LARGEST + 1), "x")] == ["x"]
    assert len(list(leaves([0] * LARGEST))) == LARGEST


def test_values_keep_their_order_and_place():
    assert list(leaves((1, {"a": "b"}), "kwargs")) == [("kwargs.0", 1), ("kwargs.1.a", "b")]


@pytest.mark.slow
def test_a_real_model_output():
    transformers = pytest.importorskip("transformers.modeling_outputs")
    value = transformers.BaseModelOutput(last_hidden_state=ONE, hidden_states=(TWO, THREE))
    assert [path for path, _ in output_tensors(value)] == ["last_hidden_state", "hidden_states.0", "hidden_states.1"]


def test_containers_may_be_nested_by_the_thousand():
    value = ONE
    for _ in range(3000):
        value = [value]
    assert output_tensors(value) == [(".".join("0" * 3000), ONE)]
