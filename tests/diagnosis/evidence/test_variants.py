"""Each variant is found at the target's own inputs, in float32 and bfloat16, and none on a chip that rounds differently."""

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.nn import functional

from precflow.diagnosis.evidence.variants import fit_variant

torch.manual_seed(7)
X, W, B = torch.randn(4, 48, 64), torch.randn(64, 64) / 8, torch.randn(64)
GAIN = torch.rand(64) + 0.5
SCORES, VALUES = torch.randn(2, 48, 48), torch.randn(2, 48, 48)
IMAGE, CHANNEL_GAIN = torch.randn(3, 8, 6, 6), torch.rand(8) + 0.5
TABLE, ROWS = torch.randn(80, 16), torch.arange(4, 40)
NORM = {"normalized_shape": "(64,)", "eps": "1e-05"}


def norm(x, w, b):
    return functional.layer_norm(x, (64,), w, b)


def rms(x, w):
    return functional.rms_norm(x, (64,), w, 1e-5)


def cut_keys(x):
    return functional.pad(x[..., :-3].softmax(-1), (0, 3))


def groups(count):
    return lambda x: functional.group_norm(x, count)


def softmax(x):
    return x.softmax(-1)


def gelu_by_tanh(x):
    return functional.gelu(x, approximate="tanh")


NORMED, SHIFTED = (X, None, GAIN, B), (X + 0.5, None, GAIN)
LINEAR, ROWWISE = (X, W, B), {"dim": "-1"}
PLANTED = {  # variant: operator, arguments, inputs, right, wrong
    "gelu_tanh": ("gelu", {}, (X,), functional.gelu, gelu_by_tanh),
    "gelu_erf": ("gelu", {"approximate": "'tanh'"}, (X,), gelu_by_tanh, functional.gelu),
    "straight_lines": ("silu", {}, (X,), functional.silu, functional.hardswish),
    "no_weight": ("layer_norm", NORM, NORMED, lambda x, _, w, b: norm(x, w, b), lambda x, _, w, b: norm(x, None, b)),
    "weight_plus_one": ("layer_norm", NORM, NORMED, lambda x, _, w, b: norm(x, w, b), lambda x, _, w, b: norm(x, 1 + w, b)),
    "not_centred": ("layer_norm", NORM, SHIFTED, lambda x, _, w: norm(x, w, None), lambda x, _, w: rms(x, w)),
    "other_groups": ("group_norm", {"1": "4"}, (IMAGE,), groups(4), groups(2)),
    "uniform": ("softmax", ROWWISE, (SCORES,), softmax, lambda x: torch.full_like(x, 1 / 48)),
    "other_axis": ("softmax", ROWWISE, (SCORES,), softmax, lambda x: x.softmax(-2)),
    "last_keys_ignored": ("softmax", ROWWISE, (SCORES,), softmax, cut_keys),
    "no_bias": ("linear", {}, LINEAR, functional.linear, lambda x, w, _: x @ w.T),
    "transposed": ("linear", {}, LINEAR, functional.linear, lambda x, w, b: x @ w + b),
    "last_terms_left_out": ("linear", {}, LINEAR, functional.linear, lambda x, w, b: x[..., :-5] @ w[:, :-5].T + b),
    "memory_order": ("matmul", {}, (SCORES, VALUES), torch.matmul, lambda x, y: x @ y.transpose(-1, -2)),
    "only_second": ("add", {}, (X, 3 * X.flip(0)), torch.add, lambda x, y: y.clone()),
    "rows_shifted": ("embedding", {}, (ROWS, TABLE), lambda i, t: t[i], lambda i, t: t[i + 2]),
}
ROUNDED = {
    "inputs_in_bfloat16": ("cos", {}, (X * 40,), torch.cos, lambda x: x.bfloat16().float().cos()),
    "inputs_in_float16": ("sigmoid", {}, (X,), torch.sigmoid, lambda x: x.half().float().sigmoid().half().float()),
}


def fit(operator, arguments, inputs, compute, dtype=None):
    """Compute in float64, round to the type as a chip with exact operators does, and fit."""
    given = [None if one is None else one if dtype is None or not one.is_floating_point() else one.to(dtype) for one in inputs]
    wide = [one if one is None or not one.is_floating_point() else one.double() for one in given]
    target = compute(*wide).to(dtype or torch.float32).double().numpy()
    named = {str(place): one.numpy() for place, one in enumerate(wide) if one is not None}
    return fit_variant(operator, arguments, named, target)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PLANTED)
def test_a_variant_is_found_and_right_results_have_none(name, dtype):
    operator, arguments, inputs, right, wrong = PLANTED[name]
    found = fit(operator, arguments, inputs, wrong, dtype)
    if (name, dtype) in {("gelu_tanh", torch.bfloat16), ("gelu_erf", torch.bfloat16)}:
        assert found.name in {name, ""}  # the two forms differ by less than bfloat16 rounds
    else:
        assert found.name == name
    clean = fit(operator, arguments, inputs, right, dtype)
    assert clean is None or clean.name == ""


@pytest.mark.parametrize("shift", [-4, -3, -2, -1, 1, 2, 3, 4])
def test_rows_of_a_table_are_found_up_to_four_away(shift):
    found = fit("embedding", {}, (ROWS, TABLE), lambda i, t: t[i + shift])
    assert (found.name, found.share) == ("rows_shifted", 1.0)


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_inputs_are_found_in_float32(name):
    operator, arguments, inputs, right, wrong = ROUNDED[name]
    assert fit(operator, arguments, inputs, wrong).name == name
    assert fit(operator, arguments, inputs, right).name == ""


def test_another_chip_has_no_variant():
    """Products that add up in blocks, and a layer norm in one pass, in float32."""
    x, w = X.reshape(-1, 64).numpy(), W.numpy()
    product = sum((x[:, at : at + 8] @ w[:, at : at + 8].T for at in range(56, -1, -8)), np.zeros((192, 64), np.float32))
    assert fit_variant("linear", {}, {"0": x, "1": w}, product.astype(float)).name == ""
    mean = x.mean(1, keepdims=True)
    one_pass = (x - mean) / np.sqrt((x * x).mean(1, keepdims=True) - mean * mean + np.float32(1e-5))
    assert fit_variant("layer_norm", NORM, {"0": x}, one_pass.astype(float)).name == ""
    narrow = product.astype(ml_dtypes.bfloat16).astype(float)
    inputs = {"0": x.astype(ml_dtypes.bfloat16).astype(float), "1": w.astype(ml_dtypes.bfloat16).astype(float)}
    assert fit_variant("linear", {}, inputs, narrow).name == ""


def test_what_is_not_known_has_no_answer():
    assert fit_variant("bessel_j0", {}, {"0": X.numpy()}, X.numpy()) is None
    assert fit_variant("relu", {}, {"0": X.double().numpy()}, X.double().relu().numpy()) is None
