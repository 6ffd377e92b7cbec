"""Each variant is found at the target's own inputs, in float32 and 16 bits, and none on a chip that rounds differently."""

import pytest
import torch
from subjects import explain
from torch.nn import functional

torch.manual_seed(7)
X, W, B = torch.randn(4, 48, 64), torch.randn(64, 64) / 8, torch.randn(64)
GAIN = torch.rand(64) + 0.5
POSITIONS, FREQUENCIES = torch.arange(3.0, 35.0)[:, None], torch.rand(16)
HEADS, MOVED = torch.randn(2, 3, 24, 8), torch.randn(2, 24, 3, 8).transpose(1, 2)
LABELS, LOGITS = torch.randint(0, 9, (24,)), torch.randn(24, 9)
SCORES, VALUES = torch.randn(2, 48, 48), torch.randn(2, 48, 48)
IMAGE, CHANNEL_GAIN = torch.randn(3, 8, 6, 6), torch.rand(8) + 0.5
TABLE, ROWS = torch.randn(80, 16), torch.arange(4, 40)
NORM = {"1": "(64,)", "4": "1e-05"}
BATCH = {"5": "True", "6": "0.1", "7": "1e-05"}


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


def batch_norm(x, mean, variance):
    return functional.batch_norm(x, None, None, training=True)


def over_one_less(x, *_):
    count = x.numel() // x.shape[1]
    return functional.batch_norm(x, None, None, training=True) * ((count - 1) / count) ** 0.5


NORMED, SHIFTED = {"0": X, "2": GAIN, "3": B}, {"0": X + 0.5, "2": GAIN}
LINEAR, ROWWISE = (X, W, B), {"dim": "-1"}
PLANTED = {  # variant: operator, arguments, inputs, right, wrong
    "gelu_tanh": ("gelu", {}, (X,), functional.gelu, gelu_by_tanh),
    "gelu_erf": ("gelu", {"approximate": "'tanh'"}, (X,), gelu_by_tanh, functional.gelu),
    "gelu_sigmoid": ("gelu", {}, (X,), functional.gelu, lambda x: x * torch.sigmoid(1.702 * x)),
    "straight_lines": ("silu", {}, (X,), functional.silu, functional.hardswish),
    "other_slope": ("prelu", {}, (IMAGE, CHANNEL_GAIN), functional.prelu, lambda x, w: functional.prelu(x, w.flip(0))),
    "no_weight": ("layer_norm", NORM, NORMED, norm, lambda x, w, b: norm(x, None, b)),
    "no_weight_and_bias": ("layer_norm", NORM, NORMED, norm, lambda x, w, b: norm(x, None, None)),
    "weight_plus_one": ("layer_norm", NORM, NORMED, norm, lambda x, w, b: norm(x, 1 + w, b)),
    "not_centred": ("layer_norm", NORM, SHIFTED, lambda x, w: norm(x, w, None), rms),
    "unbiased_variance": ("batch_norm", BATCH, (IMAGE[:1, :, :3, :3], CHANNEL_GAIN, CHANNEL_GAIN), batch_norm, over_one_less),
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
    "rows_shifted": ("embedding", {}, (ROWS, TABLE), functional.embedding, lambda i, t: t[i + 2]),
}
ROUNDED = {
    "inputs_in_bfloat16": ("cos", {}, (X * 40,), torch.cos, lambda x: x.bfloat16().float().cos()),
    "inputs_in_bfloat16 of a function without a formula": (
        "elu",
        {},
        (X,),
        functional.elu,
        lambda x: functional.elu(x.bfloat16().float()),
    ),
    "inputs_in_float16": ("sigmoid", {}, (X,), torch.sigmoid, lambda x: x.half().float().sigmoid().half().float()),
}


