"""Written-out operators: against torch's own where it has them, else against the published formula element by element."""

import inspect
import math

import pytest
import torch
from torch.nn import functional

from precflow.agent.replay.calls import CannotCompute
from precflow.agent.replay.compositions import COMPOSITIONS


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


Q, K, V = normal(2, 4, 5, 8, seed=1), normal(2, 4, 7, 8, seed=2), normal(2, 4, 7, 6, seed=3)
SEEN = torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(4)) > 0.3


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "options",
    [{}, {"is_causal": True}, {"scale": 0.2}, {"attn_mask": SEEN}, {"attn_mask": normal(5, 7)}],
    ids=["plain", "causal", "scale", "seen", "added"],
)
def test_attention_is_that_of_torch(options):
    assert_close(
        COMPOSITIONS["scaled_dot_product_attention"](Q, K, V, **options),
        functional.scaled_dot_product_attention(Q, K, V, **options),
    )


def test_attention_of_grouped_queries_is_that_of_repeated_keys():
    keys, values = K[:, :2], V[:, :2]
    expected = functional.scaled_dot_product_attention(Q, keys.repeat_interleave(2, 1), values.repeat_interleave(2, 1))
    assert_close(COMPOSITIONS["scaled_dot_product_attention"](Q, keys, values, enable_gqa=True), expected)


def test_a_query_that_sees_nothing_gets_0():
    seen = torch.ones(5, 7, dtype=torch.bool)
    seen[2] = False
    found = COMPOSITIONS["scaled_dot_product_attention"](Q, K, V, attn_mask=seen)
    assert not found.isnan().any()
    assert not found[:, :, 2].any()


