"""Fused operators, written out: what each computes by its published definition, in whatever type its tensors have.

They are called with float64 tensors, where torch's own kernel has no such type, belongs to another device, or is the very thing
that is looked at. Parameters have the names and places of the operator that is replaced, outputs its order; an output that a
function does not return is not evaluated. ``CannotCompute`` is raised for an option that is not written out here.

Sources: torch's documentation and ``native_functions.yaml``; for ``npu_*`` the API reference of the Ascend Extension for
PyTorch.
"""

from __future__ import annotations

import inspect
import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch.nn import functional

from precflow.agent.replay.calls import CannotCompute

Tensor = torch.Tensor
MaybeTensor = Optional[Tensor]

COMPOSITIONS: Dict[str, Callable[..., Any]] = {}


def _computes(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the definition of operators with these canonical names."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        """Enter the function under each name, and leave it as it is."""
        COMPOSITIONS.update(dict.fromkeys(names, function))
        return function

    return register


# Attention


class _Attention:
    """Attention of queries ``[..., L, E]`` to keys and values ``[..., S, E]``, forward and backward.

    Args:
        query: Queries.
        key: Keys; may have fewer heads than the queries, each for several of theirs (grouped queries).
        value: Values.
        mask: Added to the scores, or boolean: true where a place takes part.
        is_causal: A query sees keys up to its own place, both counted from the start.
        scale: Factor of the scores; ``None`` is ``1 / sqrt(E)``.
    """

    def __init__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: MaybeTensor, is_causal: bool, scale: Optional[float]
    ) -> None:
        groups = query.shape[-3] // key.shape[-3] if query.dim() > 2 and key.shape[-3] else 1
        self.query = query
        self.key = key.repeat_interleave(groups, -3) if groups > 1 else key
        self.value = value.repeat_interleave(groups, -3) if groups > 1 else value
        self._groups = groups
        self._scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        scores = (query @ self.key.transpose(-1, -2)) * self._scale
        if is_causal:
            scores = scores.masked_fill(_lower(scores).logical_not(), -math.inf)
        if mask is not None and mask.dtype is torch.bool:
            scores = scores.masked_fill(mask.logical_not(), -math.inf)
        elif mask is not None:
            scores = scores + mask[..., : scores.shape[-1]]
        self._scores = scores

    def forward(self) -> Tuple[Tensor, Tensor]:
        """Return the output and the logsumexp of the scores; a query that sees nothing gets 0."""
        total = torch.logsumexp(self._scores, -1)
        weights = (self._scores - torch.where(total.isfinite(), total, 0.0).unsqueeze(-1)).exp()
        return weights @ self.value, total

    def backward(self, gradient: Tensor, output: Tensor, total: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of queries, keys and values, from what the forward pass has kept."""
        total = total[..., : self._scores.shape[-2]]  # some kernels pad it
        weights = (self._scores - torch.where(total.isfinite(), total, 0.0).unsqueeze(-1)).exp()
        inner = (gradient * output).sum(-1, keepdim=True)
        of_scores = weights * (gradient @ self.value.transpose(-1, -2) - inner) * self._scale
        of_key, of_value = of_scores.transpose(-1, -2) @ self.query, weights.transpose(-1, -2) @ gradient
        return of_scores @ self.key, self._join_groups(of_key), self._join_groups(of_value)

    def _join_groups(self, gradient: Tensor) -> Tensor:
        if self._groups == 1:
            return gradient
        shape = (*gradient.shape[:-3], gradient.shape[-3] // self._groups, self._groups, *gradient.shape[-2:])
        return gradient.reshape(shape).sum(-3)


def _lower(scores: Tensor) -> Tensor:
    return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()


def _refuse_dropout(share: float) -> None:
    if share:
        raise CannotCompute("it drops values at random, and the draws were not recorded")


@_computes("scaled_dot_product_attention")
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: MaybeTensor = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,  # the number of heads says it
) -> Tensor:
    """``torch.nn.functional.scaled_dot_product_attention``."""
    _refuse_dropout(dropout_p)
    return _Attention(query, key, value, attn_mask, is_causal, scale).forward()[0]


class _Kernel:
    """A fused kernel of attention: the same computation each time, but every kernel has its parameters in an order of its own.

    Args:
        parameters: Their names in the order of the kernel's schema; ``attn_bias`` is what others call ``attn_mask``. A kernel
            with ``logsumexp`` among them is a backward one.
    """

    def __init__(self, parameters: str) -> None:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in parameters.split()])
        self._is_backward = "logsumexp" in self.__signature__.parameters

    def __call__(self, *positional: Any, **named: Any) -> Tuple[Tensor, ...]:
        """Compute it: output and logsumexp, or the gradients of queries, keys and values."""
        given = self.__signature__.bind_partial(*positional, **named).arguments
        _refuse_dropout(given.get("dropout_p", 0.0))
        mask = given.get("attn_mask", given.get("attn_bias"))
        causal, scale = given.get("is_causal", False), given.get("scale")
        computed = _Attention(given["query"], given["key"], given["value"], mask, causal, scale)
        if self._is_backward:
            gradient = given["grad_out_"] if "grad_out_" in given else given["grad_out"]
            return computed.backward(gradient, given["out"], given["logsumexp"])
        output, total = computed.forward()
        return (output, total) if given.get("compute_log_sumexp", True) else (output,)


