"""Whether the loss, or the gradient that it leaves at the model's output, differs behind a forward that agrees.

Then no module is to blame.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from precflow.agent.contract import BACKWARD, ROOT_MODULE, parse_identity
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.dumps.records import Call
from precflow.judgement.judge import FIRST_LOSS

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison

EVIDENCE = {
    "loss_gradient": Evidence(
        "gradient that the loss leaves at the model's output",
        "Call at which it arrives, if it differs already and everything before it agrees; else absent.",
    ),
    "loss_alone": Evidence(
        "the loss of the first step differs, and its forward agrees",
        "Every record of that forward was compared, or this is absent.",
    ),
}


def gather(run: Comparison) -> dict[str, Any]:
    """Return where the error starts with the loss's gradient, and whether the first loss itself differs."""
    fails = run.verdict is not None and run.verdict.standards.get(FIRST_LOSS) is False
    return {**_find_gradient(run), **({"loss_alone": True} if fails and not run.blockers else {})}


def _find_gradient(run: Comparison) -> dict[str, Any]:
    """Return where that gradient arrives, if the error starts with it, in whatever step that is."""
    if not run.region.suspects or run.blockers or not run.region.suspects[0].arrives:
        return {}
    first = run.region.suspects[0]
    start = parse_identity(first.arrives)
    are_several = not any(call.module == ROOT_MODULE for call in run.reference.calls())
    calls = [
        call
        for call in run.reference.calls()
        if call.phase == BACKWARD and not call.operator and (call.step, call.rank) == (start.step, start.rank)
        if _find_model(call.module, are_several) == _find_model(start.module, are_several)
    ]
    given = {record.text for call in calls for record in call.inputs if math.prod(record.shape) > 1}
    last = _find_last(calls)
    is_of_it = _holds(first.module, start.module) and _holds(start.module, last) and not first.operator
    return {"loss_gradient": first.name} if is_of_it and first.arrives in given else {}


def _find_model(module: str, are_several: bool) -> str:  # noqa: FBT001
    """Return the name of the model that a module belongs to: of several, each stands before the names of its modules."""
    return module.partition(".")[0] if are_several else ROOT_MODULE


def _find_last(calls: Sequence[Call]) -> str:
    """Return the innermost module that the model runs last: backward begins in it, and in the modules around it."""
    last, inside = "", list(calls)
    while inside:
        last = min(inside, key=lambda call: call.order).module
        inside = [call for call in inside if call.module != last and _holds(last, call.module)]
    return last


def _holds(module: str, inside: str) -> bool:
    """Tell whether a module is another one, or has it inside: a critic that drops an axis of what its head returns."""
    return module in {ROOT_MODULE, inside} or inside.startswith(f"{module}.")
