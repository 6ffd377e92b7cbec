"""Does a side have what the recipe requires?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from packaging.specifiers import InvalidSpecifier

from precflow.config.schema import Requirements
from precflow.environment.checks import Row
from precflow.environment.differences import package_name
from precflow.environment.versions import lies_in, list_versions, parse
from precflow.errors import PrecflowError

_SILENT = ("known issues", "visible devices")  # that there is no row of these is good


def find_missing(
    require: Requirements, facts: Mapping[str, Any], free_disk_bytes: int, rows: Sequence[Row] | None = None
) -> list[str]:
    """Return what is missing, in words; empty if nothing is.

    Args:
        require: What the recipe requires; an empty text or 0 requires nothing.
        facts: Facts of the side, with ``torch.version`` and ``python.version``.
        free_disk_bytes: Free space where the run is written.
        rows: What the checks of its machine have found, with ``machine`` among its facts; ``None`` if it was not checked, and
            then what only that can tell is not missed.
    """
    problems = [
        *_check_version("torch", require.torch, facts),
        *_check_version("python", require.python, facts),
        *check_free_disk(require, free_disk_bytes),
    ]
    if rows is None:
        return problems
    versions, machine = list_versions(facts), facts["machine"]
    for name, specifier in require.versions.items():
        problems += _check_specifier(name, specifier, versions.get(package_name(name), ""), f"versions.{name}")
    for name, wanted in (("device_memory", require.device_memory), ("shared_memory", require.shared_memory)):
        free = int((machine[name] or {}).get("free", 0))
        if free < wanted:
            words = name.replace("_", " ")
            problems.append(f"{_gigabytes(wanted)} of free {words} are required, {_gigabytes(free)} are free")
    return problems + list(_find_unmet(require.checks, rows))


def needs_machine(require: Requirements) -> bool:
    """Tell whether something is required that only a look at the machine can tell."""
    return bool(require.versions or require.device_memory or require.shared_memory or require.checks)


def _find_unmet(checks: Sequence[str], rows: Sequence[Row]) -> Iterator[str]:
    """Yield the required checks that did not pass; one that could not be told, or said nothing, has not."""
    for name in checks:
        topic = name.replace("_", " ")
        found = [row for row in rows if row.topic == topic]
        wrong = [row.text for row in found if row.problem or row.unknown or topic == "known issues"]
        if wrong:
            yield f"check {name} is required: {'; '.join(wrong)}"
        elif not found and topic not in _SILENT:
            yield f"check {name} is required, and there is nothing to check here"


def check_free_disk(require: Requirements, free_disk_bytes: int) -> list[str]:
    """Say that too little disk is free; it is checked again before a dump, because the disk may have filled up since."""
    if free_disk_bytes >= require.free_disk:
        return []
    return [f"{_gigabytes(require.free_disk)} of free disk are required, {_gigabytes(free_disk_bytes)} are free"]


def refuse_missing(side: str, missing: Sequence[str]) -> None:
    """Refuse to go on if something is missing.

    Raises:
        PrecflowError: With everything that is missing.
    """
    if missing:
        raise PrecflowError(
            f"the {side} side does not have what the recipe requires: " + "; ".join(missing),
            next_step="provide it, or require less in environment.require",
        )


def _check_version(name: str, specifier: str, facts: Mapping[str, Any]) -> Iterator[str]:
    yield from _check_specifier(name, specifier, str((facts.get(name) or {}).get("version", "")), name)


def _check_specifier(name: str, specifier: str, version: str, key: str) -> Iterator[str]:
    if not specifier:
        return
    try:
        if parse(version) is None:
            yield f"{name} {specifier} is required, and the side does not say its version ({version!r})"
        elif not lies_in(version, specifier):
            yield f"{name} {specifier} is required, {version} is here"
    except InvalidSpecifier:
        yield f"environment.require.{key} is {specifier!r}; expected a version specifier such as '>=2.1'"


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
