"""Does a side have what the recipe requires?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from precflow.config.schema import Requirements
from precflow.errors import PrecflowError


def find_missing(require: Requirements, facts: Mapping[str, Any], free_disk_bytes: int) -> list[str]:
    """Return what is missing, in words; empty if nothing is.

    Args:
        require: What the recipe requires; an empty text or 0 requires nothing.
        facts: Facts of the side, with ``torch.version`` and ``python.version``.
        free_disk_bytes: Free space where the run is written.
    """
    problems = [
        *_check_version("torch", require.torch, facts),
        *_check_version("python", require.python, facts),
    ]
    return problems + check_free_disk(require, free_disk_bytes)


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
            next_step="provide it, or require less in environment.require: free_disk, torch, python",
        )


def _check_version(name: str, specifier: str, facts: Mapping[str, Any]) -> Iterator[str]:
    if not specifier:
        return
    version = str((facts.get(name) or {}).get("version", ""))
    try:
        if not SpecifierSet(specifier).contains(Version(version), prereleases=True):
            yield f"{name} {specifier} is required, {version} is here"
    except InvalidSpecifier:
        yield f"environment.require.{name} is {specifier!r}; expected a version specifier such as '>=2.1'"
    except InvalidVersion:
        yield f"{name} {specifier} is required, and the side does not say its version ({version!r})"


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
