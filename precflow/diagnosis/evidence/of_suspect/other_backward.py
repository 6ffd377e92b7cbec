"""A change in the backward of a suspect that gives its wrong gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from precflow.diagnosis.evaluation import name_call
from precflow.diagnosis.evidence.pieces import Evidence

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison
    from precflow.diagnosis.evidence.tensors import ObservedCall

EVIDENCE = {
    "backward_change": Evidence(
        "its backward is computed exactly with",
        "The one change that gives the target's gradients when the backward is computed again with it. bfloat16, float16:"
        " results of functions are rounded to it. operands_11, operands_10, operands_7: products get that many explicit bits."
        " scaled: one factor. form_ and a name: another form of one function's backward. Empty if none does, absent if none"
        " was tried.",
    ),
    "backward_share": Evidence(
        "explained by that change", "Share of the error's energy.", tests="a change in the backward", unit="%"
    ),
    "backward_left": Evidence(
        "left by that change", "In units of the reference's own error: near 1 if nothing but rounding is left."
    ),
    "backward_factor": Evidence("factor of the gradients", "Fitted where they are scaled; 1 otherwise."),
    "backward_at": Evidence("in the backward of", "Functions of which that may be said, in order of the forward."),
    "backward_other_share": Evidence("explained by another change", "Largest share of the other kinds of changes.", unit="%"),
}


def gather(run: Comparison, call: ObservedCall) -> dict[str, Any]:
    """Return the change; nothing without one."""
    name = name_call(call.reference)
    found = next((one for one in run.alternatives if name in one.calls), None)
    if found is None:
        return {}
    return {
        "backward_change": found.change,
        "backward_share": found.share,
        "backward_left": found.left,
        "backward_factor": found.factor,
        "backward_at": ", ".join(found.operators),
        "backward_other_share": found.other_share,
    }
