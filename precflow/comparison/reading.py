"""Reads a pair of tensors once: one pass sums it up, checks it by its content ids, and feeds the user's own metrics.

Reading is what takes the time: a dump may be larger than memory, so each byte is fetched once and everything is computed while
it is in the cache. A pair is cut at the same elements whoever reads it. So results are the same, to the last bit, for any
number of threads, under any executor, and after a resumed run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from precflow.agent.contract import FILLS
from precflow.comparison.formulas import find_peak, measure_all
from precflow.comparison.fused.summarize import DEFAULT_BLOCK, PairOfTensors
from precflow.comparison.fused.summary import Summary
from precflow.comparison.user_metrics import MetricMakers, MetricTally
from precflow.dumps.digest import Words, id_of_lanes
from precflow.dumps.mapped_pages import release
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Record
from precflow.errors import DumpError

# Elements that one thread reads at a time: 16 MiB a side of float32. A multiple of the blocks that content ids are made of, so
# that each part gives whole checksums.
PART = 1 << 22


class Reading(msgspec.Struct, frozen=True):
    """Two records of one shape whose tensors have to be read.

    Attributes:
        reference: The reference's.
        target: The target's.
    """

    reference: Record
    target: Record

    @property
    def contents(self) -> tuple[str, str]:
        """Content ids of both: a module and its last operator have the same output, which is read once for both."""
        return self.reference.key, self.target.key


class PairResult(msgspec.Struct, frozen=True):
    """What reading a pair gave: plain data that is sent between processes and kept in files.

    Attributes:
        metrics: Name -> number, the user's own behind ours.
        counts: Classes of values.
        warnings: What a reader of the metrics should know.
        absent: The user's own metrics that gave no number -> why.
        peak: See :class:`precflow.comparison.measure.Measure`.
        row_peak: The same.
        problem: Why the pair could not be read; ``""`` if it was read.
    """

    metrics: Mapping[str, float] = {}
    counts: dict[str, int] = {}
    warnings: tuple[str, ...] = ()
    absent: dict[str, str] = {}
    peak: float = 0.0
    row_peak: float = 0.0
    problem: str = ""


@dataclass(frozen=True)
class ReadOptions:
    """How pairs are read.

    Attributes:
        compiled: Use the compiled pass if there is one for the types.
        block: Elements that NumPy widens to float64 at a time.
        own: The user's metrics.
        constants: Constants that count as mask fills.
    """

    compiled: bool = False
    block: int = DEFAULT_BLOCK
    own: MetricMakers = field(default_factory=dict)
    constants: tuple[float, ...] = FILLS


@dataclass(frozen=True, slots=True)
class PartResult:
    """What one range of a pair gave: its summary, checksums of both sides if they are checked, the user's metrics."""

    summary: Summary
    lanes: tuple[Words, Words] | None
    tally: MetricTally


