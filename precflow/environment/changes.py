"""What a recipe changed in what ran, on both sides: a fault may sit in exactly that, so it is part of the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from precflow.agent.contract import CHANGES
from precflow.dumps.header import Header, RecordedChange

_WORDS: Mapping[str, tuple[str, str, str]] = {  # what was done, and the unit in which it is counted, as one and as many
    "dropout": ("dropout removed", "place", "places"),
    "batches": ("batches of the reference in place of its own", "call", "calls"),
    "choices": ("choices of the reference in place of its own", "call", "calls"),
    "draws": ("draws moved to the CPU", "place", "places"),
    "compiled": ("what torch.compile wraps run eagerly", "place", "places"),
    "learning_rate": ("another learning rate", "parameter group", "parameter groups"),
    "seeds": ("seeds set", "", ""),
    "algorithms": ("deterministic algorithms", "", ""),
}


@dataclass(frozen=True)
class RunChange:
    """One thing that was changed in what ran.

    Attributes:
        what: One of ``contract.CHANGES``.
        reference: In how many places of the reference's run; 0 if nothing was changed there.
        target: The same of the target's run.
        text: All of that in words, such as ``dropout removed (33 places)``.
        places: Where, as far as a side says it, each with its side if the two differ.
    """

    what: str
    reference: int
    target: int
    text: str
    places: tuple[str, ...] = ()


def find_changes(reference: Header, target: Header) -> tuple[RunChange, ...]:
    """Return what was changed on either side, as the two dumps say it, most important first."""
    sides = [header.changes for header in (reference, target)]
    return tuple(
        _describe(what, *(side.get(what) for side in sides)) for what in CHANGES if any(what in side for side in sides)
    )


def describe_changes(changes: Sequence[RunChange]) -> str:
    """Return changes in words, as they follow a verdict; ``""`` without any.

    >>> describe_changes([RunChange("seeds", 1, 1, "seeds set"), RunChange("algorithms", 1, 1, "deterministic algorithms")])
    'with seeds set and deterministic algorithms'
    """
    texts = [change.text for change in changes]
    listed = " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1]))) if texts else ""
    return f"with {listed}" if listed else ""


def _describe(what: str, reference: RecordedChange | None, target: RecordedChange | None) -> RunChange:
    words, *units = _WORDS[what]
    counts = [0 if side is None else side.count for side in (reference, target)]
    if not all(counts):
        name, count = ("target", counts[1]) if counts[1] else ("reference", counts[0])
        where = f"on the {name}, {_count(count, units)}" if units[0] else f"on the {name}"
    elif not units[0]:
        where = ""
    elif counts[0] == counts[1]:
        where = _count(counts[0], units)
    else:
        where = f"{_count(counts[0], units)} on the reference, {counts[1]} on the target"
    places = [() if side is None else side.places for side in (reference, target)]
    if places[0] == places[1]:
        named = places[0]
    else:
        named = tuple(
            f"{name}: {place}" for name, those in zip(("reference", "target"), places, strict=True) for place in those
        )
    return RunChange(what, counts[0], counts[1], f"{words} ({where})" if where else words, named)


def _count(count: int, units: Sequence[str]) -> str:
    return f"{count} {units[count != 1]}"
