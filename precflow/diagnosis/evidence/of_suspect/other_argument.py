"""An argument whose other value gives the target's output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from precflow.diagnosis.evaluation import name_call
from precflow.diagnosis.evidence.pieces import Evidence

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison
    from precflow.diagnosis.evidence.tensors import ObservedCall

EVIDENCE = {
    "argument_values": Evidence(
        "computed exactly with the argument",
        "Values of arguments with which float64 at the target's own inputs gives its output within the line of the operator;"
        " absent if none does. Several explain it equally well.",
    ),
    "argument_recorded": Evidence("in place of", "The values of these arguments that both sides were called with."),
    "argument_share": Evidence(
        "explained by that argument", "Share of the error's energy.", tests="another argument", unit="%"
    ),
    "argument_places": Evidence(
        "elements that tell", "Elements of the output at which the two values of the argument give different numbers."
    ),
}


def gather(run: Comparison, call: ObservedCall) -> dict[str, Any]:
    """Return the values; nothing without any."""
    explained = run.explain(name_call(call.reference))
    fitting = [one for one in explained.list_told("argument") if one.fits] if explained is not None else []
    if not fitting:
        return {}
    return {
        "argument_values": list(dict.fromkeys(f"{one.argument}={one.value}" for one in fitting)),
        "argument_recorded": list(dict.fromkeys(f"{one.argument}={one.recorded}" for one in fitting)),
        "argument_share": fitting[0].share,
        "argument_places": fitting[0].places,
    }
