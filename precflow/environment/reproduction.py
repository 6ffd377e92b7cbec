"""Did both sides start from the same recipe, seed, weights and inputs? If not, no tensor needs to be compared."""

from __future__ import annotations

from collections.abc import Sequence

from precflow.dumps.header import ContentEntries, Header

_SHOWN = 5


def find_blockers(reference: Header, target: Header, same: Sequence[str]) -> list[str]:
    """Return what makes a comparison of two dumps meaningless, in words; empty if nothing does.

    Args:
        reference: Header of the reference's dump.
        target: Header of the target's dump.
        same: What the recipe wants to be the same; weights and inputs are checked only if they are in it.
    """
    blockers = []
    if reference.recipe and target.recipe and reference.recipe != target.recipe:
        recipes = f"{reference.recipe} on the reference, {target.recipe} on the target"
        blockers.append(f"the dumps are of different recipes: {recipes}")
    ranks = [1 + len(header.sites_of_ranks) for header in (reference, target)]
    if ranks[0] != ranks[1]:
        blockers.append(
            f"the reference ran as {ranks[0]} ranks and the target as {ranks[1]}: ranks are compared with their own, "
            "or several with a single process"
        )
    seeds = (reference.determinism.get("seed"), target.determinism.get("seed"))
    if seeds[0] != seeds[1]:
        blockers.append(f"the seeds differ: {seeds[0]} on the reference, {seeds[1]} on the target")
    contents = (("weights", reference.weights, target.weights), ("inputs", reference.inputs, target.inputs))
    different = (_describe_difference(name, here, there) for name, here, there in contents if name in same)
    return blockers + [text for text in different if text]


def describe_copy(reference: Header, target: Header) -> str:
    """Say that the target's dump is the reference's, copied or given twice; ``""`` if they are two dumps."""
    if not reference.id or reference.id != target.id:
        return ""
    return f"the dump of the target is the reference's own (id {target.id}): nothing of a target was recorded"


def find_different(reference: ContentEntries, target: ContentEntries) -> list[str]:
    """Return the names of entries that differ or are on one side only, in the reference's order."""
    names = [*reference.entries, *(name for name in target.entries if name not in reference.entries)]
    return [name for name in names if reference.entries.get(name) != target.entries.get(name)]


def _describe_difference(name: str, reference: ContentEntries, target: ContentEntries) -> str:
    """Say how the weights or the inputs differ; ``""`` if they do not."""
    unknown = [side for side, one in (("reference", reference), ("target", target)) if not one.digest]
    if unknown:
        return f"the {name} of the {' and the '.join(unknown)} are not recorded, so it is unknown whether they are the same"
    if reference.digest == target.digest:
        return ""
    names = find_different(reference, target)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    which = f": {', '.join(names[:_SHOWN])}{more}" if names else ""
    return f"the {name} differ in {len(names)} of {len(reference.entries)}{which}" if names else f"the {name} differ"
