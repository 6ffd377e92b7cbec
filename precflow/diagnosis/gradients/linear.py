"""The gradients of a Linear layer as the products of matrices that they are, for dumps that show no operators in backward.

Modules alone show what the backward pass multiplies: with the gradient ``g`` that arrived, the input ``x`` of the forward pass
and the weight ``W``::

    gradient of the input     g @ W
    gradient of the weight    g^T @ x, summed over the rows of all samples

A layer that runs several times in a step adds up its weight gradients; those are no single product. The operands of a product
allow two things: computing it again in float64, and looking for evidence in it as in any other product.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from precflow.agent.contract import BACKWARD, FORWARD, GRADIENT
from precflow.diagnosis.evidence.tensors import WHOLE, ObservedCall, WholeCall
from precflow.dumps.dtypes import coarsest
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record
from precflow.errors import DumpError

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


def add_products(reference: Dump, target: Dump, observed: Sequence[ObservedCall]) -> list[ObservedCall]:
    """Return calls under suspicion with the products that give their gradients, where they are gradients of a Linear layer.

    Args:
        reference: Dump of the reference.
        target: Dump of the target.
        observed: What both sides recorded of each suspect.
    """
    modules = {one.reference.module for one in observed if is_product(one.reference)}
    calls = [[call for call in dump.calls() if call.module in modules] if modules else [] for dump in (reference, target)]
    return [
        replace(one, product=_find_products((reference, calls[0]), (target, calls[1]), one))
        if is_product(one.reference)
        else one
        for one in observed
    ]


def _find_products(
    reference: tuple[Dump, Sequence[Call]], target: tuple[Dump, Sequence[Call]], observed: ObservedCall
) -> tuple[WholeCall, WholeCall] | None:
    """Return the products of both sides, with operands ``0`` and ``1``; ``None`` where a tensor was not kept."""
    call, is_weight = observed.reference, observed.reference.phase == GRADIENT
    sides = []
    kept: dict[str, Record] = {}
    for (dump, every), made in zip((reference, target), observed.records, strict=True):
        calls = [one for one in every if (one.module, one.step, one.rank) == (call.module, call.step, call.rank)]
        kept = kept or {one.content: one for each in calls for one in each.inputs if one.content and one.stored}
        found = find_operands(calls, call)
        if found is None or made is None:
            return None
        try:
            arrived, other, output = (_read(dump, reference[0], one, kept) for one in (*found, made))
        except DumpError:
            return None
        if arrived is None or other is None or output is None:
            return None
        rows = arrived.reshape(-1, arrived.shape[-1])
        operands = (rows.T, other.reshape(-1, other.shape[-1])) if is_weight else (arrived, other)
        sides.append(WholeCall({"0": operands[0], "1": operands[1]}, output))
    return sides[0], sides[1]


def _read(dump: Dump, reference: Dump, record: Record, kept: Mapping[str, Record]) -> npt.NDArray[Any] | None:
    """Return a tensor; a weight that the target did not store is the reference's if its content is the same."""
    if record.part or math.prod(record.shape) > WHOLE // 4 or not record.shape:
        return None
    if record.stored:
        return dump.tensor(record)
    return reference.tensor(kept[record.content]) if record.content in kept else None
