"""Whether backward goes further on one side: into modules whose forward ran on both.

Nothing but ``detach``, ``no_grad``, ``.data`` or ``requires_grad`` decides how far backward goes, and no forward shows it::

    reference   loss -> critic -> (detached)                 backward of critic
    target      loss -> critic -> generator                  backward of critic and generator
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from precflow.agent.contract import BACKWARD, FORWARD, GRADIENT, parse_identity
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.judgement.covered import UNPAIRED

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison

EVIDENCE = {
    "backward_alone": Evidence(
        "backward reaches on one side only",
        "First call or parameter with a gradient there alone, if modules of all unpaired records ran on both sides.",
    ),
    "backward_alone_side": Evidence("the side on which it does", "`reference` or `target`."),
}


def gather(run: Comparison) -> dict[str, Any]:
    """Return the first call that has a gradient on one side only, if that is all that is unpaired."""
    alone = {
        measure.record: judged.status
        for measure, judged in zip(run.measures, run.judged, strict=True)
        if judged.status in UNPAIRED
    }
    if run.blockers or len({*alone.values()}) != 1:
        return {}
    side = next(iter(alone.values())).removeprefix("unpaired_")
    here, there = (run.reference, run.target) if side == "reference" else (run.target, run.reference)
    ran = {(call.module, call.step, call.rank) for call in there.calls() if call.phase == FORWARD and not call.operator}
    identities = [parse_identity(record) for record in alone]
    if not all(
        one.phase in {BACKWARD, GRADIENT} and not one.operator and (one.module, one.step, one.rank) in ran for one in identities
    ):
        return {}
    first = next(call for call in here.calls() if any(record.text in alone for record in (*call.inputs, *call.outputs)))
    return {"backward_alone": first.name, "backward_alone_side": side}
