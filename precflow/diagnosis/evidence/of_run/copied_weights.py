"""Operators of the target that read a copy of a weight where the reference's read the weight itself.

An embedding that is tied to the output head is one tensor with two readers. A head that was packed, cached or converted once
has the right bits at the start; then the weight is trained and the copy is not, and the weight misses the copy's gradient::

    reference   (model) / linear    reads  x, embed.weight
    target      (model) / linear    reads  x, a tensor with the bits that embed.weight had at the start, in all steps

Who made the copy is in no record. That it stands still is: a later step reads the same bits, and the weight has moved.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from precflow.agent.contract import FORWARD, OUTSIDE
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison

EVIDENCE = {
    "copied_weights": Evidence(
        "copies of weights",
        "Up to five operators that read the weight on the reference, and a copy of it on the target.",
    ),
    "copied_weights_where": Evidence("where the first is read", "Module and operator."),
    "copied_weights_stale": Evidence(
        "of them not updated", "Copies that still have the same bits in a later step, after the weight has moved."
    ),
}

_SHOWN = 5
_Name = tuple[object, ...]  # of an input, without its step


class _Read(NamedTuple):
    """What an operator of the target reads in place of a weight, in one step."""

    step: int
    bits: str
    place: str


def gather(run: Comparison) -> dict[str, Any]:
    """Return the copies; nothing without one, or where no tensor was compared."""
    return {} if run.blockers else find_copies(run.reference, run.target)


def find_copies(reference: Dump, target: Dump) -> dict[str, Any]:
    """Return the copies by the names of ``EVIDENCE``; nothing without one.

    Args:
        reference: Dump of the reference.
        target: The target's.
    """
    copies: dict[tuple[str, _Name], list[_Read]] = defaultdict(list)
    for name, weight, read in _list_read_instead(reference, target):
        copies[weight, name].append(read)
    found: dict[tuple[str, str], bool] = {}
    for (weight, _), reads in copies.items():
        if weight in target.header.weights.entries and reads[0].bits == target.header.weights.entries[weight].content:
            place = reads[0].place, weight
            found[place] = found.get(place, False) or _is_stale(reads, _find_moved(target, weight))
    if not found:
        return {}
    stale = [place for place, is_stale in found.items() if is_stale]
    shown = stale or list(found)
    return {
        "copied_weights": [f"{place} reads a copy of {weight} on the target" for place, weight in shown[:_SHOWN]],
        "copied_weights_where": shown[0][0],
        "copied_weights_stale": len(stale),
    }


def _list_read_instead(reference: Dump, target: Dump) -> Iterator[tuple[_Name, str, _Read]]:
    """Yield, in order of the steps, which input it is, the weight that the reference reads, and what the target reads."""
    weights: dict[_Name, str] = {}
    for call, record in _list_inputs(reference):
        if record.weight and record.weight in target.header.weights.entries:
            weights[_name(call, record), call.step, record.shape] = record.weight
    for call, record in _list_inputs(target) if weights else ():
        # What a recorded call made of the weight, such as a cast, leads to the weight.
        weight = (
            "" if record.weight or record.source is not None else weights.get((_name(call, record), call.step, record.shape))
        )
        if weight and record.content:
            yield _name(call, record), weight, _Read(call.step, record.content, call.place)


def _list_inputs(dump: Dump) -> Iterator[tuple[Call, Record]]:
    return (
        (call, record)
        for call in dump.calls()
        if call.operator and call.phase == FORWARD and call.module != OUTSIDE
        for record in call.inputs
    )


def _name(call: Call, record: Record) -> _Name:
    return (call.module, call.call, call.operator, call.ordinal, record.index, call.rank)


def _find_moved(dump: Dump, weight: str) -> Mapping[int, float]:
    updates = dump.header.updates.get(weight)
    return {} if updates is None else updates.moved


def _is_stale(reads: list[_Read], moved: Mapping[int, float]) -> bool:
    """Tell whether a copy has the same bits in two steps, although the weight moved between them."""
    return any(
        one.bits == two.bits and any(moved.get(step, 0.0) > 0.0 for step in range(one.step, two.step))
        for one, two in itertools.pairwise(reads)
    )
