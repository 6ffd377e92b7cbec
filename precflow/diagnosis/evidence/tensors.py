"""What both sides recorded of one call under suspicion: its tensors as float64, of bounded size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.agent.contract import GRADIENT, OPTIMIZER, Identity
from precflow.comparison.fused.value_classes import (
    MINUS_INFINITY,
    BoolArray,
    ClassifiedValues,
    Fills,
    Floats,
    classify_pairs,
    classify_values,
    fills_of,
    widen,
)
from precflow.diagnosis.findings import Suspect
from precflow.diagnosis.nodes import list_read_inputs
from precflow.dumps.dtypes import FLOATS, float_facts
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record
from precflow.errors import DumpError

ELEMENTS = 1 << 21
"""Most elements of one tensor that are looked at; of a larger one evenly spaced rows are taken."""
WHOLE = 1 << 23
"""Most elements of all tensors of a call together that are read in full, so that it can be computed again."""
_MOST_OF_ROWS = 1 << 26  # elements of a tensor whose rows are measured
_PARTS = {"complex64": "float32", "complex128": "float64"}  # complex numbers are compared as pairs of these


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
    ordinary: BoolArray
    filled_reference: BoolArray
    filled_target: BoolArray


@dataclass(frozen=True)
class WholeCall:
    """All tensors of one side's call in full, as they were recorded.

    Attributes:
        inputs: Inputs and weights by index.
        output: The output under suspicion.
    """

    inputs: Mapping[str, npt.NDArray[Any]]
    output: npt.NDArray[Any]


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
        whole: The call in full on the reference and on the target; ``None`` if not all of it was stored, or it is too large.
        product: For a gradient of a Linear layer, the product of matrices that gives it on both sides, see
            :mod:`precflow.diagnosis.gradients.linear`.
    """

    suspect: Suspect
    reference: Call
    target: Call | None
    records: tuple[Record, Record | None]
    output: TensorPair | None
    inputs: tuple[TensorPair, ...]
    whole: tuple[WholeCall, WholeCall] | None = None
    product: tuple[WholeCall, WholeCall] | None = None

    @property
    def inputs_equal(self) -> bool:
        """Every input has the same bits on both sides, and there is at least one."""
        if self.target is None:
            return False
        here, there = list_read_inputs(self.reference), list_read_inputs(self.target)
        if not here or len(here) != len(there):
            return False
        # The gradient of a first layer has only weights for inputs: what arrived from behind was not recorded, so that equal
        # weights do not mean equal inputs.
        if self.reference.phase != "forward" and all(record.weight for record in here):
            return False
        # Of a weight whose content one side did not keep, the headers have the hashes, of what it was before the first step.
        is_first = self.reference.step == 0
        return all(
            (one.content and one.content == other.content)
            or (is_first and one.weight and other.weight and not (one.content and other.content))
            for one, other in zip(here, there, strict=True)
        )

    @property
    def inputs_differ(self) -> bool:
        """An input is known to have other bits."""
        return any(one.content and other.content and one.content != other.content for one, other in self._pair_inputs())

    @property
    def input_shapes_equal(self) -> bool | None:
        """Every input has the same shape on both sides; ``None`` if the call has no inputs or no partner."""
        pairs = list(self._pair_inputs())
        if self.target is None or not pairs:
            return None
        same_number = len(self.reference.inputs) == len(self.target.inputs)
        return same_number and all(one.shape == other.shape for one, other in pairs)

    def _pair_inputs(self) -> Iterator[tuple[Record, Record]]:
        theirs = {record.index: record for record in self.target.inputs} if self.target is not None else {}
        return ((record, theirs[record.index]) for record in list_read_inputs(self.reference) if record.index in theirs)


def observe(reference: Dump, target: Dump, suspects: Sequence[Suspect]) -> list[ObservedCall]:
    """Read what both sides recorded of each suspect; tensors that cannot be read are left out."""
    modules = {suspect.module for suspect in suspects}
    calls = {record.text: call for call in reference.calls() if call.module in modules for record in call.outputs}
    others = {call_identity(call): call for call in target.calls() if call.module in modules}
    known = [(suspect, calls[suspect.record]) for suspect in suspects if suspect.record in calls]
    return [_observe_call(reference, target, suspect, call, others.get(call_identity(call))) for suspect, call in known]


def call_identity(call: Call) -> tuple[object, ...]:
    """Return the identity of a call, without that of its tensors."""
    # A module has a call of these phases for each of its parameters.
    parameter = call.outputs[0].index if call.phase in {GRADIENT, OPTIMIZER} and call.outputs else ""
    return (call.level, call.module, call.call, call.operator, call.ordinal, call.phase, call.step, call.rank, parameter)


