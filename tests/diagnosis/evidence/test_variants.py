"""Each variant is found at the target's own inputs, in float32 and bfloat16, and none on a chip that rounds differently."""

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.nn import functional

from precflow.diagnosis.evidence.variants import VariantFit, fit_variant

torch.manual_seed(7)
X, W, B = torch.randn(4, 48, 64), torch.randn(64, 64) / 8, torch.randn(64)
GAIN = torch.rand(64) + 0.5
POSITIONS, FREQUENCIES = torch.arange(3.0, 35.0)[:, None], torch.rand(16)
HEADS, MOVED = torch.randn(2, 3, 24, 8), torch.randn(2, 24, 3, 8).transpose(1, 2)
LABELS, LOGITS = torch.randint(0, 9, (24,)), torch.randn(24, 9)
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
    "other_slope": ("prelu", {}, (IMAGE, CHANNEL_GAIN), functional.prelu, lambda x, w: functional.prelu(x, w.flip(0))),
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
    "terms_left_out": ("matmul", {}, (X[0].T, X[1]), torch.matmul, lambda x, y: x[:, 8:] @ y[8:]),
    "terms_added_twice": ("linear", {}, (X, W), functional.linear, lambda x, w: x @ w.T + x[..., [5]] @ w.T[[5]]),
    "positions_shifted": ("mul", {}, (POSITIONS, FREQUENCIES), torch.mul, lambda p, f: (p - 2) * f),
    "only_second": ("add", {}, (X, 3 * X.flip(0)), torch.add, lambda x, y: y.clone()),
    "rows_shifted": ("embedding", {}, (ROWS, TABLE), lambda i, t: t[i], lambda i, t: t[i + 2]),
}
TYPES = {torch.bfloat16: np.dtype(ml_dtypes.bfloat16), torch.float16: np.dtype(np.float16)}
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
    return fit_variant(operator, arguments, named, target, TYPES.get(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", PLANTED)
def test_a_variant_is_found_and_right_results_have_none(name, dtype):
    operator, arguments, inputs, right, wrong = PLANTED[name]
    found = fit(operator, arguments, inputs, wrong, dtype)
    assert found.name == name  # the forms of GELU too, which differ by less than bfloat16 rounds
    clean = fit(operator, arguments, inputs, right, dtype)
    assert clean is None or clean.name == ""


def read_as_if_it_lay_in_order(tensor):
    """The memory of a view, as a kernel reads it that takes no strides."""
    order = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))
    return tensor.permute(order).reshape(tensor.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_order_of_memory_is_found_for_either_operand_and_any_axes(dtype):
    """Heads are views of (batch, tokens, heads, features), and keys are transposed once more."""
    keys = MOVED.transpose(-1, -2)
    found = fit("matmul", {}, (HEADS, keys), lambda q, _: q @ read_as_if_it_lay_in_order(keys).to(dtype).double(), dtype)
    assert (found.name, found.detail) == ("memory_order", "second")
    values = HEADS.clone()
    found = fit("matmul", {}, (keys, values), lambda _, v: read_as_if_it_lay_in_order(keys).to(dtype).double() @ v, dtype)
    assert (found.name, found.detail) == ("memory_order", "first")
    assert fit("matmul", {}, (HEADS, keys), torch.matmul, dtype).name == ""


@pytest.mark.parametrize(
    ("left_out", "text"),
    [([0, 1], "the first 2 of 48"), ([46, 47], "the last 2 of 48"), ([7, 8, 9], "8 to 10 of 48"), ([3, 30], "2 of 48")],
)
def test_the_gradient_of_fewer_rows_says_which(left_out, text):
    kept = [row for row in range(48) if row not in left_out]
    found = fit("matmul", {}, (X[0].T, X[1]), lambda g, x: g[:, kept] @ x[kept], torch.float32)
    assert found.share > 0.999
    assert found.name.endswith("terms_left_out")
    assert found.detail in {text, ""}


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("operator", ["mul", "matmul"])
def test_positions_that_begin_elsewhere_are_counted(operator, place):
    """Angles are a product of positions and frequencies, in either order, elementwise or as one of matrices."""
    positions = torch.arange(0.0, 24.0)
    factors = [positions[:, None], FREQUENCIES[None]]
    if place:
        factors = [one.T for one in factors[::-1]]
    compute = getattr(torch, operator)

    def shifted(*given):
        return compute(*(one + 3 if at == place else one for at, one in enumerate(given)))

    assert fit(operator, {}, factors, shifted) == VariantFit("positions_shifted", pytest.approx(1.0), "by 3")
    assert fit(operator, {}, factors, compute).name == ""


def test_a_loss_over_fewer_tokens_is_told_from_one_that_is_off_by_something_else():
    def loss(kept=slice(None), factor=1.0):
        return lambda scores, labels: functional.cross_entropy(scores[kept], labels[kept]) * factor

    assert fit("cross_entropy", {}, (LOGITS, LABELS), loss(slice(None, -3))).detail == "the last 3 of 24"
    assert fit("cross_entropy", {}, (LOGITS, LABELS), loss(slice(2, None))).detail == "the first 2 of 24"
    for factor in (1.01, 0.97, 0.9, 1.1, 1 + 2**-9, 1 - 2**-12):
        assert fit("cross_entropy", {}, (LOGITS, LABELS), loss(factor=factor)).name == ""


@pytest.mark.parametrize("shift", [-4, -3, -2, -1, 1, 2, 3, 4])
def test_rows_of_a_table_are_found_up_to_four_away(shift):
    found = fit("embedding", {}, (ROWS, TABLE), lambda i, t: t[i + shift])
    assert (found.name, found.share, found.detail) == ("rows_shifted", 1.0, f"by {shift}")


def test_what_is_read_beyond_the_end_of_a_table_is_no_objection():
    every = torch.arange(len(TABLE))
    found = fit("embedding", {}, (every, TABLE), lambda i, t: t[(i + 2) % len(t)])
    assert (found.name, found.share, found.detail) == ("rows_shifted", 1.0, "by 2")
    assert fit("embedding", {}, (every, TABLE), lambda i, t: t[i.flip(0)]).name == ""


def test_one_row_that_all_read_is_no_shift():
    """A table of two rows, as of token types: where all read the first, the second was not counted from another number."""
    types = torch.tensor([0, 0, 1, 1, 1, 0, 1])
    assert fit("embedding", {}, (types, TABLE[:2]), lambda i, t: t[i * 0]).name == ""
    one = fit("embedding", {}, (torch.tensor([5]), TABLE), lambda i, t: t[i + 1])
    assert (one.name, one.detail) == ("rows_shifted", "by 1")


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_function_that_is_off_by_units_of_16_bits_is_no_variant(dtype):
    x = (X.to(dtype).double() * 2).numpy()
    right = functional.gelu(torch.tensor(x)).to(dtype)
    generator = torch.Generator().manual_seed(3)
    for most in (1, 2):
        units = torch.randint(-most, most + 1, right.shape, generator=generator)
        off = (right.view(torch.int16) + units.short()).view(dtype).double().numpy()
        assert fit_variant("gelu", {}, {"0": x}, off, TYPES[dtype]).name == ""
    few = right.double().numpy().copy()
    other = functional.gelu(torch.tensor(x), approximate="tanh").to(dtype).double().numpy()
    at = np.flatnonzero(few != other)[:3]
    few.reshape(-1)[at] = other.reshape(-1)[at]  # three elements that were rounded the other way, as they may be by chance
    assert fit_variant("gelu", {}, {"0": x}, few, TYPES[dtype]).name == ""


def test_values_that_are_flushed_to_zero_are_no_variant():
    tiny = X.double().numpy() * 1e-41
    assert fit_variant("mul", {}, {"0": tiny, "1": np.ones(64)}, 0 * tiny).name == ""


def test_a_number_may_be_the_operand_that_is_left():
    x = X.double().numpy()
    assert fit_variant("add", {"1": "1"}, {"0": x}, np.ones_like(x)).name == "only_second"
    assert fit_variant("mul", {"1": "0.5"}, {"0": x}, x).name == "only_first"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("normalise", "detail"),
    [
        (lambda x: functional.layer_norm(x, (64,)), "layer_norm"),
        (lambda x: functional.layer_norm(x, (64,), GAIN.to(x.dtype), B.to(x.dtype)), "layer_norm"),
        (lambda x: functional.rms_norm(x, (64,), eps=1e-6), "rms_norm"),
        (lambda x: functional.rms_norm(x, (64,), GAIN.to(x.dtype), eps=1e-6), "rms_norm"),
    ],
)
@pytest.mark.parametrize("place", ["first", "second"])
def test_a_norm_that_is_added_in_place_of_an_operand_is_found(normalise, detail, place, dtype):
    x, branch = (3 * X * (1 + torch.rand(4, 48, 1)) + 1).to(dtype), X.flip(0).to(dtype)
    given = {"0": x, "1": branch} if place == "first" else {"0": branch, "1": x}
    target = (normalise(x) + branch).double().numpy()
    narrow = None if dtype == torch.float32 else np.dtype(ml_dtypes.bfloat16)
    found = fit_variant("add", {}, {key: value.double().numpy() for key, value in given.items()}, target, narrow)
    assert (found.name, found.detail) == ("norm_added", f"{detail} of its {place}")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, branch: 0.5 * x + branch,
        lambda x, branch: x + 0.9 * branch,
        lambda x, branch: GAIN * x + branch,
        lambda x, branch: x.flip(1) + branch,
        lambda x, branch: (x + branch).clamp(max=2.0),
        lambda x, branch: (x + branch).bfloat16().float(),
        lambda x, branch: functional.layer_norm(x + branch, (64,)),
    ],
)
@pytest.mark.parametrize("is_normed", [False, True])
def test_other_wrong_sums_add_no_norm(wrong, is_normed):
    x = 3 * X * (1 + torch.rand(4, 48, 1)) + 1
    x, branch = functional.layer_norm(x, (64,), GAIN, B) if is_normed else x, X.flip(0)
    given = {"0": x.double().numpy(), "1": branch.double().numpy()}
    assert fit_variant("add", {}, given, wrong(x, branch).double().numpy()).name != "norm_added"


def test_what_is_not_known_has_no_answer():
    assert fit_variant("bessel_j0", {}, {"0": X.numpy()}, X.numpy()) is None
    assert fit_variant("relu", {}, {"0": X.double().numpy()}, X.double().relu().numpy()) is None
