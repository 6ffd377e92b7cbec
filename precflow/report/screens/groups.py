"""Where it fails: the records by module, operator, type and phase, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from precflow import numbers
from precflow.report import wording
from precflow.report.groups import choose_shown, describe_share
from precflow.report.model import GroupRow
from precflow.report.terminal import USUAL

MOST = 6  # groups of a kind
_INDENT = 3


def render_groups(groups: Sequence[GroupRow], columns: int) -> list[str]:
    """Return the groups in which a record failed or is in doubt, a table for each kind; no line if nothing did.

    ``largest`` and ``median`` are shares of its limit that a record uses.

    Args:
        groups: Of all kinds.
        columns: Width of the screen.
    """
    lines: list[str] = []
    doubts = ["in doubt"] if any(group.in_doubt for group in groups) else []
    heads = ["records", "failed", *doubts, "largest", "median"]
    gap = " " * (3 if columns >= USUAL else 2)
    for kind, shown, hidden in choose_shown(groups, MOST, in_trouble=True):
        cells = [[f"by {kind}", *heads], *(_format_cells(group, heads) for group in shown)]
        widths = [max(cell_len(row[place]) for row in cells) for place in range(1, len(heads) + 1)]
        room = columns - _INDENT - sum(widths) - len(gap) * len(widths)
        names = [wording.shorten(row[0], max(room, 8)) for row in cells]
        width = max(map(cell_len, names))
        lines += [
            " " * _INDENT
            + name
            + " " * (width - cell_len(name))
            + "".join(gap + " " * (wide - cell_len(cell)) + cell for wide, cell in zip(widths, row[1:], strict=True))
            for name, row in zip(names, cells, strict=True)
        ]
        lines += [f"{' ' * _INDENT}and {numbers.count(hidden)} more"] if hidden else []
        lines.append("")
    return lines


def _format_cells(group: GroupRow, heads: Sequence[str]) -> list[str]:
    cells = {
        "records": numbers.count(group.records),
        "failed": numbers.count(group.failed),
        "in doubt": numbers.count(group.in_doubt),
        "largest": describe_share(group.worst),
        "median": describe_share(group.median),
    }
    return [wording.printable(group.name), *(cells[head] for head in heads)]
