"""Gradients of Linear layers are evaluated in place from dumps of modules: who is wrong is named, who inherits is cleared."""

import pytest
import torch
from evaluated import evaluate_pair
from linear_layers import products, record, rounded


@pytest.fixture
def judge(tmp_path):
    """Record a right and a wrong step, evaluate both, and return what was found in backward."""

    def run(wrong, **options):
        reference, target = record(tmp_path / "reference", **options), record(tmp_path / "target", wrong, **options)
        return {key: one for key, one in evaluate_pair(tmp_path, reference, target).items() if key[1] != "forward"}

    return run


def test_the_wrong_gradients_are_named_and_what_they_lead_to_is_cleared(judge):
    found = judge(lambda *given: products(*map(rounded, given)))
    assert {key for key, one in found.items() if one.is_fault} == {("head", "backward", "0"), ("head", "gradient", "weight")}
    assert not found["inner", "gradient", "weight"].is_fault
    assert not found["inner", "backward", "0"].is_fault
    assert found["inner", "gradient", "weight"].rho < 8


def test_without_functions_only_the_gradient_of_the_weight_is_evaluated(judge):
    found = judge(lambda g, x, w: (products(g, x, w)[0], 1.01 * products(g, x, w)[1]), level="module")
    assert {key for key, one in found.items() if one.is_fault} == {("head", "gradient", "weight")}
    assert ("head", "backward", "0") not in found


def test_a_layer_that_runs_twice_and_a_gradient_that_something_else_changes_say_nothing(judge):
    def other(g, x, w):
        return products(g, x, w)[0], products(g, x, w)[1] + torch.ones(40, 24)

    found = judge(other, times=2, on_both=other)
    assert not any(one.is_fault for one in found.values())
    assert ("inner", "backward", "0") in found  # each call of it has an input of its own
    assert not {("inner", "gradient", "weight"), ("head", "gradient", "weight")} & found.keys()
