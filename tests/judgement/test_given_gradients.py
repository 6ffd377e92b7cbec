"""A gradient that is changed between backward and the optimizer fails, though a small step of the weights hides it."""

import pytest
import torch

import precflow
from precflow.dumps.formats import read_dump
from precflow.stages.two_dumps import compare_dumps


def scale(factor):
    def change(parameters):
        for parameter in parameters:
            parameter.grad.mul_(factor)

    return change


def clip(limit, **options):
    return lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, limit, **options)


def clip_by_hand(limit):
    def change(parameters):
        norm = torch.cat([parameter.grad.double().flatten() for parameter in parameters]).norm().float()
        for parameter in parameters:
            parameter.grad *= (limit / norm).clamp(max=1.0)

    return change


def lose_one(parameters):
    parameters[0].grad.zero_()


@pytest.fixture
def train(tmp_path):
    """Return a function that records two steps of plain SGD, whose rate is so small that its steps show nothing."""

    def run(side, change, *, dtype=torch.float32, detail="sketch"):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8)).to(dtype)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-5)
        kept = {"detail": detail, "level": ["module"], "step": [0, 1]}
        with precflow.capture(net, tmp_path / side, optimizer=optimizer, **kept) as recording:
            for step in range(2):
                batch = torch.randn(16, 32, generator=torch.Generator().manual_seed(step)).to(dtype)
                net(batch).square().mean().backward()
                change(list(net.parameters()))
                optimizer.step()
                optimizer.zero_grad()
                recording.step()
        return read_dump(tmp_path / side)

    return run


@pytest.mark.parametrize("detail", ["tensors", "sketch"])
@pytest.mark.parametrize(
    ("one", "other", "start"),
    [
        (clip(0.1), clip(0.09), "0.weight (optimizer)"),
        (scale(1.0), scale(0.5), "0.weight (optimizer)"),
        (scale(1.0), lose_one, "0.weight (optimizer)"),
        (scale(1.0), lambda parameters: parameters[2].grad.add_(0.01), "2.weight (optimizer)"),
    ],
)
def test_what_only_one_side_does_to_its_gradients_fails_at_the_optimizer(train, one, other, start, detail):
    model = compare_dumps(train("reference", one, detail=detail), train("target", other, detail=detail), command="")
    assert model.verdict.verdict == "misaligned"
    assert model.region.start == start
    failed = [row for row in model.rows if row.judged.status == "fail"]
    assert all("the optimizer is given another gradient" in row.judged.reason for row in failed)
    assert not any(model.verdict.standards.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("other", [clip(0.1, foreach=False), clip_by_hand(0.1)])
def test_the_same_clipping_written_otherwise_or_in_another_type_does_not(train, other, dtype):
    model = compare_dumps(train("reference", clip(0.1)), train("target", other, dtype=dtype), command="")
    assert not any("another gradient" in row.judged.reason for row in model.rows)
    assert not any(row.judged.status == "fail" and row.measure.phase == "optimizer" for row in model.rows)


def test_where_backward_itself_goes_wrong_the_optimizer_inherits_it(train):
    def lose_in_backward(parameters):
        parameters[0].register_hook(lambda gradient: gradient * 0.5)  # from the second step on

    model = compare_dumps(train("reference", scale(1.0)), train("target", lose_in_backward), command="")
    assert model.verdict.verdict == "misaligned"
    assert not any("another gradient" in row.judged.reason for row in model.rows)
