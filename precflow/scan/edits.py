"""Bytes of a source that a patch replaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """Bytes of the source, as UTF-8, that are replaced: ``start`` to ``end`` by ``new``."""

    start: int
    end: int
    new: bytes


def apply_edits(source: bytes, edits: Sequence[Edit]) -> bytes:
    """Return a source with some of its bytes replaced; no edit may lie over another."""
    parts, last = [], 0
    for edit in sorted(edits, key=lambda each: (each.start, each.end)):
        parts += [source[last : edit.start], edit.new]
        last = edit.end
    return b"".join([*parts, source[last:]])
