import pytest
import torch
from torch import nn

import precflow
from precflow.diagnosis.training.gradient_changes import find_gradient_changes
from precflow.diagnosis.training.phases import describe_phases
from precflow.dumps.formats import read_dump
from precflow.stages.two_dumps import compare_dumps

GUILTY_SCRIPT = "data, forward, loss, backward aligned · optimizer misaligned, starts here"


def record(folder, change, *, micro_batches=1, penalty=False, phase=None):
    """Record two steps of a loop that calls ``change(model)`` between backward and the optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with precflow.capture(model, folder, optimizer=optimizer, step=[0, 1], phase=phase) as recording:
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(micro_batches):
                features, labels = (torch.randn(12, 8) * 2).requires_grad_(penalty), torch.randint(0, 4, (12,))
                output = model(features)
                loss = nn.functional.cross_entropy(output, labels)
                if penalty:
                    loss = loss + torch.autograd.grad(loss, features, create_graph=True)[0].square().sum()
                loss.backward()
            change(model)
            (output.argmax(1) == labels).float().mean()
            optimizer.step()
            recording.step()
    return read_dump(folder)


def multiply(factor):
    def change(model):
        for parameter in model.parameters():
            parameter.grad.mul_(factor)

    return change


def divide(factor):
    def change(model):
        for parameter in model.parameters():
            parameter.grad = parameter.grad / factor

    return change


def clip(limit):
    return lambda model: nn.utils.clip_grad_norm_(model.parameters(), limit)


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize(
    ("here", "there", "operator"), [(divide(1.0), divide(2.0), "div"), (multiply(1.0), multiply(0.5), "mul_")]
)
def test_a_change_of_gradients_belongs_to_what_the_optimizer_is_given(tmp_path, here, there, operator, micro_batches):
    sides = [record(tmp_path / name, change, micro_batches=micro_batches) for name, change in (("a", here), ("b", there))]
    model = compare_dumps(*sides, command="")
    assert describe_phases(model.phases) == GUILTY_SCRIPT
    assert model.region.start == f"(outside) / {operator}"
    optimizer = next(one for one in model.phases if one.name == "optimizer")
    assert optimizer.why.endswith(
        f"first (outside) / {operator}: what the script does to gradients before the optimizer's step"
    )
    assert [check.state for check in model.procedure].count("differs") == 1
    assert next(check for check in model.procedure if check.state == "differs").name.startswith("optimizer")


def test_the_loss_the_next_batch_and_an_accuracy_are_no_changes(tmp_path):
    calls = record(tmp_path / "a", clip(0.1), micro_batches=2).calls()
    changing = {call.operator for call in find_gradient_changes(calls)}
    assert any("norm" in operator for operator in changing)
    assert any("mul" in operator for operator in changing)
    loose = {call.operator for call in calls if call.module == "(outside)"}
    assert loose - changing >= {"randn", "mul", "cross_entropy", "argmax", "mean"}


def test_a_penalty_on_gradients_is_a_part_of_the_loss(tmp_path):
    calls = record(tmp_path / "a", multiply(0.5), penalty=True).calls()
    assert {call.operator for call in find_gradient_changes(calls)} == {"mul_"}


def test_changes_that_agree_say_nothing_of_an_optimizer_that_was_not_recorded(tmp_path):
    sides = [
        record(tmp_path / name, multiply(0.5), phase=["forward", "backward", "gradient"]) for name in ("reference", "target")
    ]
    states = {one.name: one.state for one in compare_dumps(*sides, command="").phases}
    assert (states["forward"], states["optimizer"]) == ("aligned", "not_told")
