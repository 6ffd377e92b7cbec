"""Weights that were converted on the way: rounded, transposed, exchanged; and weights that nothing explains."""

import pytest
import torch
from torch import nn

import precflow

pytestmark = pytest.mark.slow  # records two dumps each


def change(model, way):
    first, second = model[0].weight, model[2].weight
    if way == "rounded":
        model.load_state_dict({name: value.bfloat16().float() for name, value in model.state_dict().items()})
    elif way == "transposed":
        first.copy_(first.t().clone())
    elif way == "exchanged":
        first.data, second.data = second.data.clone(), first.data.clone()
    elif way == "nearly":
        model[2].bias.mul_(1 + 2**-22)
    elif way == "stale":
        first.add_(0.01 * torch.randn(first.shape))


@pytest.fixture
def compare(tmp_path):
    """Return a function that records a model twice, the second time with changed weights, and compares the two."""

    def record(side, way):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 24))
        with torch.no_grad():
            change(model, way)
            with precflow.capture(model, tmp_path / side) as recording:
                model(torch.ones(3, 24))
                recording.step()
        return tmp_path / side

    return lambda way: precflow.compare(record("reference", ""), record("target", way))


@pytest.mark.parametrize(
    ("way", "rule", "certainty", "title"),
    [
        (
            "rounded",
            "PF421",
            "certain",
            "0.weight is made of the reference's weights: equal after rounding to bfloat16, and so on for 3 more",
        ),
        ("transposed", "PF421", "certain", "0.weight is made of the reference's weights: axes 0 and 1 exchanged"),
        (
            "exchanged",
            "PF421",
            "certain",
            "0.weight is made of the reference's weights: it is 2.weight there, and so on for 1 more",
        ),
        ("nearly", "PF421", "likely", "2.bias is made of the reference's weights: equal after rounding to float16"),
        ("stale", "PF401", "certain", "1 weight differs, first 0.weight"),
    ],
)
def test_weights_that_were_converted_say_how(compare, way, rule, certainty, title):
    found = compare(way)
    assert found.verdict == "inconclusive"
    assert (found.findings[0].rule, found.findings[0].certainty, found.findings[0].title) == (rule, certainty, title)


def test_an_average_that_the_script_makes_itself_is_no_checkpoint_for_sure(tmp_path):
    """A momentum encoder is filled with an average before it runs first, which another device rounds in its own way."""
    folders = []
    for side, average in (
        ("reference", lambda old, new: 0.9 * old + 0.1 * new),
        ("target", lambda old, new: old.lerp(new, 0.1)),
    ):
        torch.manual_seed(0)
        query, key = nn.Linear(24, 24), nn.Linear(24, 24)
        key.requires_grad_(requires_grad=False)
        key.load_state_dict({name: average(value, value) for name, value in query.state_dict().items()})
        model, optimizer = nn.ModuleDict({"query": query, "key": key}), torch.optim.SGD(query.parameters(), lr=0.1)
        with precflow.capture(model, tmp_path / side, optimizer=optimizer) as recording:
            (query(torch.ones(3, 24)) * key(torch.ones(3, 24))).sum().backward()
            optimizer.step()
            recording.step()
        folders.append(tmp_path / side)
    found = precflow.compare(*folders).findings[0]
    assert (found.rule, found.certainty) == ("PF421", "possible")
    assert "the script fills this model itself with an average of other weights" in found.fix
