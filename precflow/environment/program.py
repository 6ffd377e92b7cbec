"""Whether both sides are the same program: sources line by line, and the order in which batches came."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from precflow.agent import intake, redaction
from precflow.agent.contract import SOURCES_FILE

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "sources": ("sources",),
    "hyperparameters": ("hyperparameters",),
    "data_order": ("loaders", "batches"),
}
"""What a recipe may want to be the same -> the sections of a side's facts that say it."""
BATCHES = "batches"
_MOST_LINES, _MOST_TEXTS = 400, 40  # lines of the difference of one file, and files of which they are shown
_LARGEST = 8_000_000  # bytes of the file with the sources
_SHOWN = 3


@dataclass(frozen=True)
class SourceDifference:
    """A source that is not the same on both sides.

    Attributes:
        name: Its name.
        state: ``differs``, ``reference only`` or ``target only``.
        lines: What differs, as a unified difference; empty where a text was not kept.
        left_out: Lines of it that are not shown.
    """

    name: str
    state: str
    lines: tuple[str, ...] = ()
    left_out: int = 0


def read_sources(folder: Path) -> Mapping[str, str]:
    """Return name -> text of the sources beside a dump; nothing where there are none, or nobody can read them."""
    try:
        plain = intake.read_json(folder / SOURCES_FILE, _LARGEST)
    except (OSError, ValueError):
        return {}
    return {str(name): text for name, text in plain.items() if isinstance(text, str)} if isinstance(plain, Mapping) else {}


def compare_sources(
    reference: Mapping[str, Any], target: Mapping[str, Any], texts: tuple[Mapping[str, str], Mapping[str, str]]
) -> tuple[SourceDifference, ...]:
    """Return the sources that differ, in order of their names.

    Args:
        reference: Facts of the reference.
        target: Facts of the target.
        texts: Name -> text of the sources of each.
    """
    here, there = _read_digests(reference), _read_digests(target)
    if not (here and there):  # a dump of another tool, or of an older agent, says nothing of its sources
        return ()
    found = []
    for name in sorted({*here, *there}):
        if name not in there:
            found.append(SourceDifference(name, "reference only"))
        elif name not in here:
            found.append(SourceDifference(name, "target only"))
        elif here[name] != there[name]:
            found.append(_compare_texts(name, texts[0].get(name), texts[1].get(name)))
    return tuple(replace(one, lines=(), left_out=0) if number >= _MOST_TEXTS else one for number, one in enumerate(found))


def _read_digests(facts: Mapping[str, Any]) -> Mapping[str, str]:
    sources = facts.get("sources")
    return {str(name): str(digest) for name, digest in sources.items()} if isinstance(sources, Mapping) else {}


def _compare_texts(name: str, reference: str | None, target: str | None) -> SourceDifference:
    if reference is None or target is None:
        return SourceDifference(name, "differs")
    here, there = (redaction.redact_text(text).splitlines() for text in (reference, target))
    lines = list(difflib.unified_diff(here, there, "reference", "target", lineterm=""))
    return SourceDifference(name, "differs", tuple(lines[:_MOST_LINES]), max(0, len(lines) - _MOST_LINES))


def find_first_other_batch(reference: Mapping[str, Any], target: Mapping[str, Any]) -> tuple[str, tuple[str, str]] | None:
    """Return the first step in which the sides read other batches, and both digests; ``None`` if none is known.

    Where the target's batch was read by the reference in another step, its text says so.
    """
    here, there = reference.get(BATCHES), target.get(BATCHES)
    if not (isinstance(here, Mapping) and isinstance(there, Mapping)):
        return None
    for step in sorted({*here} & {*there}):
        if here[step] != there[step]:
            elsewhere = next((f", the reference's {other}" for other, digest in here.items() if digest == there[step]), "")
            return str(step), (str(here[step]), f"{there[step]}{elsewhere}")
    return None


def describe_other_program(reference: Mapping[str, Any], target: Mapping[str, Any], same: Sequence[str]) -> list[str]:
    """Return in words what a recipe wants to be the same of the program and is not."""
    found = []
    for word, sections in SECTIONS.items():
        if word not in same:
            continue
        for section in sections:
            here, there = reference.get(section), target.get(section)
            if not (isinstance(here, Mapping) and isinstance(there, Mapping)):  # an older agent, or a workload without a script
                unknown = [side for side, each in (("reference", here), ("target", there)) if not isinstance(each, Mapping)]
                found.append(f"what the {section} of the {' and the '.join(unknown)} are is not known")
                continue
            if here == there:
                continue
            if section == BATCHES:
                first = find_first_other_batch(reference, target)
                found += [f"the sides read other batches from {first[0]} on"] if first else []
                continue
            names = [str(name) for name in sorted({*here, *there}) if here.get(name) != there.get(name)]
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            found.append(f"the {section} differ: {', '.join(names[:_SHOWN])}{more}")
    return found