@pytest.mark.parametrize("heads", [4, 2])
def test_the_backward_of_attention_is_that_of_autograd(heads):
    q, k, v = (each.clone().requires_grad_() for each in (Q, normal(2, heads, 5, 8, seed=5), normal(2, heads, 5, 8, seed=6)))
    repeated = [each.repeat_interleave(4 // heads, 1) for each in (k, v)]
    output = functional.scaled_dot_product_attention(q, *repeated, is_causal=True)
    gradient = normal(*output.shape, seed=7)
    output.backward(gradient)
    plain = [each.detach() for each in (q, k, v)]
    out, total = COMPOSITIONS["scaled_dot_product_flash_attention"](*plain, is_causal=True)
    found = COMPOSITIONS["scaled_dot_product_flash_attention_backward"](gradient, *plain, out, total, is_causal=True)
    for each, expected in zip(found, (q.grad, k.grad, v.grad), strict=True):
        assert_close(each, expected)


KERNELS = [name for name in COMPOSITIONS if name.startswith("scaled_dot_product_") and not name.endswith("product_attention")]


@pytest.mark.parametrize("name", KERNELS)
def test_fused_kernels_take_their_arguments_in_the_order_of_torch(name):
    packet = getattr(torch.ops.aten, f"_{name}", None)
    if packet is None:
        pytest.skip("this torch does not have it")
    declared = [argument.name for argument in packet.default._schema.arguments]
    assert list(inspect.signature(COMPOSITIONS[name]).parameters) == declared


def test_a_backward_of_cudnn_without_a_mask_is_not_causal():
    q, k, v = (each.clone().requires_grad_() for each in (Q, K, V))
    output = functional.scaled_dot_product_attention(q, k, v)
    gradient = normal(*output.shape, seed=7)
    output.backward(gradient)
    _, total = COMPOSITIONS["scaled_dot_product_cudnn_attention"](Q, K, V, None, compute_log_sumexp=True)
    lengths = (None, None, Q.shape[-2], K.shape[-2])
    positional = (gradient, Q, K, V, output.detach(), total, None, None, None, *lengths, 0.0, False)
    found = COMPOSITIONS["scaled_dot_product_cudnn_attention_backward"](*positional)
    for each, expected in zip(found, (q.grad, k.grad, v.grad), strict=True):
        assert_close(each, expected)


def test_dropout_is_refused():
    with pytest.raises(CannotCompute, match="drops values at random"):
        COMPOSITIONS["scaled_dot_product_attention"](Q, K, V, dropout_p=0.1)
    with pytest.raises(CannotCompute, match="drops values at random"):
        COMPOSITIONS["npu_fusion_attention"](Q, Q, Q, 4, "BNSD", keep_prob=0.9)


def to_layout(tensor, layout):
    """Return ``[batch, heads, length, width]`` in a layout of CANN."""
    batch, heads, length, width = tensor.shape
    if layout == "BSND":
        return tensor.transpose(1, 2)
    if layout == "BSH":
        return tensor.transpose(1, 2).reshape(batch, length, heads * width)
    return tensor.permute(2, 0, 1, 3).reshape(length, batch, heads * width) if layout == "SBH" else tensor


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "SBH"])
@pytest.mark.parametrize("heads", [4, 2])
def test_fusion_attention_in_every_layout(layout, heads):
    k, v = normal(2, heads, 7, 8, seed=8), normal(2, heads, 7, 8, seed=9)
    hidden = ~SEEN
    expected = functional.scaled_dot_product_attention(
        Q, k.repeat_interleave(4 // heads, 1), v.repeat_interleave(4 // heads, 1), attn_mask=SEEN, scale=0.3
    )
    given = [to_layout(each, layout) for each in (Q, k, v)]
    (found,) = COMPOSITIONS["npu_fusion_attention"](*given, 4, layout, atten_mask=hidden, scale=0.3)
    assert_close(found, to_layout(expected, layout))


def sees(mode, query, key, length, width, before, behind):
    """Say by the reference manual which keys a query sees."""
    shift = width - length if mode in (3, 4) else 0
    if mode == 2:
        return key <= query
    if mode == 3:
        return key <= query + shift
    return query + shift - before <= key <= query + shift + behind


@pytest.mark.parametrize("mode", [0, 2, 3, 4])
def test_sparse_modes_of_fusion_attention(mode):
    length, width, before, behind = 5, 7, 2, 1
    seen = torch.tensor([[sees(mode, q, k, length, width, before, behind) for k in range(width)] for q in range(length)])
    k, v = normal(2, 4, width, 8, seed=8), normal(2, 4, width, 8, seed=9)
    (found,) = COMPOSITIONS["npu_fusion_attention"](
        Q, k, v, 4, "BNSD", sparse_mode=mode, pre_tockens=before, next_tockens=behind, scale=0.3
    )
    assert_close(found, functional.scaled_dot_product_attention(Q, k, v, attn_mask=seen, scale=0.3))


def test_rms_norms():
    x, y, gamma = normal(3, 6), normal(3, 6, seed=1), normal(6, seed=2)
    expected = functional.rms_norm(x, (6,), gamma, 1e-6)
    assert_close(COMPOSITIONS["npu_rms_norm"](x, gamma)[0], expected)
    assert_close(COMPOSITIONS["npu_rms_norm"](x, gamma)[1].squeeze(), 1 / (x.square().mean(-1) + 1e-6).sqrt())
    assert_close(COMPOSITIONS["rms_norm"](x, (6,), gamma, 1e-6), expected)
    normalized, _, total = COMPOSITIONS["npu_add_rms_norm"](x, y, gamma, 1e-6)
    assert_close(total, x + y)
    assert_close(normalized, functional.rms_norm(x + y, (6,), gamma, 1e-6))


def test_rotations_element_by_element():
    x, cos, sin = normal(2, 3, 4, 6), normal(1, 1, 4, 6, seed=1), normal(1, 1, 4, 6, seed=2)
    half, pairs = (COMPOSITIONS["npu_rotary_mul"](x, cos, sin, mode) for mode in ("half", "interleave"))
    for place in range(6):
        partner = -x[..., place + 3] if place < 3 else x[..., place - 3]
        assert_close(half[..., place], x[..., place] * cos[..., place] + partner * sin[..., place])
        partner = -x[..., place + 1] if place % 2 == 0 else x[..., place - 1]
        assert_close(pairs[..., place], x[..., place] * cos[..., place] + partner * sin[..., place])
    with pytest.raises(CannotCompute, match="rotary_mode"):
        COMPOSITIONS["npu_rotary_mul"](x, cos, sin, "quarter")


def test_activations_element_by_element():
    x = normal(3, 8)
    left, right = x[:, :4], x[:, 4:]
    assert_close(COMPOSITIONS["npu_swiglu"](x), left / (1 + (-left).exp()) * right)
    assert_close(COMPOSITIONS["npu_fast_gelu"](x), x / (1 + (-1.702 * x).exp()))
    tanh = 0.5 * right * (1 + torch.tanh(math.sqrt(2 / math.pi) * (right + 0.044715 * right**3)))
    assert_close(COMPOSITIONS["npu_geglu"](x)[0], left * tanh)


def test_scaled_masked_softmax():
    x, mask = normal(1, 2, 4, 4), torch.ones(4, 4).triu(1).bool()
    expected = (x * 0.5).masked_fill(mask, -10000.0).softmax(-1)
    assert_close(COMPOSITIONS["npu_scaled_masked_softmax"](x, mask, 0.5), expected)
    assert_close(COMPOSITIONS["npu_scaled_masked_softmax"](x, mask, 0.5, fixed_triu_mask=True), expected)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_layer_of_onednn_is_an_lstm(reverse):
    x, hidden, cell = normal(5, 2, 3), normal(1, 2, 4, seed=1), normal(1, 2, 4, seed=2)
    weights = [normal(16, 3, seed=3), normal(16, 4, seed=4), normal(16, seed=5), normal(16, seed=6)]
    options = {
        "has_biases": True,
        "num_layers": 1,
        "dropout": 0.0,
        "train": False,
        "bidirectional": False,
        "batch_first": False,
    }
    expected, last, end = torch.lstm(x.flip(0) if reverse else x, [hidden, cell], weights, **options)
    found = COMPOSITIONS["mkldnn_rnn_layer"](x, *weights, hidden, cell, reverse)
    assert_close(found[0], expected.flip(0) if reverse else expected)
    assert_close(found[1], last)
    assert_close(found[2], end)


def test_fused_cells_are_cells():
    gates, inner, cell, bias = normal(2, 16), normal(2, 16, seed=1), normal(2, 4, seed=2), normal(16, seed=3)
    one, identity = torch.ones(2, 1, dtype=torch.float64), torch.zeros(16, 1, dtype=torch.float64)
    expected = torch.lstm_cell(one * 0, [torch.zeros(2, 4).double(), cell], identity, torch.zeros(16, 4).double(), bias, None)
    found = COMPOSITIONS["thnn_fused_lstm_cell"](gates * 0, inner * 0, cell, bias)
    assert_close(found[0], expected[0])
    assert_close(found[1], expected[1])
    weight = normal(12, 4, seed=4)
    hidden, x = normal(2, 4, seed=5), normal(2, 4, seed=6)
    assert_close(
        COMPOSITIONS["thnn_fused_gru_cell"](x @ weight.t(), hidden @ weight.t(), hidden)[0],
        torch.gru_cell(x, hidden, weight, weight),
    )
