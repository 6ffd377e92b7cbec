"""The gradients of a Linear layer as the products of matrices that they are, for dumps that show no operators in backward.

Modules alone show what the backward pass multiplies: with the gradient ``g`` that arrived, the input ``x`` of the forward pass
and the weight ``W``::

    gradient of the input     g @ W
    gradient of the weight    g^T @ x, summed over the rows of all samples

A layer that runs several times in a step adds up its weight gradients; those are no single product.
"""

from __future__ import annotations

from collections.abc import Iterable

from precflow.agent.contract import BACKWARD, FORWARD, GRADIENT
from precflow.dumps.dtypes import coarsest
from precflow.dumps.records import Call, Record

_LINEAR = "Linear"
_MATRIX = 2


def is_product(call: Call) -> bool:
    """Tell whether a call is a gradient that one product gives: of a layer's input, or of its weight."""
    if call.class_name != _LINEAR or call.operator or len(call.outputs) != 1:
        return False
    (made,) = call.outputs
    return call.phase == BACKWARD or (call.phase == GRADIENT and made.index == "weight" and len(made.shape) == _MATRIX)


def find_operands(calls: Iterable[Call], call: Call) -> tuple[Record, Record] | None:
    """Return the gradient that arrived, and the layer's weight or, for the gradient of that, its input.

    Args:
        calls: The calls of the same module, step and rank on one side.
        call: A call for which :func:`is_product` holds, of either side.

    Returns:
        ``None`` if they were not recorded, if the layer ran several times, or if the gradient is kept in a finer type than it
        was computed in: autocast multiplies in 16 bits what it keeps in float32, and what it rounds to is not recorded.
    """
    is_weight = call.phase == GRADIENT
    ours = [one for one in calls if (is_weight or one.call == call.call) and one.inputs]
    arriving = [one for one in ours if one.phase == BACKWARD and not one.operator]
    modules = [one for one in ours if one.phase == FORWARD and not one.operator]
    functions = [one for one in ours if one.phase == FORWARD and one.operator == "linear"]
    if len(arriving) != 1 or len(modules) > 1 or len(functions) > 1:
        return None
    wanted = {"0", "input"} if is_weight else {"1", "weight"}
    others = [record for one in (functions or modules) for record in one.inputs if record.index in wanted]
    if len(others) != 1:
        return None
    arrived, kept = arriving[0].inputs[0], call.outputs[0].dtype
    made = [record.dtype for one in modules for record in one.outputs]
    return (arrived, others[0]) if coarsest([arrived.dtype, others[0].dtype, *made, kept]) == coarsest([kept]) else None


def write_equation(arrived: Record) -> str:
    """Return the product of a weight's gradient as an equation of ``einsum``; the rows of all samples are summed.

    ``(batch, tokens, features)`` gives ``abo,abi->oi``.
    """
    rows = "abcdefgh"[: len(arrived.shape) - 1]
    return f"{rows}o,{rows}i->oi"
