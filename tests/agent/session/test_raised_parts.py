"""A part that is raised computes as it would in a model that had it raised, and nothing of it is left afterwards."""

import dataclasses

import pytest
import torch
from torch import nn

from precflow.agent.failures import AgentError
from precflow.agent.request import ArmChange
from precflow.agent.session.interventions import Interventions
from precflow.agent.session.raised_parts import parts_in


@dataclasses.dataclass
class Returned:
    values: torch.Tensor
    mask: torch.Tensor


class Part(nn.Module):
    """A linear layer with a tied weight, a buffer, and outputs in a dataclass."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("offset", torch.rand(4))

    def forward(self, values, *, mask):
        self.seen = values.dtype, self.second.weight is self.first.weight
        return Returned(self.second(self.first(values)) + self.offset, mask)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.part, self.behind = Part(), nn.Linear(4, 4)
        self.behind.weight = self.part.first.weight  # a neighbour has it too

    def forward(self, values):
        returned = self.part(values, mask=torch.ones(4, dtype=torch.int64))
        return self.behind(returned.values) * returned.mask


@pytest.fixture
def model():
    torch.manual_seed(1)
    return Model()


def raised(**value):
    return [ArmChange("part", {"modules": ["part"], **value}, ())]


def test_a_wide_part_has_the_weights_of_before_the_cast_and_its_neighbours_see_their_own_type(model):
    uncast = {f"part.{name}": tensor.detach().clone() for name, tensor in model.part.state_dict().items()}
    exact = Part()
    exact.load_state_dict(model.part.state_dict())
    model.half()
    outside, before = [], dict(model.named_parameters(remove_duplicate=False))
    model.part.register_forward_hook(lambda _, given, output: outside.append((given[0].dtype, output)))
    values = torch.rand(3, 4).half()
    with torch.no_grad(), Interventions(model, raised(dtype="float32"), uncast=uncast):
        model(values)
        assert model.part.seen == (torch.float32, True)
        assert model.behind.weight is before["behind.weight"]
    ((given, output),) = outside
    assert (given, output.values.dtype, output.mask.dtype) == (torch.float16, torch.float16, torch.int64)
    assert torch.equal(output.values, exact(values.float(), mask=None).values.half())


def test_everything_is_put_back_bit_for_bit_also_after_an_error(model):
    model.half()
    before = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    values = torch.rand(3, 4).half()
    with torch.no_grad():
        expected = model(values)
        with pytest.raises(RuntimeError), Interventions(model, raised(dtype="float64", device="cpu")):
            model(torch.rand(3, 5).half())
        after = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
        assert all(after[name] is tensor for name, tensor in before.items())
        assert "forward" not in vars(model.part)
        assert torch.equal(model(values), expected)


def test_a_part_without_weights_takes_its_type_from_what_it_is_given():
    model = nn.Sequential(nn.Identity(), nn.Softmax(-1))
    seen = []
    model[1].register_forward_hook(lambda _, given, output: seen.append((given[0].dtype, output.dtype)))
    values = torch.rand(64).half()
    with Interventions(model, [ArmChange("part", {"modules": ["1"], "dtype": "float32"}, ())]):
        found = model(values)
    assert seen == [(torch.float16, torch.float16)]
    assert torch.equal(found, values.float().softmax(-1).half())


@pytest.mark.parametrize(
    "value",
    ["part", {}, {"modules": ["part"]}, {"modules": "part", "dtype": "float32"}, {"modules": ["part"], "dtype": "int8"}],
)
def test_what_names_no_part_or_no_change_is_refused(value):
    with pytest.raises(AgentError, match="expected names of modules, and a type"):
        parts_in(value)


def test_a_part_that_is_not_there_is_refused(model):
    change = ArmChange("part", {"modules": ["parts"], "device": "cpu"}, ())
    with pytest.raises(AgentError, match="the model has no part parts"), Interventions(model, [change]):
        pass
