"""Which parameters are updated: models that are trained by hand, and what is known of each parameter afterwards."""

import pytest
import torch
from torch import nn

from precflow.agent.capture.updates import ELEMENTS, Updates

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2, bias=False))


def train(model, optimizer, *, steps=2, recorded=(0, 1), between=lambda _: None, after=lambda: None):
    """Train some steps as a loop with capture does, and return what is known of the parameters."""
    updates = Updates(active=True)
    for step in range(steps):
        if step in recorded:
            updates.begin_step(step)
            updates.add(model)
        optimizer.zero_grad()
        model(X).pow(2).sum().backward()
        between(step)
        updates.before_optimizer(optimizer, step)
        optimizer.step()
        updates.after_optimizer(optimizer)
        after()
        updates.end_step()
    return updates.describe()


def test_a_parameter_that_is_trained_moves_with_its_state():
    model = network()
    known = train(model, torch.optim.Adam(model.parameters()), steps=4, recorded=(0, 1))
    assert list(known) == ["0.weight", "0.bias", "1.weight"]
    for one in known.values():
        assert one["trained"]
        assert one["held"]
        assert one["given"] == [[0, 3]]  # in steps that are not recorded too
        assert list(one["moved"]) == ["0", "1"]
        assert 0 < one["moved"]["0"] < one["moved_in_all"]
        assert one["state"] == {"exp_avg": [0, 1], "exp_avg_sq": [0, 1]}


def test_a_frozen_parameter_does_not_move():
    model = network()
    model[0].requires_grad_(requires_grad=False)
    known = train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert [one["trained"] for one in known.values()] == [False, False, True]
    assert known["0.weight"]["given"] == []
    assert known["0.weight"]["moved"] == {"0": 0.0, "1": 0.0}
    assert known["1.weight"]["moved"]["1"] > 0


def test_the_optimizer_may_hold_other_parameters():
    model = network()
    copies = [nn.Parameter(each.detach().clone()) for each in model.parameters()]
    assert not any(one["held"] for one in train(model, torch.optim.SGD(copies, lr=0.1)).values())


def test_a_copy_that_is_trained_in_place_of_a_parameter_counts_as_it():
    model, updates = network(), Updates(active=True)
    master = model[0].weight.detach().clone()
    updates.begin_step(0)
    updates.add(model)
    updates.name_master(master, model[0].weight)
    master.grad = torch.ones_like(master)
    updates.before_optimizer(torch.optim.SGD([master], lr=0.1))
    updates.end_step()
    assert {name: (one["held"], one["given"]) for name, one in updates.describe().items()} == {
        "0.weight": (True, [[0, 0]]),
        "0.bias": (False, []),
        "1.weight": (False, []),
    }


def test_steps_without_a_gradient_are_told():
    model = network()

    def take(step):
        if step == 1:
            model[0].weight.grad = None

    known = train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=3, recorded=(0, 1), between=take)
    assert known["0.weight"]["given"] == [[0, 0], [2, 2]]
    assert known["0.weight"]["moved"]["1"] == 0.0


def test_what_overwrites_a_weight_after_the_step_belongs_to_the_update():
    model = network()
    kept = model[0].weight.detach().clone()

    def overwrite():
        with torch.no_grad():
            model[0].weight.copy_(kept)

    known = train(model, torch.optim.SGD(model.parameters(), lr=0.1), after=overwrite)
    assert known["0.weight"]["moved"] == {"0": 0.0, "1": 0.0}


def test_an_update_of_less_than_half_a_unit_moves_nothing():
    model = network().bfloat16()
    with torch.no_grad():
        model[0].weight.fill_(1.0)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    updates = Updates(active=True)
    updates.begin_step(0)
    updates.add(model)
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    updates.end_step()
    known = updates.describe()["0.weight"]
    assert (known["dtype"], known["moved"]) == ("bfloat16", {"0": 0.0})


@pytest.mark.parametrize("shape", [(3, 5 * ELEMENTS), (ELEMENTS - 1, 2)])
def test_a_large_parameter_is_sampled_whatever_its_layout(shape):
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(shape).t())
    updates = Updates(active=True)
    updates.begin_step(0)
    updates.add(model)
    with torch.no_grad():
        model.weight += 1
    updates.end_step()
    assert updates.describe()["weight"]["moved"] == {"0": 1.0}


def test_the_same_elements_are_sampled_whatever_the_layout():
    """Another part of a weight may move by another amount, which would be a weight that is written on one side."""
    moved = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        model = nn.Conv2d(40, 3 * ELEMENTS // 400, 3).to(memory_format=layout)
        updates = Updates(active=True)
        updates.begin_step(0)
        updates.add(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        draws = torch.Generator().manual_seed(1)
        model.weight.grad = torch.randn(model.weight.shape, generator=draws).to(memory_format=layout)
        updates.before_optimizer(optimizer, 0)
        optimizer.step()
        updates.after_optimizer(optimizer)
        updates.end_step()
        moved.append(updates.describe()["weight"]["moved"]["0"])
    assert moved[0] == moved[1] > 0


def test_nothing_is_followed_where_nobody_trains():
    updates = Updates(active=False)
    updates.begin_step(0)
    updates.add(network())
    updates.end_step()
    assert updates.describe() == {}
