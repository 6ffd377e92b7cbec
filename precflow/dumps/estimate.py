"""What a dump would take on disk, told from an earlier dump of the same workload: its records have the sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from precflow.agent.scope import NONE, Rule, Scope
from precflow.dumps.reader import Dump
from precflow.dumps.records import Call, Record
from precflow.dumps.sizes import LINE_BYTES, element_bytes, holds_tensor, rows_bytes, sketch_bytes, tensor_bytes


def estimate(dump: Dump, capture: Mapping[str, Any], dtype: str) -> int | None:
    """Return the bytes that a dump of the same workload will take, about; ``None`` where this one cannot tell.

    Args:
        dump: An earlier one, in whatever detail.
        capture: Section ``capture`` of the request for the dump in question.
        dtype: Element type that it will run in.
    """
    if not _covers(dump.header.capture, capture):
        return None
    return estimate_calls(dump.calls(), capture, dtype, ran_in=dump.header.dtype)


def estimate_calls(calls: Sequence[Call], capture: Mapping[str, Any], dtype: str, *, ran_in: str = "") -> int | None:
    """Return the bytes that a dump of these calls will take, about; ``None`` where there are none.

    Args:
        calls: Of every kind that is wanted; those of the first step count.
        capture: Section ``capture`` of the request for the dump in question.
        dtype: Element type that it will run in.
        ran_in: The one that the calls ran in; ``""`` is the same.
    """
    if not calls:
        return None
    step, rank = calls[0].step, calls[0].rank
    scope = Scope(capture["scope"], detail=capture["detail"], rules=[Rule.from_plain(rule) for rule in capture["rules"]])
    wider = element_bytes(dtype) / element_bytes(ran_in or dtype)
    parts = 2 if capture.get("fine") else 1
    lines, sizes = 0, dict[str, int]()
    for call in calls:
        if (call.step, call.rank) != (step, rank) or call.level not in capture["level"] or call.phase not in capture["phase"]:
            continue
        detail = scope.detail_of(
            call.level, call.module, call.class_name, call.operator, call.phase, capture["step"][0], call.rank
        )
        for record in (*call.inputs, *call.outputs) if detail != NONE else ():
            lines += LINE_BYTES[detail]
            if holds_tensor(record, movement=call.movement):
                factor = wider if record.dtype == ran_in else 1.0
                sizes[record.key] = max(sizes.get(record.key, 0), _bytes(record, detail, factor, parts))
    steps = len(capture["step"])
    return (lines + sum(sizes.values())) * min(steps, capture.get("keep_last") or steps)


def _bytes(record: Record, detail: str, factor: float, parts: int) -> int:
    if detail == "tensors":
        return round(tensor_bytes(record) * factor)
    if detail == "sketch":
        return sketch_bytes(record, parts)
    return rows_bytes(record) if detail == "statistics" else 0


def _covers(before: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Tell whether what was captured has every kind of call that is wanted."""
    known = all(set(wanted[key]) <= set(before.get(key, ())) for key in ("level", "phase"))
    scope: Sequence[str] = before.get("scope", ())
    everywhere = "*" in scope or list(scope) == list(wanted["scope"])
    return known and everywhere and not any(rule.get("detail") == NONE for rule in before.get("rules", ()))