def read_pair(reference: Dump, target: Dump, one: Record, other: Record | None) -> TensorPair | None:
    """Return one tensor of both sides; ``None`` if a side lacks it, the shapes differ, or it is not floating point."""
    if other is None or one.shape != other.shape or 0 in one.shape or not (one.stored and other.stored):
        return None
    types = [_PARTS.get(record.dtype, record.dtype) for record in (one, other)]
    if not {*types} <= {*FLOATS} or (one.dtype in _PARTS) != (other.dtype in _PARTS):
        return None
    try:
        here, there = _read_rows(reference.tensor(one)), _read_rows(target.tensor(other))
    except DumpError:
        return None  # the record's status already says that it is unreadable
    fills = (fills_of(float_facts(types[0])), fills_of(float_facts(types[1])))
    classes = (classify_values(here, fills[0]), classify_values(there, fills[1]))
    excluded = classify_pairs(here, there, fills, (classes[0].floor, classes[1].floor)).excluded
    filled = (_find_filled(here, fills[0], classes[0]), _find_filled(there, fills[1], classes[1]))
    ordinary = ~excluded & ~filled[0] & ~filled[1] & np.isfinite(here) & np.isfinite(there)
    return TensorPair(here, there, ordinary, *filled)


def _observe_call(reference: Dump, target: Dump, suspect: Suspect, call: Call, other: Call | None) -> ObservedCall:
    records = () if other is None else (*other.inputs, *other.outputs)
    theirs: Mapping[Identity, Record] = {record.identity: record for record in records}
    record = next(record for record in call.outputs if record.text == suspect.record)
    inputs = [given for given in list_read_inputs(call) if not given.weight]
    pairs = [read_pair(reference, target, given, theirs.get(given.identity)) for given in inputs]
    return ObservedCall(
        suspect=suspect,
        reference=call,
        target=other,
        records=(record, theirs.get(record.identity)),
        output=read_pair(reference, target, record, theirs.get(record.identity)),
        inputs=tuple(pair for pair in pairs if pair is not None),
        whole=_read_whole(reference, target, (call, record), None if other is None else (other, theirs.get(record.identity))),
    )


def _read_whole(
    reference: Dump, target: Dump, here: tuple[Call, Record], there: tuple[Call, Record | None] | None
) -> tuple[WholeCall, WholeCall] | None:
    """Read both calls in full. A weight that the target did not store is the reference's if its content is the same."""
    if there is None or there[1] is None:
        return None
    records = [*here[0].inputs, here[1], *there[0].inputs, there[1]]
    if sum(math.prod(record.shape) for record in records) > WHOLE or any(record.part for record in records):
        return None
    stored = {record.content: record for record in here[0].inputs if record.content and record.stored}
    try:
        sides = []
        for dump, (call, output) in ((reference, here), (target, (there[0], there[1]))):
            inputs = {}
            for record in call.inputs:
                if record.stored:
                    inputs[record.index] = dump.tensor(record)
                elif record.content in stored:
                    inputs[record.index] = reference.tensor(stored[record.content])
                else:
                    return None
            sides.append(WholeCall(inputs, dump.tensor(output)))
    except DumpError:
        return None
    return sides[0], sides[1]


def _read_rows(tensor: npt.NDArray[Any]) -> Floats:
    """Return a tensor as float64 rows, of a large one every n-th row; a complex number is two values side by side."""
    if tensor.dtype.kind == "c":
        tensor = np.ascontiguousarray(tensor).reshape(tensor.shape or (1,))
        tensor = tensor.view(tensor.real.dtype)
    rows = tensor.reshape(-1, tensor.shape[-1]) if tensor.ndim else tensor.reshape(1, 1)
    step = -(-rows.size // ELEMENTS)
    return widen(np.ascontiguousarray(rows[::step] if step > 1 else rows))


def _find_filled(values: Floats, fills: Fills, classified: ClassifiedValues) -> BoolArray:
    kinds = classify_values(values, fills, classified.floor).kinds
    filled: BoolArray = fills.low[kinds] | (kinds == MINUS_INFINITY)
    return filled


def read_linear(dump: Dump, record: Record) -> npt.NDArray[np.float64] | None:
    """Return a tensor as flat float64, else its sketch, which has the same sums and multiples; ``None`` without both."""
    try:
        if record.stored and not record.part:
            return widen(np.ascontiguousarray(dump.tensor(record)).reshape(-1))
        read = getattr(dump, "sketch", None)
        kept = None if read is None else read(record)
    except DumpError:  # the comparison has already called the record unreadable
        return None
    return None if kept is None else np.asarray(kept, np.float64).sum(axis=0).reshape(-1)


def read_row_norms(dump: Dump, record: Record) -> Floats | None:
    """Return the norm of each row of the last axis, from the tensor or beside its sketch; ``None`` if not all are known."""
    shape = record.shape
    if record.part or record.dtype not in FLOATS or len(shape) < 2 or not 0 < math.prod(shape) <= _MOST_OF_ROWS:
        return None
    try:
        if record.stored:
            values = widen(np.ascontiguousarray(dump.tensor(record)).reshape(-1))
            norms: Floats = np.linalg.norm(values.reshape(-1, shape[-1]), axis=1)
        else:
            read = getattr(dump, "rows", None)
            kept = None if read is None else read(record)
            norms = np.zeros(0) if kept is None else np.asarray(kept, np.float64).reshape(-1)
    except DumpError:  # the comparison has already called the record unreadable
        return None
    # Of many rows a sketch keeps norms of groups, which tell no token.
    return norms.reshape(shape[:-1]) if norms.size * shape[-1] == math.prod(shape) and np.isfinite(norms).all() else None
