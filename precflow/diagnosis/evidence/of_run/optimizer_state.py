"""Whether one side's optimizer begins anew, as after a checkpoint that was resumed without its state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from precflow.agent.contract import OPTIMIZER
from precflow.comparison.fused.value_classes import widen
from precflow.diagnosis.evaluation import pair_calls
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call
from precflow.errors import DumpError

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison

EVIDENCE = {
    "state_anew": Evidence(
        "begins its optimizer's state anew", "Side whose optimizer counts its steps from this run on, while the other goes on."
    ),
    "state_counts": Evidence("steps of the optimizer", "Its own count after the first recorded step, `reference / target`."),
}

_COUNT = "step"


def gather(run: Comparison) -> dict[str, Any]:
    """Return the side that begins anew; nothing unless all parameters of a step say so."""
    if run.blockers:
        return {}
    pairs = pair_calls(run.reference, run.target, OPTIMIZER)
    first = min((pair.reference.step for pair in pairs), default=0)
    counts = {
        (_read_count(run.reference, pair.reference), _read_count(run.target, pair.target))
        for pair in pairs
        if pair.reference.step == first
    }
    if len(counts) != 1:
        return {}
    here, there = counts.pop()
    if here is None or there is None or here == there or min(here, there) != first + 1:
        return {}
    return {"state_anew": "target" if there < here else "reference", "state_counts": f"{here} / {there}"}


def _read_count(dump: Dump, call: Call) -> int | None:
    """Return how often an optimizer has stepped a parameter, as it counts itself: a tensor of its state, or a setting."""
    ending = f"{call.outputs[0].index}.{_COUNT}" if call.outputs else ""
    record = next((each for each in call.outputs if each.index == ending), None)
    if record is not None and record.stored and not record.part:
        try:
            return round(float(widen(np.ascontiguousarray(dump.tensor(record)).reshape(-1))[0]))
        except (DumpError, IndexError, ValueError, OverflowError):  # damaged, or no number
            return None
    given = call.arguments.get(_COUNT, "")
    return int(given) if given.isdigit() else None
