"""Families of operators that fail in the same ways: matrix products, normalisations, activations and others."""

from __future__ import annotations

_FAMILIES: dict[str, frozenset[str]] = {
    "matmul": frozenset(
        "linear matmul rmatmul mm bmm mv addmm addmv addbmm baddbmm einsum tensordot bilinear dot inner outer "
        "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution".split()
    ),
    "attention": frozenset("scaled_dot_product_attention multi_head_attention_forward npu_fusion_attention".split()),
    "normalisation": frozenset(
        "layer_norm rms_norm group_norm batch_norm instance_norm normalize local_response_norm "
        "native_layer_norm native_group_norm native_batch_norm".split(),
    ),
    "softmax": frozenset("softmax log_softmax softmin gumbel_softmax".split()),
    "activation": frozenset(
        "sigmoid tanh gelu silu relu elu selu celu mish softplus softsign hardsigmoid hardswish hardtanh leaky_relu "
        "logsigmoid prelu relu6 erf exp expm1 log log1p sin cos sqrt rsqrt reciprocal pow".split()
    ),
    "masking": frozenset("add add_ masked_fill masked_fill_ where sub sub_".split()),
    "random": frozenset(
        "rand rand_like randn randn_like randint randint_like randperm normal normal_ uniform_ bernoulli bernoulli_ "
        "multinomial dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout exponential_ rrelu".split()
    ),
    "reduction": frozenset("sum mean var std prod cumsum cumprod logsumexp norm amax amin max min".split()),
}

_OF_CLASS = {
    "LayerNorm": "layer_norm",
    "GroupNorm": "group_norm",
    "BatchNorm1d": "batch_norm",
    "BatchNorm2d": "batch_norm",
    "Linear": "linear",
    "Conv1d": "conv1d",
    "Conv2d": "conv2d",
    "Conv3d": "conv3d",
    "Softmax": "softmax",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "GELU": "gelu",
    "SiLU": "silu",
    "ReLU": "relu",
    "Dropout": "dropout",
}


def find_family(operator: str) -> str:
    """Return the family of a canonical operator name; ``module`` for modules, ``other`` for the rest.

    >>> find_family("linear"), find_family("softmax"), find_family("")
    ('matmul', 'softmax', 'module')
    """
    if not operator:
        return "module"
    return next((name for name, members in _FAMILIES.items() if operator in members), "other")


_OF_ATEN = {  # with arguments in the same places
    "native_layer_norm": "layer_norm",
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    **{name: name for name in "mm bmm mv dot addmm baddbmm gelu silu sigmoid relu tanh exp log sqrt rsqrt".split()},
    **{name: name for name in "sin cos abs neg add sub mul div pow".split()},
}


def name_as_function(operator: str) -> str:
    """Return the torch function that an aten operator computes, where both take their arguments in the same places.

    >>> name_as_function("aten.native_layer_norm"), name_as_function("aten.embedding"), name_as_function("linear")
    ('layer_norm', 'aten.embedding', 'linear')
    """
    return _OF_ATEN.get(operator.removeprefix("aten."), operator) if operator.startswith("aten.") else operator


def operator_of_class(name: str) -> str:
    """Return the operator that a class of modules runs, for dumps without operators; ``""`` if that is not known.

    >>> operator_of_class("LayerNorm"), operator_of_class("LlamaRMSNorm"), operator_of_class("CLIPMLP")
    ('layer_norm', 'rms_norm', '')
    """
    if name.endswith("RMSNorm"):  # every model library has a class of its own
        return "rms_norm"
    return _OF_CLASS.get(name, "")
