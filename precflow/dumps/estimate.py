"""What a dump would take on disk, told from an earlier dump of the same workload: its records have the sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from precflow.agent.contract import DETAIL_FACTS, NONE
from precflow.agent.selection import DetailRule, Selection
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.dumps.reader import Dump
from precflow.dumps.records import Call, Record

# What evidence takes on disk, from what is known of a record: type, shape, share.

WHOLE = 1024  # elements up to which a tensor is kept whole in place of its sketch
_SKETCH_BYTES = 509 * 4
_ROWS = 1024
_UNKNOWN = 4  # bytes of an element of a type that no table has


def element_bytes(dtype: str) -> int:
    """Return how many bytes an element takes."""
    known = NUMPY_DTYPES.get(dtype)
    return known.itemsize if known is not None else _UNKNOWN


def tensor_bytes(record: Record) -> int:
    """Return how many bytes a record's tensor, or the part of it that was kept, takes in a shard."""
    return math.ceil(math.prod(record.shape) * record.share) * element_bytes(record.dtype)


def sketch_bytes(record: Record, parts: int = 1) -> int:
    """Return how many bytes a record's sketch takes in a shard; small tensors are kept whole.

    Args:
        record: With a shape.
        parts: Two where high and low parts of values are kept apart.
    """
    elements = math.ceil(math.prod(record.shape) * record.share)
    if elements <= WHOLE:
        return tensor_bytes(record)
    return parts * _SKETCH_BYTES + rows_bytes(record)


def rows_bytes(record: Record) -> int:
    """Return how many bytes the norms of a record's rows take in a shard; small tensors have none."""
    elements = math.ceil(math.prod(record.shape) * record.share)
    rows = elements // max(record.shape[-1], 1) if record.shape else 1
    return 4 * min(max(rows, 1), _ROWS) if elements > WHOLE else 0


def holds_tensor(record: Record, *, movement: bool) -> bool:
    """Tell whether a dump in full detail stores a tensor for a record: not for weights that go in, not for movement."""
    return bool(record.known) and not record.weight and not movement


def estimate_dump(dump: Dump, capture: Mapping[str, Any], dtype: str) -> int | None:
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
    scope = Selection(
        capture["scope"], detail=capture["detail"], rules=[DetailRule.from_plain(rule) for rule in capture["rules"]]
    )
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
            lines += DETAIL_FACTS[detail].line_bytes
            if holds_tensor(record, movement=call.movement):
                factor = wider if record.dtype == ran_in else 1.0
                sizes[record.key] = max(sizes.get(record.key, 0), _evidence_bytes(record, detail, factor, parts))
    steps = len(capture["step"])
    return (lines + sum(sizes.values())) * min(steps, capture.get("keep_last") or steps)


def _evidence_bytes(record: Record, detail: str, factor: float, parts: int) -> int:
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
