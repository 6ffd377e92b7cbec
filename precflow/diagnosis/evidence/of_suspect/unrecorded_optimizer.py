"""An update of a weight whose optimizer was not recorded, as other tools record none: its gradient, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from precflow.agent.contract import GRADIENT, OPTIMIZER
from precflow.diagnosis.evidence.pieces import Evidence

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison
    from precflow.diagnosis.evidence.tensors import ObservedCall

EVIDENCE = {
    "gradient_agrees": Evidence(
        "its gradient agrees",
        "Within its limits; only where an update is known by the weight of the next step, and not by the optimizer's call.",
    ),
}


def gather(run: Comparison, call: ObservedCall) -> dict[str, Any]:
    """Return whether the gradient agrees; nothing for other calls, and where the optimizer says how it was set."""
    if call.reference.phase != OPTIMIZER or call.reference.arguments:
        return {}
    gradient = call.suspect.record.replace(f"/{OPTIMIZER}.output.", f"/{GRADIENT}.output.", 1)
    status = next((one.status for one in run.judged if one.record == gradient), "")
    return {"gradient_agrees": status == "pass"} if status in {"pass", "fail"} else {}
