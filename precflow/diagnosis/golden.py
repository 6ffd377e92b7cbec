"""How far two values are from a golden: what the same should be, computed in higher precision.

Standards of operators, and dual benchmarks above all, judge by these errors. The golden may be what an operator gives in
float64, a value that a unit test knows, or a record of a third run of the whole workload.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precflow.comparison.formulas import measure_all
from precflow.comparison.fused.summarize import summarize
from precflow.comparison.golden_errors import count_misplaced, measure_golden_errors
from precflow.diagnosis.introduced import Evaluated, SideNumbers
from precflow.dumps.dtypes import Array, coarsest, is_floating, name_of, real_part
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Record
from precflow.errors import DumpError


@dataclass(frozen=True)
class GoldenRow:
    """One record of the run against the golden run.

    Attributes:
        record: Identity text.
        name: Name on screens.
        reference: Error of the reference, as relative_l2 against the golden run.
        target: The same of the target.
        ratio: The target's error over the reference's; 1 if both are 0, infinite if the reference's alone is.
    """

    record: str
    name: str
    reference: float
    target: float
    ratio: float


def list_rows(evaluated: Sequence[Evaluated], names: Mapping[str, str]) -> list[GoldenRow]:
    """Return the records that could be held to a golden run, in their order.

    Args:
        evaluated: As :func:`evaluate_records` yields it.
        names: Identity text -> name on screens.
    """
    rows = []
    for one in evaluated:
        errors = [one.sides[side].eta for side in ("reference", "target")] if one.evaluated else [None, None]
        here, there = errors
        if here is not None and there is not None:
            ratio = there / here if here else 1.0 if there == here else math.inf
            rows.append(GoldenRow(one.call, names.get(one.call, one.call), here, there, ratio))
    return rows


def evaluate(
    name: str, reference: Array, target: Array, golden: Array | None, asked: Mapping[str, Mapping[str, Any]]
) -> Evaluated:
    """Return the errors of both values against the golden, in the form of an operator that was computed again.

    Args:
        name: What they are called.
        reference: The reference's value.
        target: The target's, of the same shape.
        golden: What they should be; ``None`` if there is no such value.
        asked: What standards ask for, see :func:`precflow.diagnosis.operator_standards.list_asked`.
    """
    why = _describe_unusable(golden, target)
    if why or golden is None:
        return Evaluated(name, "", why=why)
    sides = {}
    for side, output in (("reference", reference), ("target", target)):
        eta = measure_all(summarize(golden, output)).get("relative_l2")  # absent where nothing ordinary is left to compare
        errors = measure_golden_errors(output, golden, asked)
        misplaced = count_misplaced(output, golden)
        sides[side] = SideNumbers(real_part(name_of(output.dtype)), output.size, eta=eta, misplaced=misplaced, errors=errors)
    return Evaluated(name, "", evaluated=True, sides=sides)


def evaluate_records(
    reference: Dump, target: Dump, golden: Dump, asked: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[Record, Evaluated]]:
    """Yield each output of floating point that all three runs have, with the errors of both sides against the golden run.

    What only moves values is left out: it has the error of what it was given.
    """
    theirs, goldens = _list_outputs(target), _list_outputs(golden)
    for text, record in _list_outputs(reference).items():
        other, goal = theirs.get(text), goldens.get(text)
        if other is None or goal is None or record.shape != other.shape or 0 in record.shape:
            continue
        try:
            values = [dump.tensor(one) for dump, one in ((reference, record), (target, other), (golden, goal))]
        except DumpError:
            continue  # the record's status says so already
        yield record, evaluate(text, values[0], values[1], values[2], asked)


def _list_outputs(dump: Dump) -> dict[str, Record]:
    calls: Sequence[Any] = dump.calls()
    return {
        record.text: record
        for call in calls
        if not call.movement
        for record in call.outputs
        if record.stored and not record.part and is_floating(record.dtype)
    }


def _describe_unusable(golden: Array | None, target: Array) -> str:
    """Return why a tensor cannot stand for the golden of another; ``""`` if it can."""
    if golden is None:
        return "the golden has no such tensor"
    if golden.shape != target.shape:
        return f"the golden has shape {list(golden.shape)}, expected {list(target.shape)}"
    kind, own = name_of(golden.dtype), name_of(target.dtype)
    if not is_floating(kind) or (real_part(kind) != real_part(own) and coarsest([kind, own]) == real_part(kind)):
        return f"what it is held to is {kind}, less precise than {own}, and a golden has to be at least as precise"
    return ""
