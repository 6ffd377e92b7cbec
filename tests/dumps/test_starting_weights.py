"""The same weights in another type are no other weights, and a weight that is tied on one side only is named as such."""

import pytest
import torch
from torch import nn

import precflow
from precflow.dumps.formats import read_dump
from precflow.stages.two_dumps import compare_dumps


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.layer = nn.Embedding(40, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 40, bias=False)
        self.register_buffer("frequencies", torch.logspace(0, -3, 16))

    def forward(self, ids):
        positions = torch.arange(ids.shape[1])[:, None] * self.frequencies[None].float()
        return self.head(torch.tanh(self.layer(self.embed(ids) + torch.cos(positions).to(self.layer.weight.dtype))))


@pytest.fixture
def compared(tmp_path):
    """Return a function that compares a net with the same one after each of two changes."""

    def compare(change, before=lambda net: None, **capture):
        dumps = []
        for side in ("reference", "target"):
            net = Net()
            before(net)
            if side == "target":
                change(net)
            with torch.no_grad(), precflow.capture(net, tmp_path / side, side=side, **capture) as recording:
                net(torch.tensor([[3, 17, 5, 8, 1, 30]]))
                recording.step()
            dumps.append(read_dump(tmp_path / side))
        return compare_dumps(*dumps, command="", evaluates=False)

    return compare


def tie(net):
    net.head.weight = net.embed.weight


@pytest.mark.parametrize("detail", ["tensors", "sketch"])
def test_a_model_that_was_cast_has_the_same_weights(compared, detail):
    model = compared(nn.Module.bfloat16, detail=detail)
    assert model.rows
    assert "weights" not in " ".join(model.verdict.reasons)
    told = "5 weights are bfloat16 on the target and float32 on the reference, equal after rounding"
    assert told in model.verdict.warnings
    assert not {"PF401", "PF410"} & {finding.rule for finding in model.findings}


def test_a_single_buffer_in_another_type_is_named(compared):
    def cast(net):
        net.frequencies = net.frequencies.bfloat16()

    model = compared(cast)
    assert (model.verdict.verdict, model.findings[0].rule) == ("misaligned", "PF410")
    assert model.findings[0].title.endswith("frequencies: float32 / bfloat16")


@pytest.mark.parametrize("detail", ["tensors", "sketch"])
def test_weights_that_are_others_in_another_type_are_others(compared, detail):
    def change(net):
        net.layer.weight.data = net.layer.weight.data.flip(0)
        net.bfloat16()

    model = compared(change, detail=detail)
    assert (model.verdict.verdict, model.rows) == ("inconclusive", ())
    assert "the weights differ in 1 of 5: layer.weight" in model.verdict.reasons[0]


@pytest.mark.parametrize("is_equal", [True, False])
def test_a_weight_that_is_tied_on_one_side_only_is_named(compared, is_equal):
    def untie(net):
        net.head.weight = nn.Parameter(net.embed.weight.detach().clone() * (1 if is_equal else 2))

    model = compared(untie, before=tie)
    assert model.findings[0].rule == "PF411"
    assert model.findings[0].title == "head.weight is tied to embed.weight on the reference only"
    assert "PF401" not in {finding.rule for finding in model.findings}
    assert model.verdict.verdict == ("aligned" if is_equal else "inconclusive")
    if not is_equal:
        assert model.verdict.reasons[:2] == (model.findings[0].title, "no tensor was compared")
