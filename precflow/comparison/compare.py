"""From two dumps to one measure a pair of output records: every metric, and no limit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from precflow.comparison import estimates
from precflow.comparison.measures import Measure
from precflow.comparison.metrics import measure_all
from precflow.comparison.pairing import Pair, pair
from precflow.comparison.rows import pieces
from precflow.comparison.samples import of_whole
from precflow.comparison.summarize import DEFAULT_BLOCK, WORTH_COMPILING, PairOfTensors
from precflow.comparison.summary import Summary, merge
from precflow.dumps.dtypes import is_floating
from precflow.dumps.reader import Dump
from precflow.dumps.records import Call, Record
from precflow.errors import DumpError

ABSENT = "(absent)"  # an argument that only the other side was given
_PART = 1 << 23  # elements that one thread reads at a stretch: 32 MiB a side of float32

Contents = tuple[str, str]
Owners = Mapping[int, Call]  # id() of an output record -> its call


@dataclass(frozen=True, slots=True)
class _Opened:
    """A measure under way: the tensors to read, or ``None`` where there is nothing to read and the measure is whole.

    ``contents`` are the content ids of both sides: a module and its last operator have the same, and are read once.
    """

    measure: Measure
    contents: Contents = ("", "")
    tensors: PairOfTensors | None = None


def compare(reference: Dump, target: Dump, *, threads: int = 0, block: int = DEFAULT_BLOCK) -> list[Measure]:
    """Measure every output record of two dumps.

    Memory is bounded by ``threads * block``, whatever the size of the tensors; a large tensor is read by several threads.

    Args:
        reference: Dump of the reference.
        target: Dump of the target.
        threads: How many; 0 is one a processor.
        block: Elements that are widened at a time.

    Returns:
        Measures in the reference's order, then records that only the target has. The number of threads changes nothing
        but the last bits of sums.
    """
    owners = {id(record): call for dump in (reference, target) for call in dump.calls() for record in call.outputs}
    pairs = pair(_outputs(reference), _outputs(target))
    threads = threads or os.cpu_count() or 1
    with ThreadPoolExecutor(threads) as pool:
        order = _spread(len(pairs), threads)
        in_order = dict(zip(order, pool.map(lambda place: _open(pairs[place], reference, target, owners), order), strict=True))
        opened = [in_order[place] for place in range(len(pairs))]
        distinct = {item.contents: item.tensors for item in opened if item.tensors is not None}
        tasks = [(contents, start, stop) for contents, tensors in distinct.items() for start, stop in _parts(tensors)]
        compiled = sum(tensors.size for tensors in distinct.values()) >= WORTH_COMPILING
        summaries = pool.map(lambda task: distinct[task[0]].summary(task[1], task[2], block=block, compiled=compiled), tasks)
        read: dict[Contents, list[Summary]] = {}
        for (contents, _, _), summary in zip(tasks, summaries, strict=True):
            read.setdefault(contents, []).append(summary)
    merged = {contents: merge(parts) for contents, parts in read.items()}
    return [_measured(item.measure, merged[item.contents]) if item.tensors else item.measure for item in opened]


def _outputs(dump: Dump) -> Iterator[Record]:
    return (record for call in dump.calls() for record in call.outputs)


def _spread(count: int, threads: int) -> list[int]:
    """Return the numbers below ``count``, neighbours far apart: threads then check different shards, and none waits.

    >>> _spread(5, 2)
    [0, 3, 1, 4, 2]
    """
    step = max(1, -(-count // threads))
    return [place for offset in range(step) for place in range(offset, count, step)]


def _parts(tensors: PairOfTensors) -> list[tuple[int, int]]:
    """Return the ranges that threads read; one without elements where there are none, so that it has a summary too."""
    return list(pieces(0, tensors.size, tensors.length, _PART)) or [(0, 0)]


def _open(joined: Pair, reference: Dump, target: Dump, owners: Owners) -> _Opened:
    """Fill in everything that is known without reading elements, and open the tensors where there are two to compare."""
    left, right = joined.reference, joined.target
    if left is None or right is None:
        return _Opened(_only_reference(left, owners) if left else _only_target(right, owners))
    measure = _paired(left, right, owners[id(left)], owners[id(right)])
    if measure.movement or measure.join != "paired":
        return _Opened(measure)
    if estimates.are_needed(measure, left, right):
        return _Opened(estimates.measured(measure, left, right, reference, target))
    try:
        first, second = _read("reference", reference, left), _read("target", target, right)
    except DumpError as error:
        return _Opened(replace(measure, join="unreadable", reason=error.message))
    return _Opened(measure, (left.content, right.content), PairOfTensors(first, first if measure.equal else second))


def _read(side: str, dump: Dump, record: Record) -> npt.NDArray[Any]:
    """Return a tensor; an error says on which side it is."""
    try:
        return dump.tensor(record)
    except DumpError as error:
        raise DumpError(f"{side}: {error.message}") from error


def _only_reference(record: Record, owners: Owners) -> Measure:
    call = owners[id(record)]
    return replace(
        _described(record, call),
        join="unpaired_reference",
        reason="only the reference has it: the target ran no such call, or got no such output from it",
        judged=not call.movement and is_floating(record.dtype),
        reference_dtype=record.dtype,
        reference_shape=record.shape,
        site=call.site,
    )


def _only_target(record: Record | None, owners: Owners) -> Measure:
    assert record is not None
    call = owners[id(record)]
    return replace(
        _described(record, call),
        join="unpaired_target",
        reason="only the target has it: the reference ran no such call, or got no such output from it",
        judged=not call.movement and is_floating(record.dtype),
        target_dtype=record.dtype,
        target_shape=record.shape,
        target_site=call.site,
    )


def _described(record: Record, call: Call) -> Measure:
    return Measure(
        record=record.text,
        name=call.name,
        module=call.module,
        operator=call.operator,
        level=call.level,
        phase=call.phase,
        order=call.order,
        join="paired",
        movement=call.movement,
    )


def _paired(left: Record, right: Record, call: Call, other: Call) -> Measure:
    movement = call.movement or other.movement
    shapes = "" if left.shape == right.shape else f"{list(left.shape)} on the reference, {list(right.shape)} on the target"
    return replace(
        _described(left, call),
        join="shape" if shapes else "paired",
        reason=shapes,
        movement=movement,
        judged=not movement and (is_floating(left.dtype) or is_floating(right.dtype)),
        reference_dtype=left.dtype,
        target_dtype=right.dtype,
        reference_shape=left.shape,
        target_shape=right.shape,
        share=left.share,
        equal=bool(left.content) and left.content == right.content and left.dtype == right.dtype,
        site=call.site,
        target_site=other.site,
        arguments=_different(call.arguments, other.arguments),
    )


def _different(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the non-tensor arguments that differ: name -> (reference, target)."""
    values = {name: (first.get(name, ABSENT), second.get(name, ABSENT)) for name in {**first, **second}}
    return {name: both for name, both in values.items() if both[0] != both[1]}


