"""Whether the gradient that the loss leaves at the model's output differs already: then no module is to blame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from precflow.diagnosis.evidence.of_run.micro_batches import pair_arriving
from precflow.diagnosis.evidence.pieces import Evidence

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison

EVIDENCE = {
    "loss_gradient": Evidence(
        "gradient that the loss leaves at the model's output",
        "Call at which it arrives, if it differs already and everything before it agrees; else absent.",
    ),
}


def gather(run: Comparison) -> dict[str, Any]:
    """Return where that gradient arrives, if the error starts with it."""
    if not run.region.suspects or run.blockers or not run.region.suspects[0].arrives:
        return {}
    first = run.region.suspects[0]
    arriving = {record.known for record, _ in pair_arriving(run.reference, run.target) if record.known}
    given = next(
        (
            record
            for call in run.reference.calls()
            if call.module == first.module and not call.operator
            for record in call.inputs
            if record.text == first.arrives
        ),
        None,
    )
    return {"loss_gradient": first.name} if given is not None and given.known in arriving else {}
