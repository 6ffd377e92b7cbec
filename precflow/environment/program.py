"""Whether both sides are the same program: sources line by line, and the order in which batches came."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from precflow.agent import intake, redaction
from precflow.agent.contract import SOURCES_FILE

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "sources": ("sources",),
    "hyperparameters": ("hyperparameters",),
    "data_order": ("loaders", "samples", "batches"),
}
"""What a recipe may want to be the same -> the sections of a side's facts that say it."""
BATCHES, SAMPLES = "batches", "samples"
_DEVICE = re.compile(r"(cpu|cuda|gpu|npu|hpu|xpu|nccl|hccl|gloo)(:\d+)?", re.IGNORECASE)
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
    reference: Mapping[str, Any],
    target: Mapping[str, Any],
    texts: tuple[Mapping[str, str], Mapping[str, str]],
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
    moved = find_moved(reference, target)
    there = {moved.get(name, name): digest for name, digest in there.items()}
    texts = (texts[0], {moved.get(name, name): text for name, text in texts[1].items()})
    found = []
    for name in sorted({*here, *there}):
        if name not in there:
            found.append(SourceDifference(name, "reference only"))
        elif name not in here:
            found.append(SourceDifference(name, "target only"))
        elif here[name] != there[name]:
            found.append(_compare_texts(name, texts[0].get(name), texts[1].get(name)))
    return tuple(replace(one, lines=(), left_out=0) if number >= _MOST_TEXTS else one for number, one in enumerate(found))


def find_moved(reference: Mapping[str, Any], target: Mapping[str, Any]) -> dict[str, str]:
    """Return name on the target -> name on the reference, of sources in another folder and of a script with another name.

    >>> sides = ({"sources": {"train.py": "", "a/model.py": ""}}, {"sources": {"train_npu.py": "", "b/model.py": ""}})
    >>> for side, name in zip(sides, ("train.py", "train_npu.py")):
    ...     side["program"] = {"script": name}
    >>> find_moved(*sides)
    {'train_npu.py': 'train.py', 'b/model.py': 'a/model.py'}
    """
    here, there = _read_digests(reference), _read_digests(target)
    alone = ([name for name in here if name not in there], [name for name in there if name not in here])
    scripts = [str(_read_section(side, "program").get("script", "")) for side in (reference, target)]
    moved = {}
    for mine in alone[0]:
        last = mine.rpartition("/")[2]
        wanted = scripts[1] if last == scripts[0] else last
        others, rivals = (
            [each for each in names if each.rpartition("/")[2] == end]
            for names, end in zip(alone[::-1], (wanted, last), strict=True)
        )
        if len(others) == len(rivals) == 1:
            moved[others[0]] = mine
    return moved


def describe_sources(reference: Mapping[str, Any], target: Mapping[str, Any]) -> list[str]:
    """Return the names of the sources that differ or that one side alone has, in words."""
    return [
        one.name if one.state == "differs" else f"{one.name} ({one.state})"
        for one in compare_sources(reference, target, ({}, {}))
    ]


def find_first_other_samples(reference: Mapping[str, Any], target: Mapping[str, Any]) -> str:
    """Say from which batch on a loader reads other samples than the reference's of the same name; ``""`` if none does."""
    here, there = _read_section(reference, SAMPLES), _read_section(target, SAMPLES)
    for loader in sorted({*here} & {*there}):
        mine, theirs = _read_section(here, loader), _read_section(there, loader)
        for batch in sorted({*mine} & {*theirs}):
            if mine[batch] != theirs[batch]:
                elsewhere = next(
                    (f", which the reference read as {other}" for other in mine if mine[other] == theirs[batch]), ""
                )
                return f"{loader}, {batch}: {mine[batch]} / {theirs[batch]}{elsewhere}"
    return ""


def describe_settings(differences: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return the settings that differ and decide what is computed; which device is meant differs on purpose.

    Args:
        differences: Dotted fact -> (reference, target), of :func:`precflow.environment.differences.find_differences`.
    """
    return [
        f"{name}: {here} / {there}"
        for name, (here, there) in differences.items()
        if name.startswith(("hyperparameters.", "loaders.")) and not all(_DEVICE.fullmatch(each) for each in (here, there))
    ]


def _read_section(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = facts.get(name)
    return section if isinstance(section, Mapping) else {}


def _read_digests(facts: Mapping[str, Any]) -> Mapping[str, str]:
    return {str(name): str(digest) for name, digest in _read_section(facts, "sources").items()}


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
            if section == SAMPLES and not (here or there):  # an older agent, or loaders without indices: batches say it
                continue
            if not (isinstance(here, Mapping) and isinstance(there, Mapping)):  # an older agent, or a workload without a script
                unknown = [side for side, each in (("reference", here), ("target", there)) if not isinstance(each, Mapping)]
                found.append(f"what the {section} of the {' and the '.join(unknown)} are is not known")
                continue
            if here == there:
                continue
            if section == SAMPLES:
                other = find_first_other_samples(reference, target)
                found += [f"the sides read other samples: {other}"] if other else []
                continue
            if section == BATCHES:
                first = find_first_other_batch(reference, target)
                found += [f"the sides read other batches from {first[0]} on"] if first else []
                continue
            names = [str(name) for name in sorted({*here, *there}) if here.get(name) != there.get(name)]
            names = describe_sources(reference, target) if section == "sources" else names
            if not names:  # the same sources in another folder
                continue
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            found.append(f"the {section} differ: {', '.join(names[:_SHOWN])}{more}")
    return found
