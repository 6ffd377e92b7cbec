"""To which elements gradients go, told from the inputs of an operator."""

import numpy as np
import pytest
import torch

from precflow.judgement.gradient_choices import examine, is_known
from precflow.judgement.near_ties import ChoiceInput

CALLS = {
    "amax": (lambda x: x.amax((1, 3)), {"1": "(1, 3)"}),
    "amin": (lambda x: x.amin(-1, keepdim=True), {"dim": "-1", "keepdim": "True"}),
    "max": (lambda x: x.max(), {}),
    "relu": (torch.relu, {"inplace": "False"}),
    "clamp": (lambda x: x.clamp(-0.5, 0.7), {"1": "-0.5", "2": "0.7"}),
    "clamp_": (lambda x: x.clamp(min=0.2), {"min": "0.2"}),
    "hardtanh": (torch.nn.functional.hardtanh, {"min_val": "-1.0", "max_val": "1.0"}),
    "max_pool2d": (
        lambda x: torch.nn.functional.max_pool2d(x, (3, 2), stride=(2, 1), padding=1, dilation=(1, 2)),
        {"1": "(3, 2)", "stride": "(2, 1)", "padding": "1", "dilation": "(1, 2)"},
    ),
    "median": (lambda x: x.median(), {}),
    "nanmedian": (torch.nanmedian, {}),
    "max_pool1d": (lambda x: torch.nn.functional.max_pool1d(x.flatten(1, 2), 2), {"1": "2", "stride": "None", "padding": "0"}),
}


def gradient(function, values):
    leaf = values.clone().requires_grad_()
    made = function(leaf)
    made.backward(torch.randn(made.shape, generator=torch.Generator().manual_seed(1), dtype=made.dtype))
    return leaf.grad


def values_near_ties(dtype=torch.float32):
    draw = torch.Generator().manual_seed(0)
    coarse = (torch.randn(2, 3, 8, 10, generator=draw) * 4).round() / 4  # many equal values
    return coarse.to(dtype), (coarse + 1e-6 * torch.randn(coarse.shape, generator=draw)).to(dtype)


@pytest.mark.parametrize("operator", CALLS)
def test_flips_are_found_where_autograd_sends_the_gradient_elsewhere(operator):
    function, arguments = CALLS[operator]
    reference, target = values_near_ties()
    x = {"0": ChoiceInput((reference.flatten(1, 2) if operator == "max_pool1d" else reference).numpy(),
                    (target.flatten(1, 2) if operator == "max_pool1d" else target).numpy(), "float32")}  # fmt: skip
    elsewhere = (gradient(function, reference) != gradient(function, target)).any()
    found = examine(operator, arguments, x)
    assert is_known(operator)
    assert bool(elsewhere) == bool(found.differing)
    assert found.near
    same = examine(operator, arguments, {"0": ChoiceInput(x["0"].reference, x["0"].reference, "float32")})
    assert (same.differing, same.near) == (0, True)


@pytest.mark.parametrize(
    ("operator", "call", "arguments", "total"),
    [
        ("quantile", lambda x: x.quantile(0.3, 1), {"1": "0.3", "2": "1"}, 120),
        ("quantile", lambda x: torch.quantile(x, 0.9), {"1": "0.9"}, 2),
        (
            "quantile",
            lambda x: x.quantile(0.3, -1, interpolation="nearest"),
            {"q": "0.3", "dim": "-1", "interpolation": "nearest"},
            48,
        ),
        ("nanquantile", lambda x: x.nanquantile(0.7, 0), {"1": "0.7", "dim": "0"}, 2 * 80),
        ("msort", torch.msort, {}, 480),
    ],
)
def test_the_order_of_near_values_is_a_choice(operator, call, arguments, total):
    draw = torch.Generator().manual_seed(2)
    reference = torch.randn(6, 8, 10, generator=draw)
    reference[1] = reference[0] + 1e-7 * reference[2]
    reference[:, 1] = reference[:, 0] * (1 + 1e-7)
    reference[..., 1] = reference[..., 0] - 1e-7
    if operator == "nanquantile":
        reference[3:5, 2] = torch.nan
    target = reference * (1 + 2e-7 * torch.randn(reference.shape, generator=draw))

    def examine_both(one, other):
        return examine(operator, arguments, {"0": ChoiceInput(one.numpy(), other.numpy(), "float32")})

    elsewhere = ((gradient(call, reference) - gradient(call, target)).abs() > 1e-3).sum()
    found = examine_both(reference, target)
    assert (elsewhere > 0) == (found.differing > 0)
    assert (found.near, found.total) == (True, total)


def test_an_order_that_changed_by_more_than_noise_is_no_near_tie():
    reference = np.tile(np.array([0.0, 1.0, 2.0], dtype=np.float32), (4000, 1))
    target = reference + np.float32(1e-7)
    target[17, 1] = 5.0
    found = examine("quantile", {"1": "0.5", "2": "1"}, {"0": ChoiceInput(reference, target, "float32")})
    assert (found.differing, found.near) == (2, False)


def test_equal_values_are_sorted_in_any_order():
    values = np.array([1.0, 2.0, 2.0, 3.0, 4.0], dtype=np.float32)
    moved = ChoiceInput(values, values * np.float32(1 + 1e-6), "float32")
    assert examine("quantile", {"1": "0.5"}, {"0": moved}).differing == 2  # the rank 2 is both ends of its interval
    assert examine("quantile", {"1": "1.0"}, {"0": moved}).differing == 0
    assert examine("msort", {}, {"0": moved}).differing == 2
    assert examine("median", {}, {"0": moved}).differing == 0  # they share the gradient


def test_what_cannot_be_ordered_or_shows_its_index_is_not_examined():
    values, other = np.array([1.0, np.nan, 2.0], dtype=np.float32), np.array([1.0, 2.0, np.nan], dtype=np.float32)
    for operator in ("quantile", "nanquantile"):
        assert examine(operator, {"1": "0.5"}, {"0": ChoiceInput(values, other, "float32")}) is None
    halves = {"0": ChoiceInput(other[:2], other[:2], "float32"), "1": ChoiceInput(other[:1] / 2, other[:1] / 4, "float32")}
    assert examine("quantile", {}, halves) is None
    assert examine("median", {"dim": "0"}, {"0": ChoiceInput(other[:2], other[1::-1], "float32")}) is None


@pytest.mark.parametrize("operator", ["maximum", "minimum", "max"])
def test_the_larger_of_two_is_a_choice_too(operator):
    one, other = values_near_ties()
    given = {
        "0": ChoiceInput(one.numpy(), other.numpy(), "float32"),
        "1": ChoiceInput(one.numpy() * 0 + 0.25, one.numpy() * 0 + 0.25, "float32"),
    }
    found = examine(operator, {}, given)
    assert (found.differing, found.near) == (int((one == 0.25).sum()), True)


def test_a_choice_that_moved_by_more_than_noise_is_no_near_tie():
    reference, target = values_near_ties()
    wrong = target.clone()
    wrong[0, 1, 2, 3] = 9.0  # stands out of what else differs
    found = examine("amax", {"1": "(1, 3)"}, {"0": ChoiceInput(reference.numpy(), wrong.numpy(), "float32")})
    assert found.differing
    assert not found.near


def test_arguments_that_cannot_be_read_say_nothing():
    given = {"0": ChoiceInput(np.ones((2, 9)), np.zeros((2, 9)), "float32")}
    assert examine("max_pool1d", {"1": "2", "ceil_mode": "True"}, given) is None
    assert examine("clamp", {"min": "tensor"}, given) is None
    assert examine("softmax", {"1": "1"}, given) is None