def find(operator, arguments, inputs, right, wrong, dtype=torch.float32):
    """Compute in float64, round to the type as a chip with exact operators does, and explain."""
    named = inputs if isinstance(inputs, dict) else {str(place): one for place, one in enumerate(inputs)}
    given = {path: one.to(dtype) if one.is_floating_point() else one for path, one in named.items()}
    wide = [one.double() if one.is_floating_point() else one for one in given.values()]
    return explain(operator, arguments, given, *[compute(*wide).to(dtype) for compute in (right, wrong)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", PLANTED)
def test_a_variant_is_found_and_right_results_have_none(name, dtype):
    operator, arguments, inputs, right, wrong = PLANTED[name]
    assert find(operator, arguments, inputs, right, wrong, dtype)["name"] == name  # also where bfloat16 rounds by more
    assert find(operator, arguments, inputs, right, right, dtype) is None


def read_as_if_it_lay_in_order(tensor):
    """The memory of a view, as a kernel reads it that takes no strides."""
    order = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))
    return tensor.permute(order).reshape(tensor.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_order_of_memory_is_found_for_either_operand_and_any_axes(dtype):
    """Heads are views of (batch, tokens, heads, features), and keys are transposed once more."""
    keys = MOVED.transpose(-1, -2)
    read = read_as_if_it_lay_in_order(keys).to(dtype).double()
    found = find("matmul", {}, (HEADS, keys), torch.matmul, lambda q, _: q @ read, dtype)
    assert (found["name"], found["value"]) == ("memory_order", "second")
    found = find("matmul", {}, (keys, HEADS.clone()), torch.matmul, lambda _, v: read @ v, dtype)
    assert (found["name"], found["value"]) == ("memory_order", "first")


@pytest.mark.parametrize(
    ("left_out", "text"),
    [([0, 1], "the first 2 of 48"), ([46, 47], "the last 2 of 48"), ([7, 8, 9], "8 to 10 of 48"), ([3, 30], "2 of 48")],
)
@pytest.mark.parametrize("operator", ["matmul", "einsum"])
def test_the_gradient_of_fewer_rows_says_which(left_out, text, operator):
    """Also as an equation, as which the gradient of a Linear layer's weight is computed again."""
    kept = [row for row in range(48) if row not in left_out]
    if operator == "matmul":
        given, arguments = {"0": X[0].T, "1": X[1]}, {}
    else:
        given, arguments = {"1": X[:1], "2": X[1:2]}, {"0": "'abo,abi->oi'"}
    found = find(operator, arguments, given, lambda *_: X[0].T @ X[1], lambda *_: X[0].T[:, kept] @ X[1][kept])
    assert found["share"] > 0.999
    assert found["name"].endswith("terms_left_out")
    assert found["value"] in {text, ""}


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

    found = find(operator, {}, factors, compute, shifted)
    assert (found["name"], found["value"], found["share"]) == ("positions_shifted", "by 3", pytest.approx(1.0))


def test_a_loss_over_fewer_tokens_is_told_from_one_that_is_off_by_something_else():
    def loss(kept=slice(None), factor=1.0):
        return lambda scores, labels: functional.cross_entropy(scores[kept], labels[kept]) * factor

    given = ("cross_entropy", {}, (LOGITS, LABELS), functional.cross_entropy)
    assert find(*given, loss(slice(None, -3)))["value"] == "the last 3 of 24"
    assert find(*given, loss(slice(2, None)))["value"] == "the first 2 of 24"
    for factor in (1.01, 0.97, 0.9, 1.1, 1 + 2**-9, 1 - 2**-12):
        assert find(*given, loss(factor=factor)) is None


@pytest.mark.parametrize("shift", [-4, -3, -2, -1, 1, 2, 3, 4])
def test_rows_of_a_table_are_found_up_to_four_away(shift):
    found = find("embedding", {}, (ROWS, TABLE), functional.embedding, lambda i, t: t[i + shift])
    assert (found["name"], found["share"], found["value"]) == ("rows_shifted", 1.0, f"by {shift}")


def test_what_is_read_beyond_the_end_of_a_table_is_no_objection():
    every = torch.arange(len(TABLE))
    found = find("embedding", {}, (every, TABLE), functional.embedding, lambda i, t: t[(i + 2) % len(t)])
    assert (found["name"], found["share"], found["value"]) == ("rows_shifted", 1.0, "by 2")
    assert find("embedding", {}, (every, TABLE), functional.embedding, lambda i, t: t[i.flip(0)]) is None


def test_one_row_that_all_read_is_no_shift():
    """A table of two rows, as of token types: where all read the first, the second was not counted from another number."""
    types = torch.tensor([0, 0, 1, 1, 1, 0, 1])
    assert find("embedding", {}, (types, TABLE[:2]), functional.embedding, lambda i, t: t[i * 0]) is None
    found = find("embedding", {}, (torch.tensor([5]), TABLE), functional.embedding, lambda i, t: t[i + 1])
    assert (found["name"], found["value"]) == ("rows_shifted", "by 1")


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_inputs_are_found_in_float32(name):
    operator, arguments, inputs, right, wrong = ROUNDED[name]
    assert find(operator, arguments, inputs, right, wrong)["name"] == name.partition(" ")[0]


def test_another_chip_has_no_variant():
    """Products that add up in blocks, and a layer norm in one pass, in float32."""
    x = X.reshape(-1, 64)
    product = torch.zeros(192, 64)
    for at in range(56, -1, -8):
        product += x[:, at : at + 8] @ W[:, at : at + 8].T
    assert explain("linear", {}, (x, W), x @ W.T, product) is None
    mean = x.mean(1, keepdim=True)
    one_pass = (x - mean) / ((x * x).mean(1, keepdim=True) - mean * mean + 1e-5).sqrt()
    assert explain("layer_norm", NORM, (x,), functional.layer_norm(x, (64,)), one_pass) is None
    narrow = x.bfloat16(), W.bfloat16()
    assert explain("linear", {}, narrow, narrow[0] @ narrow[1].T, product.bfloat16()) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_function_that_is_off_by_units_of_16_bits_is_no_variant(dtype):
    x = (X * 2).to(dtype)
    right = functional.gelu(x.double()).to(dtype)
    generator = torch.Generator().manual_seed(3)
    for most in (1, 2):
        units = torch.randint(-most, most + 1, right.shape, generator=generator)
        off = (right.view(torch.int16) + units.short()).view(dtype)
        assert explain("gelu", {}, (x,), right, off) is None
    few, other = right.clone(), gelu_by_tanh(x.double()).to(dtype)
    at = (few != other).reshape(-1).nonzero()[:3, 0]
    few.view(-1)[at] = other.view(-1)[at]  # three elements that were rounded the other way, as they may be by chance
    assert explain("gelu", {}, (x,), right, few) is None


def test_values_that_are_flushed_to_zero_are_no_variant():
    tiny = X * 1e-41
    assert explain("mul", {}, (tiny, torch.ones(64)), tiny, 0 * tiny) is None


def test_a_number_may_be_the_operand_that_is_left():
    assert explain("add", {"1": "1"}, (X,), X + 1, torch.ones_like(X))["name"] == "only_second"
    assert explain("mul", {"1": "0.5"}, (X,), X / 2, X.clone())["name"] == "only_first"


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
    given = (x, branch) if place == "first" else (branch, x)
    found = explain("add", {}, given, x + branch, normalise(x) + branch)
    assert (found["name"], found["value"]) == ("norm_added", f"{detail} of its {place}")


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
        lambda _, branch: branch.clone(),
    ],
)
@pytest.mark.parametrize("is_normed", [False, True])
def test_other_wrong_sums_add_no_norm(wrong, is_normed):
    x = 3 * X * (1 + torch.rand(4, 48, 1)) + 1
    x, branch = functional.layer_norm(x, (64,), GAIN, B) if is_normed else x, X.flip(0)
    found = explain("add", {}, (x, branch), x + branch, wrong(x, branch))
    assert found is None or found["name"] != "norm_added"


def test_a_sum_with_an_infinite_mask_is_explained_where_it_is_a_number():
    mask = X[0].flip(0).clone()
    mask[:, 40:] = -torch.inf
    right, wrong = 3 * X + mask, mask.expand(4, 48, 64).clone()
    assert explain("add", {}, (3 * X, mask), right, wrong)["name"] == "only_second"