class OpenPair:
    """The mapped tensors of a pair; several threads may read ranges of it.

    Args:
        reading: The records.
        reference: Dump of the reference.
        target: Dump of the target.
        options: How it is read.

    Raises:
        DumpError: A tensor is missing or cannot be read.
    """

    def __init__(self, reading: Reading, reference: Dump, target: Dump, options: ReadOptions) -> None:
        self._options = options
        self._sides = (("reference", reference, reading.reference), ("target", target, reading.target))
        self._whole = not (reading.reference.part or reading.target.part)
        first, second = (self._view(*side) for side in self._sides)
        self._bytes = tuple(np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (first, second))
        self._tensors = PairOfTensors(first, second, options.constants)

    @property
    def size(self) -> int:
        """Number of elements, parts of complex numbers counted singly."""
        return self._tensors.size

    def ranges(self) -> list[tuple[int, int]]:
        """Return the ranges to read, in order; an empty tensor has one empty range, so that it gets a summary too."""
        return [(start, min(start + PART, self.size)) for start in range(0, self.size, PART)] or [(0, 0)]

    def read(self, start: int, stop: int) -> PartResult:
        """Read one range."""
        options, tally = self._options, MetricTally(self._options.own)
        tally.read(self._tensors.reference[start:stop], self._tensors.target[start:stop])
        data = (
            tuple(side[self._byte_offset(side, start) : self._byte_offset(side, stop)] for side in self._bytes)
            if self._whole
            else None
        )
        summary, lanes = self._tensors.summary_and_lanes(start, stop, data, block=options.block, compiled=options.compiled)
        return PartResult(summary, lanes, tally)

    def views(self, start: int, stop: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return a range of both sides, for :func:`mapped_pages.release` once it has been read."""
        return self._tensors.reference[start:stop], self._tensors.target[start:stop]

    def finish(self, parts: Sequence[PartResult]) -> PairResult:
        """Merge the results of all ranges, given in order, and check that the bytes read are those that were recorded."""
        try:
            for number, side in enumerate(self._sides if self._whole else ()):
                self._check_content(*side, np.concatenate([part.lanes[number] for part in parts if part.lanes]))
        except DumpError as error:
            return PairResult(problem=error.message)
        summaries = [(*span, part.summary) for span, part in zip(self.ranges(), parts, strict=True)]
        summary, tally = self._tensors.settle(summaries, compiled=self._options.compiled), parts[0].tally
        for part in parts[1:]:
            tally.merge(part.tally)
        own, absent = tally.values()
        return summarize_result(summary, own, absent)

    def _view(self, side: str, dump: Dump, record: Record) -> npt.NDArray[Any]:
        """Return a tensor; an error names the side. Only whole tensors are checked while they are read, kept parts at once."""
        try:
            return dump.view(record) if self._whole else dump.tensor(record)
        except DumpError as error:
            raise DumpError(f"{side}: {error.message}") from error

    def _check_content(self, side: str, dump: Dump, record: Record, lanes: Words) -> None:
        try:
            dump.check(record, id_of_lanes(record.dtype, record.shape, lanes))
        except DumpError as error:
            raise DumpError(f"{side}: {error.message}") from error

    def _byte_offset(self, data: npt.NDArray[np.uint8], element: int) -> int:
        return data.size * element // self.size if self.size else 0


def read_pair(reading: Reading, sides: Mapping[str, Dump], options: ReadOptions) -> PairResult:
    """Read one pair in this thread."""
    try:
        pair = OpenPair(reading, sides["reference"], sides["target"], options)
    except DumpError as error:
        return PairResult(problem=error.message)
    parts = [pair.read(start, stop) for start, stop in pair.ranges()]
    release(*pair.views(0, pair.size))
    return pair.finish(parts)


def summarize_result(
    summary: Summary, own: Mapping[str, float] = MappingProxyType({}), absent: Mapping[str, str] = MappingProxyType({})
) -> PairResult:
    """Return the result of a pair from its summary and the user's metrics."""
    return PairResult(
        {**measure_all(summary), **own},
        count_classes(summary),
        list_warnings(summary),
        dict(absent),
        find_peak(summary),
        summary.rows.peak(),
    )


def count_classes(summary: Summary) -> dict[str, int]:
    """Return how many elements fell into each class of values, and how many found no partner of their class."""
    names = (
        "elements ordinary small sentinel nonfinite sentinel_mismatch other_fill saturated_mismatch nonfinite_mismatch "
        "small_mismatch infinity_for_sentinel"
    )
    fills = {"measured_fills": summary.fills.compared} if summary.fills else {}
    return {**{name: int(getattr(summary, name)) for name in names.split()}, **fills}


_WARNINGS: tuple[tuple[Callable[[Summary], int], str], ...] = (
    (
        lambda s: s.nonfinite - s.nonfinite_mismatch - s.infinity_for_sentinel,
        "{} NaN or Inf, equal in kind and place on both sides",
    ),
    (lambda s: s.infinity_for_sentinel, "{} places hold -inf on one side and a mask's fill value on the other"),
    (
        lambda s: s.fills.compared if s.fills else 0,
        "{} elements hold a mask's fill value on both sides and are measured by themselves",
    ),
    (
        lambda s: s.sentinel - s.other_fill - (s.fills.compared if s.fills else 0),
        "{} elements hold the extreme value of its own type on each side, as masks do, and enter no sum",
    ),
    (
        lambda s: s.small_mismatch,
        "{} elements are 0 or subnormal in the reference only: errors relative to single elements leave them out",
    ),
)


def list_warnings(summary: Summary) -> tuple[str, ...]:
    """Return what a reader of the metrics should know about the elements that they leave out."""
    return tuple(text.format(count) for counted, text in _WARNINGS if (count := counted(summary)))
