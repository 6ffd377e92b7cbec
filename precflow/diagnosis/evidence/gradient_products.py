"""A gradient of a Linear layer as the product of matrices that it is, so that evidence about products applies to it.

Dumps of modules and functions show no operators in the backward pass, but they have what it multiplies. With the gradient ``g``
that arrived, the input ``x`` of the forward pass and the weight ``W``::

    gradient of the input     g @ W
    gradient of the weight    g^T @ x, summed over the rows of all samples

A layer that runs several times in a step adds up its weight gradients; those are not handled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from precflow.agent.contract import BACKWARD, FORWARD, GRADIENT
from precflow.diagnosis.evidence.tensors import WHOLE, ObservedCall, Readable, WholeCall
from precflow.dumps.records import Call, Record
from precflow.errors import DumpError

_LINEAR = "Linear"
_MATRIX = 2


def add_products(reference: Readable, target: Readable, observed: Sequence[ObservedCall]) -> list[ObservedCall]:
    """Return calls under suspicion with the products that give their gradients, where they are gradients of a Linear layer.

    Args:
        reference: Dump of the reference.
        target: Dump of the target.
        observed: What both sides recorded of each suspect.
    """
    modules = {one.reference.module for one in observed if _is_gradient(one.reference, one.records[0])}
    calls = [[call for call in dump.calls() if call.module in modules] if modules else [] for dump in (reference, target)]
    return [
        replace(one, product=_find_products((reference, calls[0]), (target, calls[1]), one))
        if one.reference.module in modules and _is_gradient(one.reference, one.records[0])
        else one
        for one in observed
    ]


def _is_gradient(call: Call, record: Record) -> bool:
    """Tell whether an output is a gradient that one product of matrices gives."""
    if call.class_name != _LINEAR or call.operator:
        return False
    return call.phase == BACKWARD or (call.phase == GRADIENT and record.index == "weight" and len(record.shape) == _MATRIX)


def _find_products(
    reference: tuple[Readable, Sequence[Call]], target: tuple[Readable, Sequence[Call]], observed: ObservedCall
) -> tuple[WholeCall, WholeCall] | None:
    """Return the products of both sides, with operands ``0`` and ``1``; ``None`` where a tensor was not kept."""
    call, is_weight = observed.reference, observed.reference.phase == GRADIENT
    sides = []
    kept: dict[str, Record] = {}
    for (dump, every), made in zip((reference, target), observed.records, strict=True):
        calls = [one for one in every if (one.module, one.step, one.rank) == (call.module, call.step, call.rank)]
        kept = kept or {one.content: one for each in calls for one in each.inputs if one.content and one.stored}
        found = _find_operands(calls, call, is_weight=is_weight)
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


def _find_operands(calls: Iterable[Call], call: Call, *, is_weight: bool) -> tuple[Record, Record] | None:
    """Return the gradient that arrived, and the layer's input or weight."""
    ours = [one for one in calls if is_weight or one.call == call.call]
    arriving = [one for one in ours if one.phase == BACKWARD and one.class_name == _LINEAR and not one.operator and one.inputs]
    forward = [one for one in ours if one.phase == FORWARD and not one.operator and one.inputs]
    functions = [one for one in ours if one.phase == FORWARD and one.operator == "linear"]
    if len(arriving) != 1 or not (forward or functions) or len(forward) > 1 or len(functions) > 1:
        return None
    others = [
        record
        for one in (functions or forward)
        for record in one.inputs
        if record.index in ({"0", "input"} if is_weight else {"1", "weight"})
    ]
    return (arriving[0].inputs[0], others[0]) if len(others) == 1 else None


def _read(dump: Readable, reference: Readable, record: Record, kept: Mapping[str, Record]) -> npt.NDArray[Any] | None:
    """Return a tensor; a weight that the target did not store is the reference's if its content is the same."""
    if record.part or math.prod(record.shape) > WHOLE // 4 or not record.shape:
        return None
    if record.stored:
        return dump.tensor(record)
    return reference.tensor(kept[record.content]) if record.content in kept else None
