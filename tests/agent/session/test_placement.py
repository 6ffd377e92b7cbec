from typing import NamedTuple

import pytest
import torch

from precflow.agent.failures import AgentError
from precflow.agent.session.workload_model import element_type, place_model, placed

CPU = torch.device("cpu")


class Pair(NamedTuple):
    left: torch.Tensor
    right: str


def test_known_types():
    assert element_type("bfloat16") is torch.bfloat16


@pytest.mark.parametrize("name", ["int8", "float8_e4m3fn", "half", "nn"])
def test_a_type_that_no_model_runs_in_is_refused(name):
    with pytest.raises(AgentError, match="float64, float32, float16, bfloat16") as caught:
        element_type(name)
    assert caught.value.kind == "unsupported"


def test_only_floating_weights_are_cast():
    model = torch.nn.BatchNorm1d(3)
    place_model(model, torch.float16, CPU)
    assert model.weight.dtype is torch.float16
    assert model.running_mean.dtype is torch.float16
    assert model.num_batches_tracked.dtype is torch.int64


def test_inputs_are_copies_and_keep_their_structure():
    given = {"x": torch.ones(2), "ids": torch.ones(2, dtype=torch.int64), "rest": [Pair(torch.zeros(1), "word"), (None, 3)]}
    found = placed(given, torch.float32, CPU)
    assert found["x"].data_ptr() != given["x"].data_ptr()
    assert found["ids"].data_ptr() != given["ids"].data_ptr()
    assert found["ids"].dtype is torch.int64
    assert isinstance(found["rest"][0], Pair)
    assert found["rest"][0].right == "word"
    assert found["rest"][1] == (None, 3)


def test_floating_inputs_are_cast():
    assert placed(torch.ones(2), torch.bfloat16, CPU).dtype is torch.bfloat16
