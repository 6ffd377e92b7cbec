"""A gradient of a Linear layer as the product of matrices that it is, so that evidence about products applies to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from precflow.agent.contract import GRADIENT
from precflow.diagnosis.evidence.tensors import WHOLE, ObservedCall, Readable, WholeCall
from precflow.diagnosis.linear_gradients import find_operands, is_product
from precflow.dumps.records import Call, Record
from precflow.errors import DumpError


def add_products(reference: Readable, target: Readable, observed: Sequence[ObservedCall]) -> list[ObservedCall]:
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
    reference: tuple[Readable, Sequence[Call]], target: tuple[Readable, Sequence[Call]], observed: ObservedCall
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


def _read(dump: Readable, reference: Readable, record: Record, kept: Mapping[str, Record]) -> npt.NDArray[Any] | None:
    """Return a tensor; a weight that the target did not store is the reference's if its content is the same."""
    if record.part or math.prod(record.shape) > WHOLE // 4 or not record.shape:
        return None
    if record.stored:
        return dump.tensor(record)
    return reference.tensor(kept[record.content]) if record.content in kept else None