_KERNELS = {
    "flash_attention_for_cpu": "query key value dropout_p is_causal attn_mask scale",
    "flash_attention_for_cpu_backward": "grad_out query key value out logsumexp dropout_p is_causal attn_mask scale",
    "flash_attention": "query key value dropout_p is_causal return_debug_mask scale",
    "flash_attention_backward": "grad_out query key value out logsumexp cum_seq_q cum_seq_k max_q max_k dropout_p is_causal "
    "philox_seed philox_offset scale",
    "efficient_attention": "query key value attn_bias compute_log_sumexp dropout_p is_causal scale",
    "efficient_attention_backward": "grad_out_ query key value attn_bias out logsumexp philox_seed philox_offset dropout_p "
    "grad_input_mask is_causal scale",
    "cudnn_attention": "query key value attn_bias compute_log_sumexp dropout_p is_causal return_debug_mask scale",
    "cudnn_attention_backward": "grad_out query key value out logsumexp philox_seed philox_offset attn_bias cum_seq_q "
    "cum_seq_k max_q max_k dropout_p is_causal scale",
    "fused_attention_overrideable": "query key value attn_bias dropout_p is_causal return_debug_mask scale",
}
COMPOSITIONS.update({"scaled_dot_product_%s" % name: _Kernel(parameters) for name, parameters in _KERNELS.items()})


_OPEN_END = 2147483647  # npu_fusion_attention's default for both ends of the band


@_computes("npu_fusion_attention", "npu_fusion_attention_v2")
def npu_fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: MaybeTensor = None,
    padding_mask: MaybeTensor = None,
    atten_mask: MaybeTensor = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = _OPEN_END,
    next_tockens: int = _OPEN_END,
    inner_precise: int = 0,  # changes the kernel, not what it computes
    prefix: Any = None,
    actual_seq_qlen: Any = None,
    actual_seq_kvlen: Any = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
) -> Tuple[Tensor]:
    """``torch_npu.npu_fusion_attention``, the output alone; a true place of the mask is left out."""
    _refuse_dropout(1.0 - keep_prob)
    if prefix is not None or padding_mask is not None or actual_seq_qlen or actual_seq_kvlen:
        raise CannotCompute("npu_fusion_attention with prefix, padding_mask or sequence lengths is not written out")
    heads = [_to_heads(tensor, input_layout, head_num, query) for tensor in (query, key, value)]
    length, width = heads[0].shape[-2], heads[1].shape[-2]
    bias = torch.zeros((length, width), dtype=query.dtype)
    hidden = _hidden_places(atten_mask, sparse_mode, length, width, (pre_tockens, next_tockens))
    if hidden is not None:
        bias = bias.masked_fill(hidden, -math.inf)
    if pse is not None:
        bias = bias + pse * scale  # the kernel's default: softmax((q k + pse) * scale)
    output, _ = _Attention(heads[0], heads[1], heads[2], bias, is_causal=False, scale=scale).forward()
    return (_from_heads(output, input_layout),)


