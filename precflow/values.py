"""Compares nested tensors under the section ``tolerance`` of a recipe: what :mod:`precflow.library` does with two values.

A standard is applied with what the two values hold:

    limits of records       hold the pair; there is no noise floor, so that ``calibrated`` has its fixed limits
    limits of operators     hold the target, with the golden that the caller gave, else the reference, as the golden
    a dual benchmark        holds the errors of both against the golden, which has to be given
    limits of losses        hold tensors of one axis, one loss a step

What a standard cannot say of a pair is status ``undecided`` with the reason, never a pass.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from precflow.agent.contract import FILLS
from precflow.comparison.detail.axis_patterns import write_slices
from precflow.comparison.detail.detail import Element, examine
from precflow.comparison.formulas import measure_all
from precflow.comparison.fused.summarize import summarize
from precflow.comparison.measure import Measure
from precflow.comparison.nested_values import PairedValue, pair_values
from precflow.comparison.reading import count_classes
from precflow.config.schema import Tolerance
from precflow.diagnosis.golden import evaluate
from precflow.diagnosis.operator_standards import Held, hold_all, list_asked
from precflow.dumps.dtypes import Array, is_floating, name_of
from precflow.errors import ConfigError
from precflow.judgement import standards
from precflow.judgement.accepted import AcceptedDifferences
from precflow.judgement.curves import judge_losses
from precflow.judgement.decision import Terms, decide, find_conditions
from precflow.judgement.standards import Standard
from precflow.judgement.verdicts import INCOMPLETE_STATUSES, MISALIGNED_STATUSES, Judged
from precflow.metrics import METRICS
from precflow.report.row import Row
from precflow.result import Compared, Comparison, make_compared
from precflow.version import __version__

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_SHOWN = 20  # tensors that a summary lists
_PLACES = 3  # elements without a partner that it lists of one tensor
_AN_OPERATOR = "the operator"


@dataclass(frozen=True, slots=True)
class Golden:
    """What standards of operators take besides the two values.

    Attributes:
        value: What the operator should have given, nested as the two values are; ``None`` takes the reference for it.
        operator: Name of the operator, which chooses the level of a dual benchmark.
    """

    value: Any = None
    operator: str = ""


@dataclass(frozen=True, slots=True)
class _Terms:
    """What values are judged by: all standards, sorted by what they judge."""

    tolerance: Tolerance
    records: Sequence[Standard]
    operators: Sequence[Standard]
    losses: Sequence[Standard]
    golden: Golden
    goldens: Mapping[str, Array] = field(default_factory=dict)


def compare_values(reference: Any, target: Any, tolerance: Tolerance, golden: Golden = Golden()) -> Comparison:
    """Compare nested tensors.

    Raises:
        ConfigError: A standard is not known, or needs a golden that was not given.
        TypeError: The nesting of a value has no end.
    """
    terms = _sort_terms(reference, tolerance, golden)
    pairs = pair_values(reference, target)
    rows = [_compare_pair(pair, terms) for pair in pairs]
    rows = _hold_operators(rows, pairs, terms)
    records = [make_compared(row) for row in rows]
    failing = [record for record in records if record.status in MISALIGNED_STATUSES | INCOMPLETE_STATUSES]
    others = [record for record in records if record.status != "pass" and record not in failing]
    verdict = "aligned"
    if any(record.status in MISALIGNED_STATUSES for record in records):
        verdict = "misaligned"
    elif failing or others or not records:
        verdict = "inconclusive"
    reasons = [str(record) for record in (*failing, *others)] or ([] if records else ["there is no tensor to compare"])
    if verdict == "aligned":
        summary = _summarize_aligned(records)
    else:
        by_name = {pair.name: pair for pair in pairs}
        told = [_tell(record, by_name[record.name]) for record in (*failing, *others)[:_SHOWN]] or reasons
        more = len(failing) + len(others) - len(told)
        told += [f"... and {more} more: precflow.compare(...).frame() has them all"] if more > 0 else []
        summary = "\n   ".join([f"not aligned: {len(failing) + len(others)} of {len(records)} tensors", *told])
    measured = {metric for row in rows for metric in row.measure.metrics}
    return Comparison(
        verdict,
        tuple(reasons),
        summary=summary,
        rows=tuple(rows),
        metrics=tuple(metric for metric in METRICS if metric in measured),
        facts={"precflow": __version__, "verdict": verdict},
    )


def _sort_terms(reference: Any, tolerance: Tolerance, golden: Golden) -> _Terms:
    loaded = [standards.load(name) for name in tolerance.standards]
    dual = next((standard for standard in loaded if standard.benchmark), None)
    if dual and golden.value is None:
        raise ConfigError(
            f"standard {dual.name!r} compares the errors of both values against a third one, and there are two",
            next_step="golden=what the operator gives in float64 at the same inputs",
        )
    given = [] if golden.value is None else pair_values(reference, golden.value)
    return _Terms(
        tolerance,
        records=[standard for standard in loaded if standard.judges_records],
        operators=[standard for standard in loaded if standard.judges_operators],
        losses=[standard for standard in loaded if standard.losses],
        golden=golden,
        goldens={pair.name: pair.target for pair in given if pair.target is not None},
    )


def _summarize_aligned(records: Sequence[Compared]) -> str:
    shared = [str(record) for record in records if record.reason]
    closest = max(records, key=lambda record: record.ratio)
    first = f"aligned: {len(records)} of {len(records)} tensors; closest to its limit: {replace(closest, reason='')}"
    return "\n   ".join([first, *shared])


def _compare_pair(pair: PairedValue, terms: _Terms) -> Row:
    reference, target = pair.reference, pair.target
    if pair.problem:
        return _make_row(pair.name, Judged(pair.name, pair.status, reason=pair.problem))
    if target is None or reference is None:
        side = "reference" if target is None else "target"
        return _make_row(pair.name, Judged(pair.name, f"unpaired_{side}", reason=f"only the {side} has it"), reference, target)
    if reference.shape != target.shape:
        reason = f"shape {list(target.shape)}, expected {list(reference.shape)}"
        return _make_row(pair.name, Judged(pair.name, "shape", reason=reason), reference, target)
    if not all(is_floating(name_of(side.dtype)) for side in (reference, target)):
        return _compare_exactly(pair.name, reference, target)
    return _compare_tensors(pair.name, reference, target, terms)


def _compare_tensors(name: str, reference: Array, target: Array, terms: _Terms) -> Row:
    summary = summarize(reference, target, constants=(*FILLS, *terms.tolerance.fills))
    row = _make_row(name, Judged(name, "undecided"), reference, target, measure_all(summary), count_classes(summary))
    accepted = AcceptedDifferences((), datetime.date.max)
    of_records = Terms(row.measure.reference_dtype, row.measure.target_dtype, terms.records, terms.tolerance)
    judged = decide(row.measure, of_records, accepted).judged
    limited = bool(find_conditions(row.measure, of_records).conditions)
    if not limited and judged.status == "blind" and row.measure.ordinary_elements and (terms.operators or terms.losses):
        judged = Judged(name, "pass")  # as far as limits of records go: what else there is decides
    if judged.status == "pass":
        judged = _hold_losses(judged, reference, target, terms.losses)
    shared = row.measure.counts.get("nonfinite", 0)
    if judged.status == "pass" and shared:
        judged = replace(judged, reason=f"{shared} NaN or Inf, the same on both sides, are not compared")
    return replace(row, judged=judged)


def _hold_losses(judged: Judged, reference: Array, target: Array, losses: Sequence[Standard]) -> Judged:
    """Return a status with standards of losses taken into account; they take tensors of one axis, one loss a step."""
    for standard in losses:
        if reference.ndim > 1 or not np.isrealobj(reference):
            shape = list(reference.shape)
            why = f"{standard.name} judges losses, one number a step: expected a tensor of one axis, got shape {shape}"
            return replace(judged, status="undecided", reason=why)
        left, right = (dict(enumerate(side.reshape(-1).astype(float).tolist())) for side in (reference, target))
        assert standard.losses is not None
        outcome = judge_losses(standard.losses, left, right)
        if outcome.failed:
            reason = "; ".join(outcome.failed)
            return Judged(judged.record, "fail", standard=standard.name, reason=f"{reason} ({standard.name})", ratio=np.inf)
        if outcome.missing:
            return replace(judged, status="undecided", reason=f"{standard.name}: {outcome.missing}")
        judged = judged if judged.standard else replace(judged, standard=standard.name)
    return judged


def _hold_operators(rows: Sequence[Row], pairs: Sequence[PairedValue], terms: _Terms) -> list[Row]:
    """Return rows with standards of operators taken into account, each held to the golden.

    All pairs of a standard are held together: a dual benchmark judges an exceeded ratio again over many of them.
    """
    if not terms.operators:
        return list(rows)
    asked = list_asked(terms.operators)
    evaluated = [
        evaluate(pair.name, pair.reference, pair.target, _find_golden(pair, terms), asked)
        for row, pair in zip(rows, pairs, strict=True)
        if row.judged.status == "pass" and pair.reference is not None and pair.target is not None and _is_float(pair)
    ]
    operators = {one.call: terms.golden.operator or _AN_OPERATOR for one in evaluated}
    golden = "the expected value" if terms.golden.value is None else "the golden"
    judged = {row.judged.record: row.judged for row in rows}
    for standard in terms.operators:
        for held in hold_all(standard, evaluated, operators, golden=golden).outputs:
            if judged[held.call].status == "pass":
                judged[held.call] = _add_held(judged[held.call], held, standard.name)
    return [replace(row, judged=judged[row.judged.record]) for row in rows]


def _is_float(pair: PairedValue) -> bool:
    return all(side is not None and is_floating(name_of(side.dtype)) for side in (pair.reference, pair.target))


def _find_golden(pair: PairedValue, terms: _Terms) -> Array | None:
    return pair.reference if terms.golden.value is None else terms.goldens.get(pair.name)


def _add_held(judged: Judged, held: Held, standard: str) -> Judged:
    """Return a passing status with what one more standard of operators says."""
    ratio = min(held.share, 1e300)
    if held.outcome == "met":
        if judged.metric and judged.ratio >= ratio:
            return judged
        return replace(judged, metric=held.metric, value=held.value, limit=held.limit, ratio=ratio, standard=standard)
    reason = f"{held.text} ({standard})"
    status = "fail" if held.outcome == "failed" else "undecided"
    return Judged(judged.record, status, held.metric, min(held.value, 1e300), held.limit, ratio, standard, reason)


def _compare_exactly(name: str, reference: Array, target: Array) -> Row:
    """Compare a pair of which at least one side has integers or booleans: type and values must be equal."""
    left, right = name_of(reference.dtype), name_of(target.dtype)
    if left != right:
        judged = Judged(name, "dtype", reason=f"element type {right}, expected {left}")
        return _make_row(name, judged, reference, target)
    if not reference.size:
        judged = Judged(name, "blind", reason="it has no element, so nothing could fail")
        return _make_row(name, judged, reference, target)
    different = int(np.count_nonzero(reference != target))
    judged = Judged(name, "pass", metric="bitwise_equal", value=1.0, limit=1.0)
    if different:
        reason = f"{different} of {reference.size} {left} values differ; they must be equal"
        judged = Judged(name, "fail", metric="bitwise_equal", limit=1.0, ratio=np.inf, reason=reason)
    return _make_row(name, judged, reference, target, measure_all(summarize(reference, target)))


def _tell(record: Compared, pair: PairedValue) -> str:
    """Return why a tensor is not aligned, and below it where in the tensor."""
    where = _describe_where(pair) if record.status in {"fail", "nonfinite"} and not pair.problem else ""
    return f"{record}\n      {where}" if where else str(record)


def _describe_where(pair: PairedValue) -> str:
    """Return the worst element of a pair, and the part of the tensor that holds the error, as one would index them.

    A complex tensor has one more axis: 0 is the real part, 1 the imaginary one.
    """
    if pair.reference is None or pair.target is None or pair.reference.shape != pair.target.shape:
        return ""
    found = examine(pair.reference, pair.target, threads=1)
    if found.mismatched:
        more = found.mismatches - _PLACES
        listed = "; ".join(map(_show_element, found.mismatched[:_PLACES]))
        return f"NaN, Inf or a mask's fill at {listed}{f'; and {more} more' if more > 0 else ''}"
    if not found.worst_absolute:
        return f"first at {_show_element(found.first)}" if found.first else ""
    sizes = tuple(axis.size for axis in found.axes)
    part = write_slices(found.places, sizes)
    worst = found.worst_absolute[0]
    alone = part in {"", str(list(worst.index))}
    place = found.where if not part and found.places else "" if alone else f"the error is at {part}"
    return "; ".join(filter(None, (f"worst at {_show_element(worst)}", place)))


def _show_element(element: Element) -> str:
    return f"{list(element.index)}: {element.target}, expected {element.reference}"


def _make_row(  # noqa: PLR0913, PLR0917  each is a fact of its own
    name: str,
    judged: Judged,
    reference: Array | None = None,
    target: Array | None = None,
    metrics: Mapping[str, float] = _NOTHING,
    counts: Mapping[str, int] = _NOTHING,
) -> Row:
    """Return a record of values that come from no dump: it has no module, no level and no phase."""
    left, right = ("" if side is None else name_of(side.dtype) for side in (reference, target))
    measure = Measure(
        record=name,
        name=name,
        module="",
        operator="",
        level="",
        phase="",
        order=0,
        join=judged.status if judged.status in {"shape", "unpaired_reference", "unpaired_target"} else "paired",
        reference_dtype=left,
        target_dtype=right,
        reference_shape=() if reference is None else reference.shape,
        target_shape=() if target is None else target.shape,
        equal=metrics.get("bitwise_equal", 0.0) == 1.0,
        metrics=metrics,
        evidence="tensors" if metrics else "",
        counts=counts,
    )
    return Row(measure, judged, "unknown")
