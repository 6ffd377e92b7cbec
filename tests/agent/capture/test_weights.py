import torch
from torch import nn

from precflow.agent.capture.weights import Weights


def learned(model):
    weights = Weights()
    weights.learn(model)
    return weights


def test_parameters_and_buffers_have_their_names():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    weights = learned(model)
    assert weights.find_name(model[0].weight) == "0.weight"
    assert weights.find_name(model[1].running_mean) == "1.running_mean"
    assert weights.find_name(torch.zeros(2)) == ""


def test_the_same_memory_is_the_weight_and_a_view_is_not():
    model = nn.Linear(3, 2)
    weights = learned(model)
    assert weights.find_name(model.weight.detach()) == weights.find_name(model.weight.data) == "weight"
    assert (
        weights.find_name(model.weight.t())
        == weights.find_name(model.weight[0])
        == weights.find_name(model.weight.clone())
        == ""
    )


def test_a_tied_weight_has_its_first_name():
    model = nn.ModuleDict({"first": nn.Linear(2, 2), "second": nn.Linear(2, 2)})
    model["second"].weight = model["first"].weight
    assert learned(model).find_name(model["second"].weight) == "first.weight"


def test_a_buffer_that_is_written_to_is_state_until_the_next_step():
    model = nn.BatchNorm1d(2)
    weights = learned(model)
    model.running_mean.add_(1)
    assert weights.find_name(model.running_mean) == weights.find_name(model.running_mean.detach()) == ""
    weights.renew()
    assert weights.find_name(model.running_mean) == "running_mean"


def test_forgetting_lets_the_model_go():
    model = nn.Linear(2, 2)
    weights = learned(model)
    weights.clear()
    assert weights.find_name(model.weight) == ""


def test_meta_and_empty_weights_are_known_as_objects_only():
    model = nn.ParameterList([nn.Parameter(torch.empty(2, device="meta")), nn.Parameter(torch.empty(0))])
    weights = learned(model)
    assert [weights.find_name(weight) for weight in model] == ["0", "1"]
    assert weights.find_name(torch.empty(0)) == ""
