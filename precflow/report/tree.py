"""The tree of modules: how many records of each part of the model went wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from precflow.judgement.verdicts import INCOMPLETE_STATUSES, MISALIGNED_STATUSES
from precflow.report.highlights import find_worst_status, is_judged
from precflow.report.model import Row
from precflow.report.wording import printable

_DEEPEST = 64  # modules around each other; those deeper inside count as the last of these
_ONE_SIDED = frozenset({"unpaired_reference", "unpaired_target"})
_CALL = re.compile(r"~\d+$")


@dataclass
class ModuleNode:
    """One module and everything inside it.

    Attributes:
        name: Last part of the module's path.
        statuses: Status -> judged records here and below.
        introduces: Records here and below that introduce the error.
        children: Modules directly inside, in order of first appearance.
    """

    name: str
    statuses: Counter[str] = field(default_factory=Counter)
    introduces: int = 0
    children: dict[str, ModuleNode] = field(default_factory=dict)

    @property
    def worst(self) -> str:
        """The worst status of the records here and below."""
        return find_worst_status(list(self.statuses))

    @property
    def judged(self) -> int:
        """Number of judged records here and below."""
        return sum(self.statuses.values())

    @property
    def wrong(self) -> int:
        """Number of records here and below that are misaligned or without evidence."""
        return sum(number for status, number in self.statuses.items() if status in MISALIGNED_STATUSES | INCOMPLETE_STATUSES)


def build_tree(rows: Iterable[Row]) -> ModuleNode:
    """Return the tree of all modules that have rows; the counts of a module include those of the modules inside it.

    Rows are counted at their own module first, then every count is added to the module around it, from the inside out. No
    recursion: models with 900 modules inside each other exist.
    """
    root = ModuleNode("(model)")
    around: list[tuple[ModuleNode, ModuleNode]] = []  # (module, the one around it); outer ones come first
    known: dict[str, ModuleNode] = {}
    for row in rows:
        node = known.get(row.measure.module)
        if node is None:
            node = root
            for part in split_path(row.measure.module):
                inner = node.children.get(part)
                if inner is None:
                    inner = node.children[part] = ModuleNode(part)
                    around.append((inner, node))
                node = inner
            known[row.measure.module] = node
        if is_judged(row):
            node.statuses[row.judged.status] += 1
            node.introduces += row.role == "introduces"
    for inner, outer in reversed(around):
        outer.statuses.update(inner.statuses)
        outer.introduces += inner.introduces
    return root


@dataclass(frozen=True)
class ModuleOfSides:
    """A line of both trees beside each other: a module that one side lacks, or one around such.

    Attributes:
        name: Last part of the module's path.
        depth: How many modules are around it.
        reference: Records of the reference here and below.
        target: Records of the target here and below.
        inside: Modules inside that are not listed, because the side that lacks it lacks them too.
    """

    name: str
    depth: int
    reference: int
    target: int
    inside: int = 0


def find_one_sided(rows: Iterable[Row], most: int) -> tuple[list[ModuleOfSides], int]:
    """Return the lines of both trees down to the modules that only one side has, and how many of these are left out.

    Args:
        rows: Every record.
        most: Lines at most.
    """
    joins = Counter((row.measure.module, row.measure.join) for row in rows)
    if not any(join in _ONE_SIDED for _, join in joins):
        return [], 0
    counts: dict[tuple[str, ...], list[int]] = {}
    for (module, join), records in joins.items():
        path = split_path(module)[:_DEEPEST]
        for depth in range(len(path) + 1):
            found = counts.setdefault(tuple(path[:depth]), [0, 0])
            found[0] += records * (join != "unpaired_target")
            found[1] += records * (join != "unpaired_reference")
    missing = {path for path, found in counts.items() if path and 0 in found}
    outermost = {path for path in missing if path[:-1] not in missing}
    wanted = {path[:depth] for path in outermost for depth in range(1, len(path) + 1)}
    lines = [
        ModuleOfSides(
            path[-1],
            len(path) - 1,
            counts[path][0],
            counts[path][1],
            sum(other[: len(path)] == path for other in missing) - 1 if path in outermost else 0,
        )
        for path in counts  # a module comes before those inside it, in order of the network
        if path in wanted
    ]
    return lines[:most], max(0, len(lines) - most)


def split_path(module: str) -> list[str]:
    """Return the parts of a module's path; none for the model itself.

    >>> split_path("encoder.layers.0.mlp"), split_path(""), split_path("(model)"), split_path("encoder.mlp~1")
    (['encoder', 'layers', '0', 'mlp'], [], [], ['encoder', 'mlp'])
    """
    plain = _CALL.sub("", module)
    return [] if plain in {"", "(model)"} else plain.split(".")


def split_levels(module: str) -> list[str]:
    """Return the parts of a module's path as people count them: ``layers.0`` is one part.

    >>> split_levels("encoder.layers.0.mlp.fc1")
    ['encoder', 'layers.0', 'mlp', 'fc1']
    """
    merged: list[str] = []
    for part in split_path(module):
        if part.isdigit() and merged:
            merged[-1] += "." + part
        else:
            merged.append(part)
    return merged


def flatten_tree(root: ModuleNode) -> list[list[object]]:
    """Return a tree as a flat list for the page, each module before the modules inside it.

    An entry is the name, the worst status, the numbers wrong, judged and introduces, and the depth. Flat, because Python's and
    the browser's JSON give up on lists nested by the hundred.
    """
    entries: list[list[object]] = []
    waiting = [(root, 0)]
    while waiting:
        node, depth = waiting.pop()
        entries.append([printable(node.name), node.worst, node.wrong, node.judged, node.introduces, depth])
        waiting += [(child, depth + 1) for child in reversed(node.children.values())]
    return entries
