"""Operators in float64 against torch's own."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from precflow.diagnosis.evidence import expected
from precflow.diagnosis.evidence.expected import compute_expected


def tensor(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, W, B = tensor(2, 5, 6), tensor(4, 6, seed=2), tensor(4, seed=3)
IMAGE, KERNEL = tensor(2, 3, 8, 9), tensor(4, 3, 3, 3, seed=4)
GAIN, SHIFT = tensor(6, seed=5), tensor(6, seed=6)
LABELS, CLASSES, PLACES = torch.tensor([0, 5, 2, 1, 2]), tensor(2, 6, 4, seed=7), torch.arange(8).view(2, 4) % 6
CHANNELS = tensor(2, 6, 4)
CONVOLVED = {"0": IMAGE, "1": KERNEL, "2": B}
OF_NORM = {"0": X, "2": GAIN, "3": SHIFT}
ROWS = {"normalized_shape": "(6,)", "eps": "0.1"}


@pytest.mark.parametrize(
    ("operator", "arguments", "inputs", "wanted"),
    [
        ("linear", {}, {"0": X, "1": W, "2": B}, functional.linear(X, W, B)),
        ("linear", {}, {"input": X, "weight": W}, functional.linear(X, W)),
        ("matmul", {}, {"0": X, "1": W.T}, X @ W.T),
        ("addmm", {}, {"0": B, "1": X[0], "2": W.T}, torch.addmm(B, X[0], W.T)),
        ("addmm", {"alpha": "0.5", "beta": "2"}, {"0": B, "1": X[0], "2": W.T}, torch.addmm(B, X[0], W.T, alpha=0.5, beta=2)),
        ("conv2d", {"3": "(2, 1)", "4": "(1, 1)"}, CONVOLVED, functional.conv2d(IMAGE, KERNEL, B, (2, 1), 1)),
        ("conv2d", {"dilation": "2"}, {"0": IMAGE, "1": KERNEL}, functional.conv2d(IMAGE, KERNEL, dilation=2)),
        ("softmax", {"dim": "1"}, {"0": X}, X.softmax(1)),
        ("layer_norm", ROWS, OF_NORM, functional.layer_norm(X, (6,), GAIN, SHIFT, 0.1)),
        ("rms_norm", ROWS, {"0": X, "2": GAIN}, functional.rms_norm(X, (6,), GAIN, 0.1)),
        ("group_norm", {"1": "3"}, {**OF_NORM, "0": CHANNELS}, functional.group_norm(CHANNELS, 3, GAIN, SHIFT)),
        ("gelu", {}, {"0": X}, functional.gelu(X)),
        ("gelu", {"approximate": "'tanh'"}, {"0": X}, functional.gelu(X, approximate="tanh")),
        ("silu", {}, {"0": X}, functional.silu(X)),
        ("leaky_relu", {"negative_slope": "0.2"}, {"0": X}, functional.leaky_relu(X, 0.2)),
        ("prelu", {}, {"0": IMAGE, "1": GAIN[:3]}, functional.prelu(IMAGE, GAIN[:3])),
        ("prelu", {}, {"0": X, "1": GAIN[:1]}, functional.prelu(X, GAIN[:1])),
        ("rsqrt", {}, {"0": X.abs()}, X.abs().rsqrt()),
        ("mul", {"1": "0.125"}, {"0": X}, X * 0.125),
        ("add", {}, {"0": X, "1": GAIN}, X + GAIN),
        ("pow", {"1": "2"}, {"0": X}, X**2),
        ("outer", {}, {"0": GAIN, "1": B}, torch.outer(GAIN, B)),
        ("einsum", {"0": "'i,j->ij'"}, {"1": GAIN, "2": B}, torch.outer(GAIN, B)),
        ("einsum", {"0": "'bth, oh -> bto'"}, {"1": X, "2": W}, X @ W.T),
        ("mse_loss", {}, {"0": X, "1": X.flip(0)}, functional.mse_loss(X, X.flip(0))),
        ("mse_loss", {"reduction": "'sum'"}, {"0": X, "1": X.flip(0)}, functional.mse_loss(X, X.flip(0), reduction="sum")),
        ("l1_loss", {"reduction": "'none'"}, {"0": X, "1": X.flip(0)}, (X - X.flip(0)).abs()),
        ("cross_entropy", {}, {"0": X[0], "1": LABELS}, functional.cross_entropy(X[0], LABELS)),
        ("cross_entropy", {}, {"input": CLASSES, "target": PLACES}, functional.cross_entropy(CLASSES, PLACES)),
        (
            "cross_entropy",
            {"size_average": "None", "ignore_index": "2", "reduce": "None", "reduction": "'mean'", "label_smoothing": "0.0"},
            {"0": X[0], "1": LABELS, "2": GAIN.abs()},
            functional.cross_entropy(X[0], LABELS, GAIN.abs(), ignore_index=2),
        ),
        (
            "cross_entropy",
            {"6": "'sum'", "4": "0"},
            {"0": X[0], "1": LABELS},
            functional.cross_entropy(X[0], LABELS, ignore_index=0, reduction="sum"),
        ),
    ],
)  # fmt: skip
def test_an_operator_is_that_of_torch(operator, arguments, inputs, wanted):
    made = compute_expected(operator, arguments, {name: value.numpy() for name, value in inputs.items()})
    assert made.shape == tuple(wanted.shape)
    assert np.allclose(made, wanted.numpy(), rtol=1e-12, atol=1e-13)


def test_what_is_not_known_is_not_computed(monkeypatch):
    x = X.numpy()
    assert compute_expected("bessel_j0", {}, {"0": x}) is None
    assert compute_expected("linear", {}, {"0": x}) is None
    assert compute_expected("matmul", {}, {"0": x}) is None  # the other one could not be read
    assert compute_expected("mse_loss", {"size_average": "False"}, {"0": x, "1": x}) is None
    assert compute_expected("cross_entropy", {"label_smoothing": "0.1"}, {"0": x[0], "1": LABELS.numpy()}) is None
    assert compute_expected("cross_entropy", {}, {"0": x[0], "1": x[0]}) is None  # labels that are shares
    assert compute_expected("softmax", {"dim": "'rows'"}, {"0": x}) is None
    assert compute_expected("add", {"alpha": "2"}, {"0": x, "1": x}) is None
    assert compute_expected("conv2d", {"groups": "3"}, {"0": IMAGE.numpy(), "1": KERNEL.numpy()}) is None
    monkeypatch.setattr(expected, "MOST_PRODUCTS", 100)
    assert compute_expected("linear", {}, {"0": x, "1": W.numpy()}) is None
