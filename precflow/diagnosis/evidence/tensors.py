"""What both sides recorded of one call under suspicion: its tensors as float64, of bounded size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from precflow.agent.contract import Identity
from precflow.comparison.fused.value_classes import (
    MINUS_INFINITY,
    ClassifiedValues,
    Fills,
    classify_pairs,
    classify_values,
    fills_of,
    widen,
)
from precflow.diagnosis.findings import Suspect
from precflow.diagnosis.localize import DumpWithCalls
from precflow.dumps.dtypes import FLOATS, float_facts
from precflow.dumps.records import Call, Record
from precflow.errors import DumpError

ELEMENTS = 1 << 21
"""Most elements of one tensor that are looked at; of a larger one evenly spaced rows are taken."""

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class Readable(DumpWithCalls, Protocol):
    """A dump whose tensors can be read."""

    def tensor(self, record: Record) -> npt.NDArray[Any]:
        """Return a record's tensor; raises DumpError."""


@dataclass(frozen=True)
class TensorPair:
    """One tensor on both sides, as ``(rows, last axis)``.

    Attributes:
        reference: Values of the reference.
        target: Values of the target at the same places.
        ordinary: Neither mask fill, NaN nor infinity on either side.
        filled_reference: Masked on the reference: a low fill value or -inf.
        filled_target: The same on the target.
    """

    reference: Floats
    target: Floats
    ordinary: Mask
    filled_reference: Mask
    filled_target: Mask


@dataclass(frozen=True)
class ObservedCall:
    """A call under suspicion, on both sides.

    Attributes:
        suspect: What localization says about it.
        reference: The call on the reference.
        target: The call on the target; ``None`` if it has none.
        records: The output under suspicion, on the reference and on the target (``None`` if it has none).
        output: Its values; ``None`` if they cannot be compared element by element.
        inputs: Values of each input that is on both sides and stored, in order.
    """

    suspect: Suspect
    reference: Call
    target: Call | None
    records: tuple[Record, Record | None]
    output: TensorPair | None
    inputs: tuple[TensorPair, ...]

    @property
    def inputs_equal(self) -> bool:
        """Every input has the same bits on both sides, and there is at least one."""
        if self.target is None or not self.reference.inputs or len(self.reference.inputs) != len(self.target.inputs):
            return False
        return all(
            (one.content or one.weight) and (one.content == other.content or _is_unread_weight(one, other))
            for one, other in zip(self.reference.inputs, self.target.inputs, strict=True)
        )


def observe(reference: Readable, target: Readable, suspects: Sequence[Suspect]) -> list[ObservedCall]:
    """Read what both sides recorded of each suspect; tensors that cannot be read are left out."""
    modules = {suspect.module for suspect in suspects}
    calls = {record.text: call for call in reference.calls() if call.module in modules for record in call.outputs}
    others = {call_identity(call): call for call in target.calls() if call.module in modules}
    known = [(suspect, calls[suspect.record]) for suspect in suspects if suspect.record in calls]
    return [_observe_call(reference, target, suspect, call, others.get(call_identity(call))) for suspect, call in known]


def call_identity(call: Call) -> tuple[object, ...]:
    """Return the identity of a call, without that of its tensors."""
    return (call.level, call.module, call.call, call.operator, call.ordinal, call.phase, call.step, call.rank)


def read_pair(reference: Readable, target: Readable, one: Record, other: Record | None) -> TensorPair | None:
    """Return one tensor of both sides; ``None`` if a side lacks it, the shapes differ, or it is not floating point."""
    if other is None or one.shape != other.shape or 0 in one.shape or not (one.stored and other.stored):
        return None
    if one.dtype not in FLOATS or other.dtype not in FLOATS:
        return None
    try:
        here, there = _read_rows(reference.tensor(one)), _read_rows(target.tensor(other))
    except DumpError:
        return None  # the record's status already says that it is unreadable
    fills = (fills_of(float_facts(one.dtype)), fills_of(float_facts(other.dtype)))
    classes = (classify_values(here, fills[0]), classify_values(there, fills[1]))
    excluded = classify_pairs(here, there, fills, (classes[0].floor, classes[1].floor)).excluded
    filled = (_find_filled(here, fills[0], classes[0]), _find_filled(there, fills[1], classes[1]))
    ordinary = ~excluded & ~filled[0] & ~filled[1] & np.isfinite(here) & np.isfinite(there)
    return TensorPair(here, there, ordinary, *filled)


def _observe_call(reference: Readable, target: Readable, suspect: Suspect, call: Call, other: Call | None) -> ObservedCall:
    records = () if other is None else (*other.inputs, *other.outputs)
    theirs: Mapping[Identity, Record] = {record.identity: record for record in records}
    record = next(record for record in call.outputs if record.text == suspect.record)
    pairs = [read_pair(reference, target, given, theirs.get(given.identity)) for given in call.inputs if not given.weight]
    return ObservedCall(
        suspect=suspect,
        reference=call,
        target=other,
        records=(record, theirs.get(record.identity)),
        output=read_pair(reference, target, record, theirs.get(record.identity)),
        inputs=tuple(pair for pair in pairs if pair is not None),
    )


def _read_rows(tensor: npt.NDArray[Any]) -> Floats:
    """Return a tensor as float64 rows, of a large one every n-th row."""
    rows = tensor.reshape(-1, tensor.shape[-1]) if tensor.ndim else tensor.reshape(1, 1)
    step = -(-rows.size // ELEMENTS)
    return widen(np.ascontiguousarray(rows[::step] if step > 1 else rows))


def _find_filled(values: Floats, fills: Fills, classified: ClassifiedValues) -> Mask:
    kinds = classify_values(values, fills, classified.floor).kinds
    filled: Mask = fills.low[kinds] | (kinds == MINUS_INFINITY)
    return filled


def _is_unread_weight(one: Record, other: Record) -> bool:
    """Tell whether two records are a weight whose content one side did not keep: the headers have its hashes."""
    return bool(one.weight and other.weight and not (one.content and other.content))
