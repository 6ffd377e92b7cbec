"""Where NaN, infinity and saturation of narrow floats begin on each side, by order and data flow, from statistics.

A call *produces* a kind if its output has it and none of its inputs does. Negative infinities and fill values that the other
side has in the same number are masks, not overflow, and so are negative infinities where a call only places them, as logits
processors do, of however many elements on each side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precflow.agent.contract import parse_identity
from precflow.comparison.estimated.kept_evidence import KeptTensor, sum_tensor
from precflow.comparison.measure import Measure
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.diagnosis.nodes import CallKey, key_of
from precflow.dumps.dtypes import real_part
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record, Statistics
from precflow.errors import DumpError

KINDS = ("saturated", "infinity", "nan")
READ = 200  # most tensors of a side that are read because no statistics were kept

# Types whose largest value is reached in practice: 65504 in float16, but 3e38 in bfloat16 and float32.
_NARROW = frozenset({"float16", "float8_e4m3fn", "float8_e5m2"})
_PLACING = frozenset(
    "masked_fill masked_fill_ where index_fill index_fill_ masked_scatter setitem full full_like fill_".split()
)
_WORDS = {"saturated": "{} at the largest value of their type", "infinity": "{} infinite", "nan": "{} NaN"}

EVIDENCE = {
    "overflow_reference": Evidence(
        "overflow on the reference starts at", "First call that makes saturated values, infinity and NaN, each with its count."
    ),
    "overflow_target": Evidence("overflow on the target starts at", "The same on the target."),
    "overflow_both": Evidence("the same call on both sides", "Calls that are the first to make a kind on both sides."),
    "overflow_kind": Evidence(
        "first on the target only", "`saturated`, `infinity` or `nan`: the first kind that only the target has."
    ),
    "overflow_starts": Evidence("where that begins", "Module and operator."),
    "overflow_ends": Evidence("kinds that follow", "Further kinds that only the target has, in order."),
}


@dataclass(frozen=True, slots=True)
class Producer:
    """The first call of one side that makes a kind out of inputs without it.

    Attributes:
        kind: One of ``KINDS``.
        name: Module and operator.
        key: Rank, step and order of the call.
        count: Elements of its output.
    """

    kind: str
    name: str
    key: CallKey
    count: int

    @property
    def text(self) -> str:
        """Name and count in words."""
        return f"{self.name}: {_WORDS[self.kind].format(self.count)}"


def trace_sides(reference: Dump, target: Dump, measures: Sequence[Measure]) -> tuple[OverflowTrace, OverflowTrace]:
    """Return what both sides hold that is not an ordinary number.

    Args:
        reference: Dump of the reference.
        target: Dump of the target.
        measures: All pairs; where no statistics were kept, they tell which tensors are worth reading.
    """
    suspicious = {measure.record for measure in measures if measure.counts.get("nonfinite") or measure.counts.get("sentinel")}
    return OverflowTrace(reference, suspicious), OverflowTrace(target, suspicious)


def gather(reference: OverflowTrace, target: OverflowTrace) -> dict[str, Any]:
    """Return the evidence about overflow, by the names of ``names.EVIDENCE``.

    Args:
        reference: What the reference holds.
        target: What the target holds.
    """
    here, there = reference.find_producers(target), target.find_producers(reference)
    alone = sorted((there[kind] for kind in there.keys() - here.keys()), key=_order)
    both = sorted((there[kind] for kind in there.keys() & here.keys()), key=_order)
    return {
        "overflow_reference": [producer.text for producer in sorted(here.values(), key=_order)],
        "overflow_target": [producer.text for producer in sorted(there.values(), key=_order)],
        "overflow_both": [producer.name for producer in both if here[producer.kind].name == producer.name],
        **({"overflow_kind": alone[0].kind, "overflow_starts": alone[0].name} if alone else {}),
        "overflow_ends": [producer.kind for producer in alone[1:]],
    }


def _order(producer: Producer) -> tuple[int, int, int, int]:
    return (*producer.key, KINDS.index(producer.kind))


class OverflowTrace:
    """What each record of one side holds that is not an ordinary number.

    Args:
        dump: The dump.
        suspicious: Identities of the records whose tensors are read if no statistics were kept.
        most: Most tensors that are read; ``READ`` by default.

    Attributes:
        calls: By rank, step and order.
    """

    def __init__(self, dump: Dump, suspicious: set[str], *, most: int | None = None) -> None:
        self._dump = dump
        self._suspicious = suspicious
        self._modules = {parse_identity(record).module for record in suspicious}
        self._left = READ if most is None else most  # tensors that may still be read
        self._known: dict[str, Statistics | None] = {}  # by content id
        self.calls = sorted(dump.calls(), key=key_of)
        self._masked: dict[str, int] = {}  # fill values and -inf of each output that has any
        for record in (record for call in self.calls for record in call.outputs):
            known = self._statistics(record)
            if known is not None and (masked := known.sentinel - (known.high or 0) + known.negative_infinity):
                self._masked[record.text] = masked

    def find_producers(self, other: OverflowTrace) -> dict[str, Producer]:
        """Return the first producer of each kind that this side has."""
        producers: dict[str, Producer] = {}
        for call in self.calls:
            for kind, count in self._count_outputs(call, other._masked).items():
                if kind in producers:
                    continue
                # A NaN that is made of an infinity (inf - inf) counts as produced here: infinity arrives, but no NaN.
                arriving = (name for record in call.inputs for name, number in self._count(record, None) if number)
                if kind not in arriving:
                    producers[kind] = Producer(kind, call.name, key_of(call), count)
            if len(producers) == len(KINDS):
                break
        return producers

    def is_nonfinite(self, record: Record) -> bool:
        """Tell whether a record is known to have NaN or an infinity."""
        known = self._statistics(record)
        return known is not None and known.nonfinite > 0

    def _count_outputs(self, call: Call, masked: Mapping[str, int]) -> dict[str, int]:
        counts: dict[str, int] = dict.fromkeys(KINDS, 0)
        given = [self._statistics(record) for record in call.inputs]
        is_mask = call.operator.removeprefix("aten.") in _PLACING or any(
            one.negative_infinity for one in given if one is not None
        )
        for record in call.outputs:
            for kind, count in self._count(record, None if is_mask else masked.get(record.text, 0) if masked else 0):
                counts[kind] += count
        return {kind: count for kind, count in counts.items() if count}

    def _count(self, record: Record, masked: int | None) -> Iterator[tuple[str, int]]:
        """Yield how many elements are of each kind.

        Args:
            record: An input or output of this side.
            masked: Number of fill values and -inf that the other side has there; ``None`` stands for the same number.
        """
        known = self._statistics(record)
        if known is None:
            return
        # A mask holds -inf on one device and the lowest fill value on another: equal numbers of both together are one mask.
        low = known.sentinel - (known.high or 0)
        negative = 0 if masked is None or masked == low + known.negative_infinity else known.negative_infinity
        yield "nan", known.nan
        yield "infinity", known.positive_infinity + negative
        if real_part(record.dtype) in _NARROW:
            yield "saturated", max(0, known.saturated - low)

    def _statistics(self, record: Record) -> Statistics | None:
        """Return the statistics of a record; those of a suspicious tensor are computed if they were not kept."""
        if record.statistics is not None:
            return record.statistics
        if record.content and record.content in self._known:
            return self._known[record.content]
        if not record.stored or self._left <= 0 or record.whose.module not in self._modules:
            return None
        if record.text not in self._suspicious:
            return None
        self._left -= 1
        try:
            known = sum_tensor(self._dump.tensor(record), KeptTensor(record.dtype, record.shape, record.share)).statistics
        except DumpError:
            known = None  # the record's status already says that it is unreadable
        self._known[record.content] = known
        return known