def _measured(measure: Measure, summary: Summary) -> Measure:
    told = replace(measure, evidence="tensors", counts=counts(summary), warnings=warnings(summary))
    return of_whole(replace(told, metrics=measure_all(summary)))


def counts(summary: Summary) -> dict[str, int]:
    """Return how many elements fell into each class of values, and how many found no partner of their class."""
    names = (
        "elements ordinary small sentinel nonfinite sentinel_mismatch nonfinite_mismatch small_mismatch infinity_for_sentinel"
    )
    return {name: int(getattr(summary, name)) for name in names.split()}


_WARNINGS: tuple[tuple[Callable[[Summary], int], str], ...] = (
    (
        lambda s: s.nonfinite - s.nonfinite_mismatch - s.infinity_for_sentinel,
        "{} NaN or Inf, equal in kind and place on both sides",
    ),
    (lambda s: s.infinity_for_sentinel, "{} places hold -inf on one side and a mask's fill value on the other"),
    (lambda s: s.sentinel - s.sentinel_mismatch, "{} elements hold a mask's fill value on both sides and enter no sum"),
    (
        lambda s: s.small_mismatch,
        "{} elements are 0 or subnormal in the reference only: errors relative to single elements leave them out",
    ),
)


def warnings(summary: Summary) -> tuple[str, ...]:
    """Return what a reader of the metrics should know about the elements that they leave out."""
    return tuple(text.format(count) for counted, text in _WARNINGS if (count := counted(summary)))
