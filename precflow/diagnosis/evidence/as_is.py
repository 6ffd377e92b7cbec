"""Evidence about what the recipe changed in what ran, and about both sides as they are without that."""

from __future__ import annotations

from typing import Any

from precflow.judgement.verdicts import Verdict

# Overrides that leave alone what was changed. With dropout, draws are moved: two kinds of devices would draw other masks.
_UNDO = {
    "dropout": "determinism.dropout=kept determinism.random_numbers=cpu",
    "compiled": "capture.compiled=kept",
    "learning_rate": "workload.learning_rate=null",
    "algorithms": "determinism.algorithms=native",
}


def gather_as_is(verdict: Verdict) -> dict[str, Any]:
    """Return evidence by the names of ``names.EVIDENCE``; nothing for a run that says nothing of the sides as they are."""
    found = verdict.as_is
    if not found.text:
        return {}
    kinds = [change.what for change in verdict.changes]
    return {
        "as_is": found.state,
        "as_is_why": found.text,
        "as_is_repeats": any(step.noise is not None for step in found.steps),
        "recipe_changes": [change.text for change in verdict.changes],
        "changes_undone": next((override for kind, override in _UNDO.items() if kind in kinds), ""),
    }
