"""Compares one record of two dumps in full: both tensors, the inputs of its call on both sides, and where its output goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from precflow.comparison.detail.description import Description, describe
from precflow.comparison.detail.detail import Detail, examine
from precflow.dumps.header import ContentEntry
from precflow.dumps.lookup import FoundRecord, find_users
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Record
from precflow.errors import DumpError

Weights = tuple[Mapping[str, ContentEntry], Mapping[str, ContentEntry]]


@dataclass(frozen=True)
class InputComparison:
    """Whether one input of a call is the same on both sides.

    Attributes:
        index: Name of the argument, or its number.
        weight: Name of the parameter if it is one, else ``""``.
        state: ``equal bits``, ``equal before casting`` (weights), ``differs``, ``another shape``, ``another type``,
            ``unknown`` (no content id), ``on the target only`` or ``on the reference only``.
    """

    index: str
    weight: str
    state: str


@dataclass(frozen=True)
class RecordDetail:
    """Everything about one record of both sides.

    Attributes:
        record: Identity of the record as text.
        name: ``module / operator``.
        detail: Comparison of both tensors; ``None`` if they cannot be compared.
        reference: Description of the reference's tensor, if there is no ``detail`` and the tensor can be read.
        target: Description of the target's tensor, under the same condition.
        reason: Why there is no detail; ``""`` if there is one.
        note: A note that positions are within the kept part of the tensor; ``""`` if the whole tensor was kept.
        inputs: The inputs of the call, compared.
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


def examine_record(reference: Dump, target: Dump, left: FoundRecord, right: FoundRecord, *, threads: int = 0) -> RecordDetail:
    """Read both tensors of a pair of records and compare them in full; a tensor that cannot be read becomes the ``reason``.

    Args:
        reference: Dump of the reference.
        target: Dump of the target.
        left: The record on the reference.
        right: The record on the target.
        threads: Number of threads; 0 is one per processor.
    """
    first, why = _read_tensor("reference", reference, left.record)
    second, why_not = _read_tensor("target", target, right.record)
    reason = "; ".join(filter(None, (why, why_not)))
    detail = None
    if first is not None and second is not None:
        here, there = left.record, right.record
        if (here.share, here.part) != (there.share, there.part):
            shares = f"{here.share:.3g} on the reference, {there.share:.3g} on the target"
            reason = f"the sides kept different parts of it: {shares}"
        elif first.shape != second.shape:
            reason = f"the shapes differ: {list(here.shape)} on the reference, {list(there.shape)} on the target"
        detail = None if reason else examine(first, second, threads=threads)
    weights = reference.header.weights.entries, target.header.weights.entries
    note = ""
    if left.record.share != 1:
        kept = f"{left.record.share:.3g} of its elements ({left.record.part})"
        note = f"a part of the tensor was kept, {kept}: positions are those within it"
    alone = [None if detail or array is None else describe([array])[0] for array in (first, second)]
    return RecordDetail(
        record=left.text,
        name=left.call.name,
        detail=detail,
        reference=alone[0],
        target=alone[1],
        reason=reason,
        inputs=compare_inputs(left, right, weights),
        note=note,
        feeds=tuple(dict.fromkeys(user.call.name for user in find_users(reference, left))),
    )


def compare_inputs(left: FoundRecord, right: FoundRecord, weights: Weights = ({}, {})) -> tuple[InputComparison, ...]:
    """Compare the inputs of the calls of two records, by content ids only.

    Args:
        left: The record on the reference.
        right: The record on the target.
        weights: Weights of both sides before casting, from the headers, because records of weights have no content id.
    """
    theirs = {record.index: record for record in right.call.inputs}
    mine = {record.index: record for record in left.call.inputs}
    return tuple(_compare_input(index, mine.get(index), theirs.get(index), weights) for index in {**mine, **theirs})


def _compare_input(index: str, mine: Record | None, theirs: Record | None, weights: Weights) -> InputComparison:
    if mine is None or theirs is None:
        given = mine or theirs
        state = "on the target only" if mine is None else "on the reference only"
        return InputComparison(index, given.weight if given else "", state)
    before = [entries.get(mine.weight) for entries in weights] if mine.weight == theirs.weight else [None]
    # The first state that holds counts. Another shape or type comes before "differs", because it explains other content ids.
    states = (
        (None not in before and before[0] == before[1], "equal before casting"),
        (mine.shape != theirs.shape, "another shape"),
        (mine.dtype != theirs.dtype, "another type"),
        (not (mine.content and theirs.content), "unknown"),
        (mine.content != theirs.content, "differs"),
    )
    return InputComparison(index, mine.weight, next((state for holds, state in states if holds), "equal bits"))


def _read_tensor(side: str, dump: Dump, record: Record) -> tuple[npt.NDArray[Any] | None, str]:
    if not record.stored:
        return None, f"the {side} kept no tensor of it"
    try:
        return dump.tensor(record), ""
    except DumpError as error:
        return None, f"{side}: {error.message}"
