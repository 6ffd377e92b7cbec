"""What a scan says: its findings, what it could not read, and the patch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from precflow.scan.rules import LOOK, NUMBERS, STOPS

SYNTAX = "syntax.python"
"""Rule of a finding that a file cannot be parsed; the only one that is no data."""


@dataclass(frozen=True)
class Finding:
    """One place in the tree.

    Attributes:
        rule: Kind and name of the rule, such as ``device.text``.
        weight: ``stops``, ``look`` or ``numbers``, as the rule says.
        file: Below the tree, with slashes.
        line: Counted from 1, in the file; of a notebook the line of its JSON.
        end_line: Last line of the statement's part that was found.
        found: What was found, as it is written or by its full name.
        why: Why it matters.
        do: What to do about it.
        patched: The patch does it.
        cell: Cell of a notebook, counted from 1; 0 for other files.
    """

    rule: str
    weight: str
    file: str
    line: int
    end_line: int
    found: str
    why: str
    do: str
    patched: bool = False
    cell: int = 0

    @property
    def kind(self) -> str:
        """The part of the rule before the dot."""
        return self.rule.partition(".")[0]

    @property
    def place(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class ScanResult:
    """One scan.

    Attributes:
        tree: The folder, as it was given.
        findings: In order of files and lines.
        files: Kind of file (``Python``, ``notebook``, ``other``) -> how many were read.
        unread: File -> why it was not read.
        titles: Kind of finding -> title.
        patch: The patch, as bytes; empty if there is nothing that it could do.
    """

    tree: str
    findings: tuple[Finding, ...]
    files: Mapping[str, int]
    unread: Mapping[str, str]
    titles: Mapping[str, str]
    patch: bytes = field(default=b"", repr=False)

    def of_weight(self, *weights: str) -> list[Finding]:
        """Return the findings of these weights."""
        return [finding for finding in self.findings if finding.weight in weights]

    @property
    def by_hand(self) -> list[Finding]:
        """What does not run there and no patch mends."""
        return [finding for finding in self.of_weight(STOPS) if not finding.patched]

    @property
    def mended(self) -> int:
        """How many findings the patch mends."""
        return sum(finding.patched for finding in self.findings)

    def count_kinds(self) -> list[tuple[str, str, int, int]]:
        """Return kind, weight, number of findings, and of those that the patch mends; the most weighty first."""
        found = Counter((finding.weight, finding.kind) for finding in self.findings)
        patched = Counter((finding.weight, finding.kind) for finding in self.findings if finding.patched)
        order = {weight: number for number, weight in enumerate((STOPS, LOOK, NUMBERS))}
        rows = sorted(found, key=lambda each: (order[each[0]], -found[each], each[1]))
        return [(kind, weight, found[weight, kind], patched[weight, kind]) for weight, kind in rows]
