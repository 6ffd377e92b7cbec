"""NaN and infinity in a step that one side kept because of them, and that the other one has dropped.

A long run keeps its last steps, and those around its first NaN (``capture.keep_last``). If only one side has a NaN, the other
has dropped these steps: nothing of them can be compared, and every later step is full of NaN that came from there. Where it
began, the records of the one side tell by themselves: the other side keeps such steps too, and so had none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from precflow.agent.contract import parse_identity
from precflow.diagnosis.evidence.overflows.overflow import OverflowTrace, Producer
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.diagnosis.findings import Region, Suspect
from precflow.diagnosis.nodes import key_of
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call
from precflow.dumps.views.derived import Excerpt

_READ = 2000  # most tensors that are read where no statistics were kept
_BROKEN = ("infinity", "nan")

EVIDENCE = {
    "broken_side": Evidence(
        "side with NaN in a step that the other dropped",
        "Such steps are kept (`capture.keep_last`), so that the other side had none; absent without one.",
    ),
    "broken_at": Evidence("NaN begins there at", "Module and operator of the first call that makes NaN or infinity."),
    "broken_text": Evidence("what it gives", "Call, number of elements and step."),
}


@dataclass(frozen=True)
class FirstBroken:
    """The first call of one side that makes NaN or infinity, in a step that the other side has dropped.

    Attributes:
        side: ``reference`` or ``target``.
        producer: What it makes, and how many elements.
        call: The call.
    """

    side: str
    producer: Producer
    call: Call

    @property
    def text(self) -> str:
        """Place, number and step in words."""
        return self.producer.text if self.call.step else f"{self.producer.text} in step 0"  # a name tells any other step


def find_first_broken(reference: Dump, target: Dump) -> FirstBroken | None:
    """Return where NaN or infinity begins in a step that only one side kept; ``None`` if there is none, or no such step."""
    found = [
        one
        for side, dump, other in (("target", target, reference), ("reference", reference, target))
        if other.header.dropped and (one := _find_in(side, dump, other)) is not None
    ]
    return min(found, key=lambda one: (one.call.step, one.side != "target"), default=None)


def describe_kept_alone(reference: Dump, target: Dump) -> list[str]:
    """Say why a run cannot be aligned if a side has kept steps around a NaN that the other one has dropped."""
    first = find_first_broken(reference, target)
    if first is None:
        return []
    other = "reference" if first.side == "target" else "target"
    return [f"the {first.side} kept {first.text}, and the {other} has dropped that step (capture.keep_last)"]


def blame_first_broken(region: Region, first: FirstBroken | None) -> Region:
    """Return a region that begins where NaN does, in a step that one side has dropped; suspects of later steps follow."""
    if first is None:
        return region
    step, call = first.call.step, first.call
    other = "reference" if first.side == "target" else "target"
    why = f"the first to give {first.text} of the {first.side}, which the {other} has dropped: its steps were finite"
    record = call.outputs[0].text
    suspects = [one for one in region.suspects if parse_identity(one.record).step < step]
    left_out = {one.record for one in region.suspects} - {one.record for one in suspects}
    roles = {
        record: "inherits" if role == "introduces" and record in left_out else role
        for record, role in (region.roles or {}).items()
    }
    every = (*suspects, Suspect.of(call, record, 1.0, why))
    return replace(region, start=every[0].name, suspects=every, roles=roles)


def gather_first_broken(first: FirstBroken | None) -> dict[str, Any]:
    """Return the evidence, by the names of ``names.EVIDENCE``; nothing without any."""
    return {} if first is None else {"broken_side": first.side, "broken_at": first.producer.name, "broken_text": first.text}


def _find_in(side: str, dump: Dump, other: Dump) -> FirstBroken | None:
    dropped = other.header.dropped_steps
    calls = [call for call in dump.calls() if (call.rank, call.step) in dropped]
    if not calls:
        return None
    records = {record.text for call in calls for record in (*call.inputs, *call.outputs)}
    producers = OverflowTrace(Excerpt(dump, calls), records, most=_READ).find_producers(
        OverflowTrace(Excerpt(other, []), set())
    )
    first = min((producers[kind] for kind in _BROKEN if kind in producers), key=lambda one: one.key, default=None)
    return None if first is None else FirstBroken(side, first, next(call for call in calls if key_of(call) == first.key))
