"""Products of a suspect's kind that agree: a switch such as TF32 would have changed them too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from precflow.diagnosis.evidence.operator_families import find_family
from precflow.diagnosis.evidence.pieces import Evidence

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison
    from precflow.diagnosis.evidence.tensors import ObservedCall

EVIDENCE = {
    "exact_products": Evidence(
        "earlier products that agree", "Products of the same kind that agree to 18 bits or more, before this one."
    ),
}

_EXACT = 2.0**-18  # relative error; with operands of 11 bits a product has 2^-14 to 2^-11


def gather(run: Comparison, call: ObservedCall) -> dict[str, Any]:
    """Return how many there are before it, if it is a product."""
    suspect = call.suspect
    if find_family(suspect.operator) != "matmul":
        return {}
    convolves = suspect.operator.startswith("conv")
    count = 0
    for measure in run.measures:
        error = measure.metrics.get("relative_l2")
        is_product = find_family(measure.operator) == "matmul" and measure.operator.startswith("conv") == convolves
        if is_product and measure.order < suspect.order and error is not None and error < _EXACT:
            count += 1
    return {"exact_products": count}
