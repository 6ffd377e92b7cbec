"""Another computation that gives the target's output: another form of the operator, or operands of fewer bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from precflow.diagnosis.evaluation import name_call
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.diagnosis.explained import Alternative

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison
    from precflow.diagnosis.evidence.tensors import ObservedCall

EVIDENCE = {
    "operand_bits": Evidence(
        "bits of the operands that explain it", "11, 10 or 7 explicit bits of the significand; 0 if none explains the output."
    ),
    "operand_share": Evidence(
        "explained by those bits", "Share of the error's energy.", tests="operands of fewer bits", unit="%"
    ),
    "variant": Evidence(
        "computed exactly as",
        "The change with which float64 at the target's own inputs gives its output, such as gelu_tanh or terms_left_out;"
        " empty if none does, absent if none was tried.",
    ),
    "variant_share": Evidence(
        "explained by that", "Share of the error's energy.", tests="another form of the operator", unit="%"
    ),
    "variant_says": Evidence("so it", "What the operator does, for changes that no other rule describes."),
    "variant_detail": Evidence("more of that", "Which terms, which operand, or how far; empty if that says it all."),
}


def gather(run: Comparison, call: ObservedCall) -> dict[str, Any]:
    """Return what fits best; nothing if the call was not computed again."""
    explained = run.explain(name_call(call.reference))
    if explained is None:
        return {}
    evidence: dict[str, Any] = {}
    if "operands" in explained.tried:
        best = explained.choose("operands")
        evidence |= {"operand_bits": int(best.name.rpartition("_")[2]) if best.fits else 0, "operand_share": best.share}
    if "variant" in explained.tried:
        best = explained.choose("variant")
        fitting = best if best.fits else Alternative("variant", "", share=best.share)
        evidence |= {"variant_says": fitting.says} if fitting.says else {}
        evidence |= {"variant": fitting.name, "variant_share": fitting.share, "variant_detail": fitting.value}
    return evidence
