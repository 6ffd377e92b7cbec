"""What torch tells of its graph without a public name: where one of these fails on a new torch, look at phase backward."""

import pytest
import torch
from torch import nn

from precflow.agent.capture import autograd


def leaf():
    return torch.ones(3, requires_grad=True)


def test_this_torch_shows_what_is_needed():
    assert autograd.shows_graph()


def test_sequence_numbers_grow_with_every_node_of_this_thread():
    x = leaf()
    before = autograd.next_sequence()
    first = x.sin()
    second = first * 2
    assert autograd.sequence_of(first.grad_fn) == before
    assert autograd.sequence_of(second.grad_fn) == before + 1 == autograd.next_sequence() - 1


def test_without_gradients_no_node_is_made():
    x = leaf()
    before = autograd.next_sequence()
    with torch.no_grad():
        x.sin()
    assert autograd.next_sequence() == before


def test_leaves_stand_above_all_numbers():
    (accumulate, _) = leaf().sin().grad_fn.next_functions[0]
    assert autograd.sequence_of(accumulate) > autograd.LEAVES_ABOVE


def test_the_running_node_and_pass_are_known_inside_backward_only():
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x + 1

        @staticmethod
        def backward(ctx, gradient):
            seen.append((autograd.current_sequence(), autograd.current_pass(), autograd.is_recomputing()))
            with torch.enable_grad():
                seen.append(autograd.is_recomputing())
            return gradient

    y = Look.apply(leaf())
    assert (autograd.current_sequence(), autograd.is_in_backward()) == (-1, False)
    y.sum().backward()
    (number, task, recomputing), again = seen
    assert number == autograd.sequence_of(y.grad_fn)
    assert task >= 0
    assert (recomputing, again) == (False, True)
    assert not autograd.is_in_backward()


def test_edges_of_leaves_results_and_constants():
    x = leaf()
    y = x.sin()
    assert autograd.edge_of(y) == (y.grad_fn, 0)
    assert autograd.edge_of(x) == y.grad_fn.next_functions[0]
    assert autograd.edge_of(torch.ones(2)) is None
    assert autograd.edge_of(torch.ones(2, 4, requires_grad=True).sin().unbind()[1]).output == 1


def test_edges_stay_with_the_value_before_an_in_place_write():
    y = leaf().sin()
    before = autograd.edge_of(y)
    y.mul_(2)
    assert autograd.edge_of(y) != before
    assert before == autograd.edge_of(y).node.next_functions[0]


def test_uses_are_found_inside_the_part_and_not_outside():
    x = leaf().sin()
    other = leaf().cos()
    inputs, nothing = autograd.InputEdges([("0", x)]), autograd.InputEdges([])
    y = (x * 2 + x) * other  # two uses of x; the other factor is not part of it
    found = autograd.find_uses([y.grad_fn], inputs)
    assert [use.index for use in found] == ["0", "0"]
    assert {use.node.name() for use in found} == {"MulBackward0", "AddBackward0"}
    assert autograd.find_uses([y.grad_fn], nothing) == []


def test_a_node_that_no_pass_comes_to_is_known():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    x = leaf()
    used, unused = first(x), second(x)
    seen = []
    used.grad_fn.register_prehook(lambda _: seen.append((autograd.will_run(used.grad_fn), autograd.will_run(unused.grad_fn))))
    used.sum().backward()
    assert seen == [(True, False)]


@pytest.mark.parametrize("missing", ["_pass_number", "_running_node", "_counter"])
def test_a_torch_that_does_not_show_it_is_not_usable(missing, monkeypatch):
    monkeypatch.setattr(autograd, missing, None)
    assert not autograd.shows_graph()
    assert autograd.next_sequence() >= 0
    assert autograd.current_sequence() == -1