def _to_heads(tensor: Tensor, layout: str, heads: int, query: Tensor) -> Tensor:
    """Return ``[batch, heads, length, width]`` of any layout; keys and values may have fewer heads than ``query``."""
    if layout == "BNSD":
        return tensor
    if layout == "BSND":
        return tensor.transpose(1, 2)
    if layout not in ("BSH", "SBH"):
        raise CannotCompute("input_layout %s is not written out" % layout)
    width = query.shape[-1] // heads
    split = tensor.reshape(*tensor.shape[:2], tensor.shape[-1] // width, width)
    return split.permute(0, 2, 1, 3) if layout == "BSH" else split.permute(1, 2, 0, 3)


def _from_heads(tensor: Tensor, layout: str) -> Tensor:
    if layout == "BNSD":
        return tensor
    if layout == "BSND":
        return tensor.transpose(1, 2)
    moved = tensor.permute(0, 2, 1, 3) if layout == "BSH" else tensor.permute(2, 0, 1, 3)
    return moved.reshape(*moved.shape[:2], -1)


def _hidden_places(mask: MaybeTensor, mode: int, length: int, width: int, band: Tuple[int, int]) -> MaybeTensor:
    """Return where a query does not see a key, true there; ``None`` if every query sees every key.

    Modes: 0 the mask, and the band of ``pre_tockens`` to ``next_tockens`` where those are set; 1 the mask alone; 2 causal from
    the upper left corner; 3 causal from the lower right corner; 4 a band from the lower right corner.
    """
    places = torch.arange(width).unsqueeze(0) - torch.arange(length).unsqueeze(1)  # key minus query
    if mode == 1 or (mode == 0 and min(band) >= max(length, width)):
        return None if mask is None else mask.to(torch.bool)
    if mode == 0:
        outside = (places < -band[0]) | (places > band[1])
        return outside if mask is None else outside | mask.to(torch.bool)
    if mode == 2:
        return places > 0
    if mode == 3:
        return places > width - length
    if mode == 4:
        shifted = places - (width - length)
        return (shifted < -band[0]) | (shifted > band[1])
    raise CannotCompute("sparse_mode %d is not written out" % mode)


# Normalization


def _rms_norm(values: Tensor, axes: int, weight: MaybeTensor, epsilon: Optional[float]) -> Tuple[Tensor, Tensor]:
    added = torch.finfo(torch.float32).eps if epsilon is None else epsilon
    inverse = (values.square().mean(tuple(range(-axes, 0)), keepdim=True) + added).rsqrt()
    return values * inverse if weight is None else values * inverse * weight, inverse


@_computes("rms_norm")
def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: MaybeTensor = None,
    eps: Optional[float] = None,
) -> Tensor:
    """``torch.nn.functional.rms_norm``; without an ``eps`` it is float32's."""
    return _rms_norm(input, len(normalized_shape), weight, eps)[0]


@_computes("fused_rms_norm")
def _fused_rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: MaybeTensor = None,
    eps: Optional[float] = None,
) -> Tuple[Tensor, Tensor]:
    return _rms_norm(input, len(normalized_shape), weight, eps)


