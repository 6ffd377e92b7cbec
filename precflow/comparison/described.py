"""What is known of a pair of records before any element is read: how they were joined, their types, shapes and arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precflow.comparison.measures import Measure
from precflow.comparison.pairing import Pair
from precflow.dumps.dtypes import is_floating
from precflow.dumps.reader import Dump
from precflow.dumps.records import Call, Record

ABSENT = "(absent)"  # an argument that only the other side was given

Owners = Mapping[int, Call]  # id() of an output record -> its call


def owners_of(*dumps: Dump) -> Owners:
    """Return the call of every output record of some dumps."""
    return {id(record): call for dump in dumps for call in dump.calls() for record in call.outputs}


def described(joined: Pair, owners: Owners) -> Measure:
    """Return the measure of a pair without its numbers; of a record that found no partner, the whole measure."""
    left, right = joined.reference, joined.target
    if left is None or right is None:
        return _only_reference(left, owners) if left else _only_target(right, owners)
    return _paired(left, right, owners[id(left)], owners[id(right)])


def _only_reference(record: Record, owners: Owners) -> Measure:
    call = owners[id(record)]
    return Measure(
        **_named(record, call),
        join="unpaired_reference",
        reason="only the reference has it: the target ran no such call, or got no such output from it",
        movement=call.movement,
        judged=not call.movement and is_floating(record.dtype),
        reference_dtype=record.dtype,
        reference_shape=record.shape,
        site=call.site,
    )


def _only_target(record: Record | None, owners: Owners) -> Measure:
    assert record is not None
    call = owners[id(record)]
    return Measure(
        **_named(record, call),
        join="unpaired_target",
        reason="only the target has it: the reference ran no such call, or got no such output from it",
        movement=call.movement,
        judged=not call.movement and is_floating(record.dtype),
        target_dtype=record.dtype,
        target_shape=record.shape,
        target_site=call.site,
    )


def _named(record: Record, call: Call) -> dict[str, Any]:
    """Return which record it is, and of which call."""
    return {
        "record": record.text,
        "name": call.name,
        "module": call.module,
        "operator": call.operator,
        "level": call.level,
        "phase": call.phase,
        "order": call.order,
    }


def _paired(left: Record, right: Record, call: Call, other: Call) -> Measure:
    movement = call.movement or other.movement
    return Measure(
        **_named(left, call),
        **joined_by(left, right),
        movement=movement,
        judged=not movement and (is_floating(left.dtype) or is_floating(right.dtype)),
        site=call.site,
        target_site=other.site,
        arguments=_different(call.arguments, other.arguments),
    )


def joined_by(left: Record, right: Record) -> dict[str, Any]:
    """Return what two records tell of each other by themselves: attributes of a :class:`Measure`."""
    shapes = "" if left.shape == right.shape else f"{list(left.shape)} on the reference, {list(right.shape)} on the target"
    return {
        "join": "shape" if shapes else "paired",
        "reason": shapes,
        "reference_dtype": left.dtype,
        "target_dtype": right.dtype,
        "reference_shape": left.shape,
        "target_shape": right.shape,
        "share": left.share,
        "equal": bool(left.content) and left.content == right.content and left.dtype == right.dtype,
    }


def _different(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the non-tensor arguments that differ: name -> (reference, target)."""
    values = {name: (first.get(name, ABSENT), second.get(name, ABSENT)) for name in {**first, **second}}
    return {name: both for name, both in values.items() if both[0] != both[1]}
