"""Sums of absolute terms, against the same sums written out term by term with autograd's Jacobian."""

import pytest
import torch

from precflow.agent.replay.terms import TERMS

GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape):
    return torch.randn(shape, generator=GENERATOR, dtype=torch.float64)


def test_gradients_of_weight_and_bias_add_up_over_rows():
    x, gradient, weight = normal(3, 4, 5), normal(3, 4, 5), normal(5)
    _, mean, rstd = torch.native_layer_norm(x, [5], weight, None, 1e-5)
    _, of_weight, of_bias = TERMS["native_layer_norm_backward"](gradient, x, [5], mean, rstd, weight)
    xhat = (x - mean) * rstd
    assert torch.allclose(of_weight, (gradient * xhat).abs().sum((0, 1)))
    assert torch.allclose(of_bias, gradient.abs().sum((0, 1)))


def assert_dominated(terms, exact):
    """No result is larger than the sum of its absolute terms, and terms are not much larger than they need be."""
    assert terms.shape == exact.shape
    assert bool((exact.abs() <= terms * (1 + 1e-12)).all())
    assert float(terms.norm()) < 30 * float(exact.norm())


@pytest.mark.parametrize("train", [True, False])
def test_batch_norm(train):
    x, gradient, weight = normal(4, 3, 5), normal(4, 3, 5), normal(3)
    mean, variance = torch.zeros(3).double(), torch.ones(3).double()
    _, saved, inverse = torch.native_batch_norm(x, weight, None, mean.clone(), variance.clone(), train, 0.1, 1e-5)
    given = (gradient, x, weight, mean, variance, saved, inverse, train, 1e-5, [True, True, True])
    for terms, exact in zip(
        TERMS["native_batch_norm_backward"](*given), torch.ops.aten.native_batch_norm_backward(*given), strict=True
    ):
        assert_dominated(terms, exact)


def test_group_norm():
    x, gradient, weight = normal(2, 4, 3, 3), normal(2, 4, 3, 3), normal(4)
    _, mean, rstd = torch.native_group_norm(x, weight, None, 2, 4, 9, 2, 1e-5)
    given = (gradient, x, mean, rstd, weight, 2, 4, 9, 2, [True, True, True])
    for terms, exact in zip(
        TERMS["native_group_norm_backward"](*given), torch.ops.aten.native_group_norm_backward(*given), strict=True
    ):
        assert_dominated(terms, exact)


def test_layer_norm():
    x, gradient, weight = normal(6, 5), normal(6, 5), normal(5)
    _, mean, rstd = torch.native_layer_norm(x, [5], weight, None, 1e-5)
    given = (gradient, x, [5], mean, rstd, weight, weight, [True, True, True])
    for terms, exact in zip(
        TERMS["native_layer_norm_backward"](*given), torch.ops.aten.native_layer_norm_backward(*given), strict=True
    ):
        assert_dominated(terms, exact)


@pytest.mark.parametrize(("name", "function"), [("softmax", torch.softmax), ("log_softmax", torch.log_softmax)])
def test_softmax(name, function):
    gradient, output = normal(4, 6), function(normal(4, 6), -1)
    exact = getattr(torch.ops.aten, f"_{name}_backward_data")(gradient, output, -1, torch.float64)
    assert_dominated(TERMS[f"{name}_backward_data"](gradient, output, -1, torch.float64), exact)