@_computes("npu_rms_norm")
def npu_rms_norm(self: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> Tuple[Tensor, Tensor]:
    """``torch_npu.npu_rms_norm``: the normalized values, and the inverse of the root mean square."""
    return _rms_norm(self, gamma.dim(), gamma, epsilon)


@_computes("npu_add_rms_norm")
def npu_add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> Tuple[Tensor, Tensor, Tensor]:
    """``torch_npu.npu_add_rms_norm``: the normalized sum, the inverse of its root mean square, the sum."""
    total = x1 + x2
    return (*_rms_norm(total, gamma.dim(), gamma, epsilon), total)


@_computes("npu_layer_norm_eval")
def _npu_layer_norm_eval(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: MaybeTensor = None,
    bias: MaybeTensor = None,
    eps: float = 1e-5,
) -> Tensor:
    return functional.layer_norm(input, list(normalized_shape), weight, bias, eps)


@_computes("npu_add_layer_norm")
def _npu_add_layer_norm(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    beta: Tensor,
    epsilon: float = 1e-5,
    additional_output: bool = False,
) -> Tuple[MaybeTensor, ...]:
    total = x1 + x2
    output, mean, inverse = torch.native_layer_norm(total, list(gamma.shape), gamma, beta, epsilon)
    return output, mean, inverse, total if additional_output else None


@_computes("npu_group_norm_silu")
def _npu_group_norm_silu(
    input: Tensor,
    weight: MaybeTensor,
    bias: MaybeTensor,
    group: int,
    eps: float = 1e-5,
) -> Tuple[Tensor]:
    return (functional.silu(functional.group_norm(input, group, weight, bias, eps)),)


@_computes("cudnn_batch_norm", "miopen_batch_norm")
def _cudnn_batch_norm(
    input: Tensor,
    weight: Tensor,
    bias: MaybeTensor,
    running_mean: MaybeTensor,
    running_var: MaybeTensor,
    training: bool,
    exponential_average_factor: float,
    epsilon: float,
) -> Any:
    return torch.native_batch_norm(
        input, weight, bias, running_mean, running_var, training, exponential_average_factor, epsilon
    )


# Rotary embeddings


def _rotate(values: Tensor, *, interleaved: bool) -> Tensor:
    """Return the second vector of the rotation: halves ``(-b, a)``, or neighbours ``(-x1, x0, -x3, x2, ...)``."""
    if interleaved:
        return torch.stack([-values[..., 1::2], values[..., ::2]], -1).flatten(-2)
    half = values.shape[-1] // 2
    return torch.cat([-values[..., half:], values[..., :half]], -1)


@_computes("npu_rotary_mul")
def npu_rotary_mul(self: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half") -> Tensor:
    """``torch_npu.npu_rotary_mul``: ``x * cos + rotated(x) * sin``."""
    if rotary_mode not in ("half", "interleave"):
        raise CannotCompute("rotary_mode %s is not written out" % rotary_mode)
    return self * r1 + _rotate(self, interleaved=rotary_mode == "interleave") * r2


@_computes("npu_apply_rotary_pos_emb")
def _npu_apply_rotary_pos_emb(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, layout: str = "BSH", rotary_mode: str = "half"
) -> Tuple[Tensor, Tensor]:
    if layout not in ("BSH", "BSND"):
        raise CannotCompute("layout %s is not written out" % layout)
    return npu_rotary_mul(query, cos, sin, rotary_mode), npu_rotary_mul(key, cos, sin, rotary_mode)


# Activations


@_computes("npu_swiglu")
def npu_swiglu(self: Tensor, dim: int = -1) -> Tensor:
    """``torch_npu.npu_swiglu``: ``silu(first half) * second half``."""
    first, second = self.chunk(2, dim)
    return functional.silu(first) * second


@_computes("npu_geglu")
def _npu_geglu(self: Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False) -> Tuple[Tensor, Tensor]:
    left, right = self.chunk(2, dim)
    active, other = (left, right) if activate_left else (right, left)
    activated = functional.gelu(active, approximate="tanh" if approximate else "none")
    return other * activated, activated


@_computes("npu_gelu")
def _npu_gelu(self: Tensor, approximate: str = "none") -> Tensor:
    return functional.gelu(self, approximate=approximate)


@_computes("npu_fast_gelu", "fast_gelu")
def _npu_fast_gelu(self: Tensor) -> Tensor:
    return self * torch.sigmoid(1.702 * self)


@_computes("npu_silu", "npu_silu_")
def _npu_silu(self: Tensor) -> Tensor:
    return functional.silu(self)


@_computes("npu_mish")
def _npu_mish(self: Tensor) -> Tensor:
    return functional.mish(self)


@_computes("npu_scaled_masked_softmax")
def npu_scaled_masked_softmax(
    x: Tensor,
    mask: Tensor,
    scale: float = 1.0,
    fixed_triu_mask: bool = False,
) -> Tensor:
    """``torch_npu.npu_scaled_masked_softmax``: true places of the mask count as -10000."""
    hidden = _lower(x).logical_not() if fixed_triu_mask else mask.to(torch.bool)
    return (x * scale).masked_fill(hidden, -10000.0).softmax(-1)


@_computes("npu_linear")
def _npu_linear(input: Tensor, weight: Tensor, bias: MaybeTensor = None) -> Tensor:
    return functional.linear(input, weight, bias)


@_computes("npu_bmmV2")
def _npu_bmm(self: Tensor, mat2: Tensor, output_sizes: Sequence[int] = ()) -> Tensor:
    product = torch.matmul(self, mat2)
    return product.reshape(list(output_sizes)) if output_sizes else product


# Recurrent cells


def _lstm_cell(gates: Tensor, cell: Tensor) -> Tuple[Tensor, Tensor]:
    """Return hidden state and cell after one step; gates are input, forget, cell, output, side by side."""
    first, forget, candidate, last = gates.chunk(4, -1)
    after = forget.sigmoid() * cell + first.sigmoid() * candidate.tanh()
    return last.sigmoid() * after.tanh(), after


@_computes("thnn_fused_lstm_cell")
def _fused_lstm_cell(
    input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, input_bias: MaybeTensor = None, hidden_bias: MaybeTensor = None
) -> Tuple[Tensor, Tensor]:
    biases = [bias for bias in (input_bias, hidden_bias) if bias is not None]
    return _lstm_cell(input_gates + hidden_gates + sum(biases), cx)


@_computes("thnn_fused_gru_cell")
def _fused_gru_cell(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, input_bias: MaybeTensor = None, hidden_bias: MaybeTensor = None
) -> Tuple[Tensor]:
    given = (input_gates if input_bias is None else input_gates + input_bias).chunk(3, -1)
    hidden = (hidden_gates if hidden_bias is None else hidden_gates + hidden_bias).chunk(3, -1)
    reset, update = (given[0] + hidden[0]).sigmoid(), (given[1] + hidden[1]).sigmoid()
    candidate = (given[2] + reset * hidden[2]).tanh()
    return ((1 - update) * candidate + update * hx,)


_LSTM_MODE = 2  # of cuDNN's and oneDNN's RNN operators


@_computes("mkldnn_rnn_layer")
def _mkldnn_rnn_layer(
    input: Tensor,
    weight0: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    weight3: Tensor,
    hx_: Tensor,
    cx_: Tensor,
    reverse: bool,
    batch_sizes: Sequence[int] = (),
    mode: int = _LSTM_MODE,
    hidden_size: int = 0,  # the weights say it
    num_layers: int = 1,  # of one layer each
    has_biases: bool = True,
    bidirectional: bool = False,  # each direction is a call of its own
    batch_first: bool = False,  # the input is transposed already
    train: bool = False,
) -> Tuple[Tensor, Tensor, Tensor]:
    if mode != _LSTM_MODE or batch_sizes:
        raise CannotCompute("only the LSTM form of mkldnn_rnn_layer without packed sequences is written out")
    steps = list(input.unbind(0))
    hidden, cell = hx_.reshape(-1, hx_.shape[-1]), cx_.reshape(-1, cx_.shape[-1])
    outputs: List[Tensor] = []
    for step in reversed(steps) if reverse else steps:
        gates = step @ weight0.t() + hidden @ weight1.t()
        hidden, cell = _lstm_cell(gates + weight2 + weight3 if has_biases else gates, cell)
        outputs.append(hidden)
    if reverse:
        outputs.reverse()
    return torch.stack(outputs), hidden.reshape(hx_.shape), cell.reshape(cx_.shape)
