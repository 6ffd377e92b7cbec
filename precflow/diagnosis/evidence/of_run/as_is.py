"""Evidence about what the recipe changed in what ran, and about both sides as they are without that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from precflow.diagnosis.evidence.pieces import Evidence

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison

EVIDENCE = {
    "as_is": Evidence(
        "both sides as they are",
        "What a run without what the recipe changes has shown: agrees, differs, not_comparable, failed or not_run; absent if "
        "nobody asked.",
    ),
    "as_is_alone": Evidence("only as they are", "The recorded runs do not differ, and the runs as they are do."),
    "as_is_why": Evidence("as they are", "The same in words."),
    "as_is_repeats": Evidence(
        "compared with their own noise", "The sides were run twice as they are, so that what a side changes by itself is known."
    ),
    "recipe_changes": Evidence("changed by the recipe", "What the recipe changed in what ran, each with its places."),
    "changes_undone": Evidence(
        "leaves it alone",
        "The overrides with which a run leaves the most likely of these changes alone; empty if there are none.",
    ),
}

# Overrides that leave alone what was changed. With dropout, draws are moved: two kinds of devices would draw other masks.
_UNDO = {
    "dropout": "determinism.dropout=kept determinism.random_numbers=cpu",
    "compiled": "capture.compiled=kept",
    "learning_rate": "workload.learning_rate=null",
    "algorithms": "determinism.algorithms=native",
}


def gather(run: Comparison) -> dict[str, Any]:
    """Return the evidence; nothing for a run that says nothing of the sides as they are, or has compared no record."""
    verdict = run.verdict
    if verdict is None or not verdict.as_is.text or not verdict.compared:
        return {}
    found = verdict.as_is
    kinds = [change.what for change in verdict.changes]
    return {
        "as_is": found.state,
        "as_is_alone": found.state == "differs" and verdict.verdict != "misaligned",
        "as_is_why": found.text,
        "as_is_repeats": any(step.noise is not None for step in found.steps),
        "recipe_changes": [change.text for change in verdict.changes],
        "changes_undone": next((override for kind, override in _UNDO.items() if kind in kinds), ""),
    }
