"""Estimates how many bytes a dump will take on disk, from the shapes in an earlier dump of the same workload."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from precflow.agent.contract import DETAIL_FACTS, KEPT, NONE
from precflow.agent.selection import DetailRule, Selection
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record

WHOLE = 1024  # elements; a tensor up to this size is stored itself instead of its sketch
_SKETCH_BYTES = 509 * 4  # 509 sums in float32
_ROWS = 1024  # row norms kept of one tensor, at most
_UNKNOWN = 4  # bytes assumed for an element of an unknown type


def element_bytes(dtype: str) -> int:
    """Return how many bytes an element takes."""
    known = NUMPY_DTYPES.get(dtype)
    return known.itemsize if known is not None else _UNKNOWN


def tensor_bytes(record: Record) -> int:
    """Return how many bytes a record's tensor takes in a shard, or the part of it that is kept."""
    return math.ceil(math.prod(record.shape) * record.share) * element_bytes(record.dtype)


def sketch_bytes(record: Record, parts: int = 1) -> int:
    """Return how many bytes a record's sketch and row norms take in a shard; small tensors are stored whole instead.

    Args:
        record: The record of the earlier dump.
        parts: 2 if the high and the low parts of values are summed up separately (``capture.fine``), else 1.
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


def holds_tensor(record: Record, *, movement: bool, weights: bool = True) -> bool:
    """Tell whether a dump in full detail stores a tensor for a record: not for data movement, and weights only if asked to.

    Args:
        record: The record of the earlier dump.
        movement: Its call only moves values, such as a transpose.
        weights: Weights that go into a call are stored (``capture.weights``).
    """
    return not movement and (weights if record.weight else bool(record.known))


def storage_key(record: Record) -> str:
    """Return what records that share one stored tensor have in common; a weight whose content is not known goes by its name."""
    return record.key or record.weight


def estimate_dump(dump: Dump, capture: Mapping[str, Any], dtype: str) -> int | None:
    """Return about how many bytes a dump of the same workload will take; ``None`` if the earlier dump lacks some of its calls.

    Args:
        dump: The earlier dump, in any detail.
        capture: Section ``capture`` of the request for the new dump.
        dtype: Element type that the new dump will run in.
    """
    before = dump.header.capture
    known = all(set(capture[key]) <= set(before.get(key, ())) for key in ("level", "phase"))
    scope: Sequence[str] = before.get("scope", ())
    everywhere = "*" in scope or list(scope) == list(capture["scope"])
    if not (known and everywhere and not any(rule.get("detail") == NONE for rule in before.get("rules", ()))):
        return None
    return estimate_calls(dump.calls(), capture, dtype, ran_in=dump.header.dtype)


def estimate_calls(calls: Sequence[Call], capture: Mapping[str, Any], dtype: str, *, ran_in: str = "") -> int | None:
    """Return about how many bytes a dump of these calls will take; ``None`` if there are none.

    Args:
        calls: Calls of all requested levels and phases. Those of the first rank and step are counted, once for each step.
        capture: Section ``capture`` of the request for the new dump.
        dtype: Element type that the new dump will run in.
        ran_in: Element type of the earlier run; ``""`` means the same one.
    """
    if not calls:
        return None
    step, rank = calls[0].step, calls[0].rank
    scope = Selection(
        capture["scope"], detail=capture["detail"], rules=[DetailRule.from_plain(rule) for rule in capture["rules"]]
    )
    wider = element_bytes(dtype) / element_bytes(ran_in or dtype)
    parts = 2 if capture.get("fine") else 1
    keeps_weights = capture.get("weights", KEPT) == KEPT
    lines, sizes = 0, dict[str, int]()
    for call in calls:
        if (call.step, call.rank) != (step, rank) or call.level not in capture["level"] or call.phase not in capture["phase"]:
            continue
        detail = scope.detail_of(
            call.level, call.module, call.class_name, call.operator, call.phase, capture["step"][0], call.rank
        )
        for record in (*call.inputs, *call.outputs) if detail != NONE else ():
            lines += DETAIL_FACTS[detail].line_bytes
            if holds_tensor(record, movement=call.movement, weights=keeps_weights and detail == "tensors"):
                # Tensors of the run's own type change with it (float32 to bfloat16 halves them); integers and masks do not.
                # Equal bits are stored once, under one key; of records that keep different amounts of it, the largest counts.
                factor = wider if record.dtype == ran_in else 1.0
                key = storage_key(record)
                sizes[key] = max(sizes.get(key, 0), _evidence_bytes(record, detail, factor, parts))
    steps = len(capture["step"])
    return (lines + sum(sizes.values())) * min(steps, capture.get("keep_last") or steps)


def _evidence_bytes(record: Record, detail: str, factor: float, parts: int) -> int:
    if detail == "tensors":
        return round(tensor_bytes(record) * factor)
    if detail == "sketch":
        return sketch_bytes(record, parts)
    return rows_bytes(record) if detail == "statistics" else 0
