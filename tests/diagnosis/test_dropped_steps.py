"""A long run that keeps its last steps, and one side of it that makes a NaN in the middle."""

import pytest
import torch
from torch import nn

import precflow
from precflow.dumps.formats import read_dump
from precflow.stages.two_dumps import compare_dumps

BREAKS = 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)
        self.breaks = False

    def forward(self, x):
        x = self.act(self.first(x))
        return self.last(x * float("nan") if self.breaks else x)


def record(folder, side, *, breaks, detail="sketch"):
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    phases = ["forward", "backward", "gradient", "optimizer"]
    options = {"optimizer": optimizer, "side": side, "phase": phases, "detail": detail, "step": list(range(7)), "keep_last": 2}
    with precflow.capture(net, folder / side, **options) as recording:
        for step in range(7):
            net.breaks = breaks and step == BREAKS
            optimizer.zero_grad()
            net(torch.randn(4, 6)).pow(2).sum().backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            recording.step()
    return read_dump(folder / side)


@pytest.mark.parametrize("detail", ["sketch", "tensors"])
def test_a_nan_in_a_step_that_the_other_side_dropped_comes_first(tmp_path, detail):
    reference, target = (record(tmp_path, side, breaks=side == "target", detail=detail) for side in ("reference", "target"))
    assert {call.step for call in reference.calls()} == {5, 6}
    assert {call.step for call in target.calls()} > {2, 3, 5, 6}
    model = compare_dumps(reference, target, command="")
    assert {row.measure.join for row in model.rows} == {"paired"}, "the steps that both kept are compared"
    assert model.verdict.verdict == "misaligned"
    first = model.findings[0]
    assert (first.rule, first.certainty) == ("PF815", "certain")
    assert "mul (step 3): 32 NaN" in first.title
    assert model.region.start == first.where
    assert "PF805" not in {finding.rule for finding in model.findings}, "clipping divides by a norm that is NaN"


def test_without_a_nan_the_sides_keep_the_same_steps(tmp_path):
    model = compare_dumps(*(record(tmp_path, side, breaks=False) for side in ("reference", "target")), command="")
    assert model.verdict.verdict == "aligned"
    assert model.findings == ()
