"""Operands of fewer bits are found by computing the product again, and no other error of the same size is taken for them."""

import pytest
import torch
from subjects import explain

from precflow.agent.hypotheses.narrow import cut

GENERATOR = torch.Generator().manual_seed(3)
X, W, BIAS = (torch.randn(shape, generator=GENERATOR) for shape in ((32, 96), (48, 96), (48,)))


def on_another_chip(x, w):
    """A product in float32 that adds up blocks of 16 terms, last block first."""
    total = torch.zeros(len(x), len(w))
    for start in reversed(range(0, x.shape[1], 16)):
        total += x[:, start : start + 16] @ w[:, start : start + 16].T
    return total + BIAS


def find(target, bias=BIAS):
    """Return bits and share of what explains the target's output; 0 bits if nothing does."""
    found = explain("linear", {}, (X, W, bias), X @ W.T + bias, target.float(), tells="operands")
    return (int(found["name"].rpartition("_")[2]), found["share"]) if found else (0, 0.0)


@pytest.mark.parametrize("bits", [11, 10, 7])
@pytest.mark.parametrize("truncate", [False, True])
def test_shortened_operands_are_found_on_top_of_another_chip(bits, truncate):
    found = find(on_another_chip(*(cut(one, bits, truncate=truncate).float() for one in (X, W))))
    assert found[0] == bits
    assert found[1] > 0.95


def test_a_bias_that_is_rounded_too_is_no_obstacle():
    x, w, bias = (cut(one, 10) for one in (X, W, 30 * BIAS))
    for added in (bias, 30 * BIAS):
        bits, share = find(x @ w.T + added, 30 * BIAS)
        assert (bits, share > 0.95) == (10, True)


def test_a_result_that_is_rounded_too_is_found():
    x, w = (cut(one, 7) for one in (X, W))
    assert find(cut(x @ w.T + cut(BIAS, 7), 7))[0] == 7


@pytest.mark.parametrize(
    "wrong",
    [
        lambda y: y,
        lambda y: y * (1 + 2**-11),
        lambda y: y * (1 + 2**-11 * torch.randn(y.shape, generator=GENERATOR)),
        lambda y: cut(y, 10),
        lambda y: torch.where(torch.arange(len(y))[:, None] == 3, y * 1.01, y),
    ],
)
def test_other_errors_of_that_size_are_not(wrong):
    assert find(wrong(on_another_chip(X, W)))[0] == 0


def test_there_is_no_answer_without_an_error_or_a_product():
    assert find(X.double() @ W.double().T + BIAS)[0] == 0
    assert explain("relu", {}, (X,), X.relu(), cut(X.relu(), 10).float(), tells="operands") is None


def test_cutting_keeps_infinity_zero_and_the_sign():
    assert cut(torch.tensor([-torch.inf, 0.0, -1.26]), 1).tolist() == [-torch.inf, 0.0, -1.5]
    assert cut(torch.tensor([-1.76]), 1, truncate=True).tolist() == [-1.5]
    values = torch.randn(1000, generator=GENERATOR) * 1e-9
    assert torch.equal(cut(values, 7), values.bfloat16().double())


@pytest.mark.parametrize(
    ("operator", "compute", "shapes"),
    [
        ("conv1d", torch.conv1d, ((2, 8, 40), (6, 8, 3), (6,))),
        ("bmm", torch.bmm, ((3, 12, 32), (3, 32, 10))),
        ("addmm", torch.addmm, ((10,), (12, 32), (32, 10))),
    ],
)
def test_every_product_that_torch_computes_is_looked_at(operator, compute, shapes):
    given = [torch.randn(shape, generator=GENERATOR) for shape in shapes]
    wrong = compute(*(cut(one, 10).float() if one.dim() > 1 else one for one in given))
    found = explain(operator, {}, given, compute(*given), wrong, tells="operands")
    assert found["name"] == "operands_10"
    assert explain(operator, {}, given, compute(*given), 1.001 * compute(*given), tells="operands") is None
