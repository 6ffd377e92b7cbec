"""How the module of a suspect is set, as far as both sides say it and it differs: its eps, its slope, the smoothing of a loss.

Where only modules were recorded, no call of a function shows these. Of calls that functions were recorded of, their arguments
show them too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from precflow.agent.contract import OWN_NUMBER
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.environment.module_settings import find_other_module_settings

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison
    from precflow.diagnosis.evidence.tensors import ObservedCall

EVIDENCE = {
    "module_settings": Evidence(
        "settings of its module", "`name: reference / target` of a module whose call is suspected; absent where none differs."
    ),
    "module_settings_declared": Evidence(
        "a class declares one of them", "And it is no number alone that a module of the user's own keeps."
    ),
    "module_settings_elsewhere": Evidence("other modules that are set otherwise", "Up to five."),
}

_SHOWN = 5
_NO_CAUSE = "momentum: "  # of running statistics: no output of the same call depends on it


def gather(run: Comparison, call: ObservedCall) -> dict[str, Any]:
    """Return what differs; nothing for calls of functions, whose arguments say it."""
    if call.reference.operator or call.target is None:
        return {}
    every = find_other_module_settings(run.reference.header.facts, run.target.header.facts)
    own = [text for text in every.pop(call.reference.module, []) if not text.startswith(_NO_CAUSE)]
    if not own:
        return {}
    elsewhere = [f"{name}: {', '.join(texts)}" for name, texts in every.items()][:_SHOWN]
    declared = any(not text.startswith(OWN_NUMBER) for text in own)
    return {
        "module_settings": own,
        "module_settings_declared": declared,
        **({"module_settings_elsewhere": elsewhere} if elsewhere else {}),
    }
