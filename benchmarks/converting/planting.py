"""Faults as converters make them, planted into an exported graph: each returns the node whose result is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Planted = tuple[Any, str]
"""A graph with a fault, and the tensor that the wrong node makes."""


def list_faults(model: Any) -> dict[str, Any]:
    """Return name -> function of the faults that a graph has a place for."""
    return {name: fault for name, fault in FAULTS.items() if fault(_copy(model)) is not None}


def _copy(model: Any) -> Any:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    return made


def _pick(model: Any, *operators: str) -> list[Any]:
    return [node for node in model.graph.node if node.op_type in operators]


def _middle(nodes: list[Any]) -> Any:
    return nodes[len(nodes) // 2] if nodes else None


def _weights(model: Any) -> dict[str, Any]:
    return {weight.name: weight for weight in model.graph.initializer}


def _replace(model: Any, node: Any, place: int, array: np.ndarray) -> None:
    """Give a node a weight of its own: the old one may have other readers."""
    name = f"{node.input[place]}_{node.name}_planted"
    model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
    node.input[place] = name


def wrong_epsilon(model: Any) -> Planted | None:
    """Let a norm have the epsilon of another library: 1e-3 in place of 1e-5 or 1e-6."""
    node = _middle(_pick(model, "LayerNormalization", "InstanceNormalization", "GroupNormalization"))
    if node is None:
        return None
    kept = [attribute for attribute in node.attribute if attribute.name != "epsilon"]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("epsilon", 1e-3)])
    return model, node.output[0]


def transposed_weight(model: Any) -> Planted | None:
    """Transpose a square weight of a product, or the kernel of a convolution."""
    weights = _weights(model)
    for node in reversed(_pick(model, "MatMul", "Gemm", "Conv")):
        weight = weights.get(node.input[1])
        if weight is None:
            continue
        array = numpy_helper.to_array(weight)
        square = (array.ndim == 2 and array.shape[0] == array.shape[1]) or (array.ndim == 4 and array.shape[-1] > 1)
        if square:
            _replace(model, node, 1, array.swapaxes(-1, -2))
            return model, node.output[0]
    return None


def other_gelu(model: Any) -> Planted | None:
    """Let an activation have its other form: tanh for erf, another slope of a sigmoid, or a leak for relu."""
    node = _middle(_pick(model, "Gelu"))
    if node is not None:
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("approximate", "tanh"))
        return model, node.output[0]
    node = _middle(_pick(model, "Sigmoid"))
    if node is not None:  # of x * sigmoid(x), which has other slopes in other libraries
        model.graph.initializer.append(numpy_helper.from_array(np.array(1.02, np.float32), "slope_planted"))
        place, given = list(model.graph.node).index(node), node.input[0]
        node.input[0] = "slope_planted_out"
        before = helper.make_node("Mul", [given, "slope_planted"], ["slope_planted_out"], name="slope_planted_mul")
        output = node.output[0]
        model.graph.node.insert(place, before)
        return model, output
    node = _middle(_pick(model, "Relu"))
    if node is None:
        return None
    node.op_type = "LeakyRelu"
    return model, node.output[0]


def wrong_variance(model: Any) -> Planted | None:
    """Fold a norm into a convolution with the wrong variance: its channels have other scales."""
    weights = _weights(model)
    node = _middle([each for each in _pick(model, "Conv") if each.input[1] in weights])
    if node is None:
        return None
    array = numpy_helper.to_array(weights[node.input[1]])
    scale = np.random.default_rng(0).uniform(0.9, 1.1, (array.shape[0],) + (1,) * (array.ndim - 1))
    _replace(model, node, 1, (array * scale).astype(array.dtype))
    return model, node.output[0]


def cast(model: Any) -> Planted | None:
    """Round a result to bfloat16 and back, as a cast that was left behind does."""
    node = _middle(_pick(model, "MatMul", "Gemm", "Conv"))
    if node is None:
        return None
    output, place = node.output[0], list(model.graph.node).index(node)
    node.output[0] = f"{output}_exact"
    to = onnx.TensorProto
    narrow = helper.make_node("Cast", [f"{output}_exact"], [f"{output}_narrow"], name=f"{output}_cast", to=to.BFLOAT16)
    wide = helper.make_node("Cast", [f"{output}_narrow"], [output], name=f"{output}_back", to=to.FLOAT)
    model.graph.node.insert(place + 1, narrow)
    model.graph.node.insert(place + 2, wide)
    return model, output


FAULTS = {
    "wrong epsilon": wrong_epsilon,
    "transposed weight": transposed_weight,
    "activation of the other form": other_gelu,
    "norm folded with a wrong variance": wrong_variance,
    "cast left behind": cast,
}


def plant(model: Any, fault: str) -> Planted:
    """Return a copy of a graph with a fault, and the tensor that the wrong node makes."""
    planted: Planted | None = FAULTS[fault](_copy(model))
    if planted is None:
        raise ValueError(f"the graph has no place for: {fault}")
    return planted
