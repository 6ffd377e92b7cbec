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
        "error left with that change", "In units of the reference's own error: near 1 if nothing but rounding is left."
    ),
    "backward_factor": Evidence("factor of the gradients", "Fitted where they are scaled; 1 otherwise."),
    "backward_at": Evidence("in the backward of", "Functions to which that applies, in forward order."),
    "backward_other_share": Evidence("explained by another change", "Largest share of the other kinds of changes.", unit="%"),
}


_NEARLY = 0.5  # of what the best change leaves, relative to what it explains: places that are as good


def gather(run: Comparison, call: ObservedCall) -> dict[str, Any]:
    """Return the change; nothing without one."""
    explained = run.explain(name_call(call.reference))
    if explained is None or "backward" not in explained.tried:
        return {}
    found = explained.list_told("backward")
    if not found:
        return {"backward_change": ""}
    best = found[0]
    room = _NEARLY * (1.0 - best.share)
    places = {one.function: one.operator for one in found if one.name == best.name and one.share >= best.share - room}
    evidence = {
        "backward_change": best.name if best.fits else "",
        "backward_share": best.share,
        "backward_left": best.left,
        "backward_factor": best.factor,
        "backward_at": ", ".join(dict.fromkeys(places[number] for number in sorted(places))),
        "backward_other_share": max((one.share for one in found if one.name != best.name), default=0.0),
    }
    return {name: value for name, value in evidence.items() if value is not None}
