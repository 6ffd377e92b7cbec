"""Compares two dumps: one measure with every metric for each pair of output records. Limits are the judgement's business.

Pairs of which both tensors were stored are read (``reading.py``, in batches, by an executor); of the others metrics are exact,
estimated or bounded by what was kept (``estimated/estimates.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from precflow.comparison.batches import Batch, FinishedBatches, count_elements, make_batches
from precflow.comparison.estimated import estimates
from precflow.comparison.estimated.kept_evidence import common_constants
from precflow.comparison.executors.choose import Executor
from precflow.comparison.executors.threads import Threads
from precflow.comparison.fused.summarize import DEFAULT_BLOCK, worth_compiling
from precflow.comparison.measure import NOTHING, Measure, fill
from precflow.comparison.metric_values import MetricValues
from precflow.comparison.pairing import Pair, describe_pair, find_calls, pair_records
from precflow.comparison.reading import PairResult, Reading, ReadOptions
from precflow.comparison.user_metrics import MetricMakers
from precflow.dumps.garbage import collector_off, freezing_allowed
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Record
from precflow.dumps.views.paired import list_ruled

_NEEDS_TENSORS = "needs the tensors of both sides"
Contents = tuple[str, str]


@freezing_allowed()
def compare(  # noqa: PLR0913  each is needed, and named at the call
    reference: Dump,
    target: Dump,
    *,
    executor: Executor | None = None,
    own: MetricMakers | None = None,
    kept: Path | None = None,
    block: int = DEFAULT_BLOCK,
    constants: tuple[float, ...] | None = None,
    advance: Callable[[int, int], None] = lambda *_: None,
) -> list[Measure]:
    """Measure every output record of two dumps.

    A step that one side has dropped (``keep_last``) is compared with nothing, and its records are no missing ones. Memory is
    bounded, whatever the size of the tensors. A module and its last operator have the same output; tensors with the
    same content ids are read once for all such records.

    Args:
        reference: Dump of the reference.
        target: Dump of the target.
        executor: Reads the tensors; threads of this process by default. Results do not depend on it.
        own: The user's metrics, by name.
        kept: Folder for finished batches; a comparison of the same dumps that was killed continues after them.
        block: Elements that NumPy widens at a time; it changes no more than the rounding of sums.
        constants: Constants that count as mask fills; by default those that both dumps were recorded with.
        advance: Called with the pairs of tensors that were read, and with all that have to be.

    Returns:
        Measures in the reference's order, then records that only the target has.
    """
    calls = find_calls(reference, target)
    rules = {**list_ruled(reference), **list_ruled(target)}
    known = constants or common_constants(reference, target)
    with collector_off():  # it would walk over all records again and again
        pairs = [
            joined
            for joined in pair_records(_list_outputs(reference), _list_outputs(target))
            if not _is_of_dropped_step(joined, reference, target)
        ]
        measures = [describe_pair(joined, calls, rules) for joined in pairs]
    del calls  # 0.2 kB a record
    readings: dict[Contents, Reading] = {}
    waiting: dict[int, Reading] = {}
    for number, (measure, joined) in enumerate(zip(measures, pairs, strict=True)):
        left, right = joined.reference, joined.target
        if left is None or right is None or not _is_compared(measure) or estimates.needs_estimate(measure, left, right):
            continue
        reading = Reading(left, right)
        waiting[number] = readings.setdefault(reading.contents, reading)
    options = ReadOptions(
        worth_compiling(count_elements(reading.reference.shape) for reading in readings.values()), block, own or {}, known
    )
    finished, results, unread, shared = FinishedBatches(kept), dict[int, PairResult](), list[Batch](), _Shared()
    for batch in make_batches(list(readings.values()), options):
        earlier = finished.read(batch)  # by an earlier run that was killed
        if earlier is None:
            unread.append(batch)
        else:
            results.update(_index_by_reading(batch, earlier, shared))
    for batch, new in (executor or Threads()).run(unread, reference, target, options):
        finished.write(batch, new)
        results.update(_index_by_reading(batch, new, shared))
        advance(len(results), len(readings))
    with collector_off():
        for number, measure in enumerate(measures):  # each takes the place of what was known before, which is many bytes
            measures[number] = (
                _add_result(measure, results[id(waiting[number])])
                if number in waiting
                else _estimate(measure, pairs[number], reference, target, options)
            )
    return measures


def _is_of_dropped_step(joined: Pair, reference: Dump, target: Dump) -> bool:
    """Tell whether a record has no partner because the other side has recorded its step and deleted it again."""
    alone, other = (joined.target, reference) if joined.reference is None else (joined.reference, target)
    if not other.header.dropped or alone is None or (joined.reference is not None and joined.target is not None):
        return False
    return (alone.whose.rank, alone.whose.step) in other.header.dropped_steps


def _list_outputs(dump: Dump) -> Iterator[Record]:
    return (record for call in dump.calls() for record in call.outputs)


def _is_compared(measure: Measure) -> bool:
    return not measure.movement and measure.join == "paired"


def _index_by_reading(batch: Batch, results: Sequence[PairResult], shared: _Shared) -> Iterator[tuple[int, PairResult]]:
    """Yield the ``id`` of each reading and its result, in as little memory as there can be: all are kept until the end."""
    for reading, result in zip(batch.readings, results, strict=False):
        yield (
            id(reading),
            msgspec.structs.replace(result, metrics=MetricValues(result.metrics), counts=shared.share(result.counts)),
        )


class _Shared(dict[tuple[int, ...], dict[str, int]]):
    """Counts that many measures have in common: tensors of one shape without a special value. No caller changes them."""

    def share(self, counts: dict[str, int]) -> dict[str, int]:
        """Return the counts that an earlier measure has, if they are equal; else these."""
        return self.setdefault(tuple(counts.values()), counts)


def _add_result(measure: Measure, result: PairResult) -> Measure:
    """Put the numbers into a measure that was made here; if a part of the tensors was kept they are those of the part."""
    if result.problem:
        return fill(measure, join="unreadable", reason=result.problem)
    # `bitwise_equal` is about the whole tensor. Its bits differ, even if those of the kept part do not: equal tensors, by their
    # content ids, are not read.
    return fill(
        measure,
        evidence="tensors",
        metrics=result.metrics if measure.share >= 1 else {**result.metrics, "bitwise_equal": 0.0},
        counts=result.counts,
        warnings=result.warnings,
        peak=result.peak,
        row_peak=result.row_peak,
        absent=result.absent or NOTHING,
    )


def _estimate(measure: Measure, joined: Pair, reference: Dump, target: Dump, options: ReadOptions) -> Measure:
    """Return the measure of a pair that is not read, with what follows from the evidence that was kept of it."""
    if joined.reference is None or joined.target is None or not _is_compared(measure):
        return measure
    measured = estimates.estimate_pair(measure, joined.reference, joined.target, reference, target, options.constants)
    if measured.join != "paired" or not options.own:
        return measured
    if measured.equal:
        return fill(measured, metrics={**measured.metrics, **dict.fromkeys(options.own, 0.0)})
    return fill(measured, absent={**measured.absent, **dict.fromkeys(options.own, _NEEDS_TENSORS)})
