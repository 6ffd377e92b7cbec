"""Everything about one record of two dumps: both tensors, the inputs of its call on both sides, and where its output goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from precflow.comparison.detail.description import Description, describe
from precflow.comparison.detail.detail import Detail, examine
from precflow.dumps.header import ContentEntry
from precflow.dumps.lookup import FoundRecord, Recorded, find_users
from precflow.dumps.records import Record
from precflow.errors import DumpError

Weights = tuple[Mapping[str, ContentEntry], Mapping[str, ContentEntry]]


@dataclass(frozen=True)
class InputComparison:
    """One input of a call, compared between the sides.

    Attributes:
        index: Name of the argument, or its number.
        weight: Name of the parameter, if it is one.
        state: ``equal bits``, ``equal before casting`` (weights), ``differs``, ``another shape``, ``another type``,
            ``unknown`` (no content id), or the only side that has it.
    """

    index: str
    weight: str
    state: str


@dataclass(frozen=True)
class RecordDetail:
    """One record of both sides.

    Attributes:
        record: Identity text.
        name: ``module / operator``.
        detail: Both tensors compared; ``None`` if that is not possible.
        reference: The reference's tensor alone, if there is no detail and it can be read.
        target: The same of the target.
        reason: Why there is no detail; ``""`` if there is one.
        note: What a reader of the positions has to know; ``""`` for nothing.
        inputs: The inputs of the call.
        feeds: Names of the calls that its output goes to, on the reference.
    """

    record: str
    name: str
    detail: Detail | None
    reference: Description | None = None
    target: Description | None = None
    reason: str = ""
    note: str = ""
    inputs: tuple[InputComparison, ...] = ()
    feeds: tuple[str, ...] = ()


def examine_record(
    reference: Recorded, target: Recorded, left: FoundRecord, right: FoundRecord, *, threads: int = 0
) -> RecordDetail:
    """Read both tensors of a pair of records and return everything about them.

    Args:
        reference: Dump of the reference.
        target: Dump of the target.
        left: The record on the reference.
        right: The record on the target.
        threads: How many; 0 is one a processor.
    """
    first, why = _read_tensor("reference", reference, left.record)
    second, why_not = _read_tensor("target", target, right.record)
    reason = "; ".join(filter(None, (why, why_not)))
    detail = None
    if first is not None and second is not None:
        reason = _explain_no_detail(left.record, right.record, same_shape=first.shape == second.shape)
        detail = None if reason else examine(first, second, threads=threads)
    weights = reference.header.weights.entries, target.header.weights.entries
    alone = [None if detail or array is None else describe([array])[0] for array in (first, second)]
    return RecordDetail(
        record=left.text,
        name=left.call.name,
        detail=detail,
        reference=alone[0],
        target=alone[1],
        reason=reason,
        inputs=compare_inputs(left, right, weights),
        note=_describe_part(left.record),
        feeds=tuple(dict.fromkeys(one.call.name for one in find_users(reference, left))),
    )


def compare_inputs(left: FoundRecord, right: FoundRecord, weights: Weights = ({}, {})) -> tuple[InputComparison, ...]:
    """Return the inputs of the calls of two records and whether they were the same, by content ids alone.

    Args:
        left: The record on the reference.
        right: The record on the target.
        weights: The weights of both sides as they were before casting: records of weights have no content id.
    """
    theirs = {record.index: record for record in right.call.inputs}
    mine = {record.index: record for record in left.call.inputs}
    return tuple(_compare_input(index, mine.get(index), theirs.get(index), weights) for index in {**mine, **theirs})


def _compare_input(index: str, mine: Record | None, theirs: Record | None, weights: Weights) -> InputComparison:
    if mine is None or theirs is None:
        one = mine or theirs
        return InputComparison(
            index, one.weight if one else "", "on the target only" if mine is None else "on the reference only"
        )
    before = [entries.get(mine.weight) for entries in weights] if mine.weight == theirs.weight else [None]
    states = (
        (None not in before and before[0] == before[1], "equal before casting"),
        (mine.shape != theirs.shape, "another shape"),
        (mine.dtype != theirs.dtype, "another type"),
        (not (mine.content and theirs.content), "unknown"),
        (mine.content != theirs.content, "differs"),
    )
    return InputComparison(index, mine.weight, next((state for holds, state in states if holds), "equal bits"))


def _read_tensor(side: str, dump: Recorded, record: Record) -> tuple[npt.NDArray[Any] | None, str]:
    if not record.stored:
        return None, f"the {side} kept no tensor of it"
    try:
        return dump.tensor(record), ""
    except DumpError as error:
        return None, f"{side}: {error.message}"


def _explain_no_detail(left: Record, right: Record, *, same_shape: bool) -> str:
    if left.share != right.share or left.part != right.part:
        return f"the sides kept different parts of it: {left.share:.3g} on the reference, {right.share:.3g} on the target"
    return "" if same_shape else f"the shapes differ: {list(left.shape)} on the reference, {list(right.shape)} on the target"


def _describe_part(record: Record) -> str:
    if record.share == 1:
        return ""
    return f"a part of the tensor was kept, {record.share:.3g} of its elements ({record.part}): positions are those within it"
