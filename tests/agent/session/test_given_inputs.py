import json

import pytest
import torch
from safetensors.torch import save_file

from precflow.agent.failures import AgentError
from precflow.agent.session.given_inputs import give_inputs


class Model(torch.nn.Module):
    """Two parts, of which the second is called as often as asked for."""

    def __init__(self, times=2):
        super().__init__()
        self.first, self.second, self.times = torch.nn.Linear(3, 3), Scale(), times

    def forward(self, x):
        x = self.first(x)
        for _ in range(self.times):
            x = self.second(x=x, factor=2)
        return x


class Scale(torch.nn.Module):
    def forward(self, x, factor):
        return x * factor


@pytest.fixture
def stored(tmp_path):
    """Return a function that writes the inputs of both calls of the second part: ones, then threes."""

    def write(shape=(2, 3)):
        inputs = []
        for call, value in enumerate((1.0, 3.0)):
            file = tmp_path / f"{call}.safetensors"
            save_file({"x": torch.full(shape, value)}, file)
            begin = 8 + int.from_bytes(file.read_bytes()[:8], "little")
            size = 4 * shape[0] * shape[1]
            tensor = {"index": "x", "dtype": "float32", "shape": list(shape), "file": str(file), "begin": begin, "bytes": size}
            inputs.append({"module": "second", "call": call, "tensors": [tensor]})
        path = tmp_path / "inputs.json"
        path.write_text(json.dumps({"inputs": inputs}))
        return str(path)

    return write


def test_each_call_is_given_its_own_inputs_in_the_type_of_the_run(stored):
    model, seen = Model().half(), []
    model.second.register_forward_hook(lambda _, __, output: seen.append(output))
    with torch.no_grad(), give_inputs(stored(), model):
        found = model(torch.zeros(2, 3, dtype=torch.float16))
    assert [float(output[0, 0]) for output in seen] == [2.0, 6.0]
    assert found.dtype is torch.float16
    with torch.no_grad():  # everything was taken off again
        assert not torch.equal(model(torch.zeros(2, 3, dtype=torch.float16)), found)


def test_without_a_file_nothing_is_given():
    model = Model()
    with give_inputs("", model):
        assert not model.second._forward_pre_hooks


@pytest.mark.parametrize(("times", "word"), [(1, "less"), (3, "more")])
def test_another_number_of_calls_is_refused(stored, times, word):
    path, model = stored(), Model(times)
    with pytest.raises(AgentError, match=f"second is called {word} often"), torch.no_grad(), give_inputs(path, model):
        model(torch.zeros(2, 3))


def test_another_shape_is_refused(stored):
    path, model = stored((4, 3)), Model()
    expected = r"takes tensor x of shape \[2, 3\], the reference's takes one of shape \[4, 3\]"
    with pytest.raises(AgentError, match=expected), torch.no_grad(), give_inputs(path, model):
        model(torch.zeros(2, 3))


def test_a_part_that_there_is_not_and_a_broken_file_are_refused(stored, tmp_path):
    with pytest.raises(AgentError, match="the model has no second"), give_inputs(stored(), torch.nn.Linear(1, 1)):
        pass
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(AgentError, match="holds no inputs"), give_inputs(str(tmp_path / "broken.json"), Model()):
        pass
