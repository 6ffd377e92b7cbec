"""A suspect that the target has run once more, alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from precflow.diagnosis.evidence.pieces import Evidence

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison
    from precflow.diagnosis.evidence.tensors import ObservedCall

EVIDENCE = {
    "alone_error": Evidence(
        "error when it runs alone",
        "Relative, on the target, at the inputs of either side; with `whatif=[suspects_alone]` only.",
    ),
    "alone_fault": Evidence(
        "wrong when it runs alone", "By the same limit as calls of the run; absent if it was not run alone."
    ),
    "alone_same_bits": Evidence(
        "alone it gives what was recorded", "With the target's own inputs, bit for bit; absent if it is not known."
    ),
}


def gather(run: Comparison, call: ObservedCall) -> dict[str, Any]:
    """Return what running it alone has shown; nothing if it was not run alone."""
    alone = {one.record: one for one in run.alone if one.alone is not None}.get(call.suspect.record)
    if alone is None:
        return {}
    evidence = {"alone_error": alone.alone, "alone_fault": alone.is_fault, "alone_same_bits": alone.same_bits}
    return {name: value for name, value in evidence.items() if value is not None}
