"""The module tree: which part of the model holds records that went wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from precflow.judgement.verdicts import INCOMPLETE_STATUSES, MISALIGNED_STATUSES
from precflow.report.highlights import worst_status
from precflow.report.model import Row
from precflow.report.wording import printable

_CALL = re.compile(r"~\d+$")
_UNCOUNTED = frozenset({"not_judged", "sampled_out"})


@dataclass
class Node:
    """One module with everything inside it.

    Attributes:
        name: Last part of the module's path.
        statuses: Status -> records here and below, those that are judged only.
        introduces: Records here and below that introduce the error.
        children: Modules directly inside, in order of first appearance.
    """

    name: str
    statuses: Counter[str] = field(default_factory=Counter)
    introduces: int = 0
    children: dict[str, Node] = field(default_factory=dict)

    @property
    def worst(self) -> str:
        """The worst status here and below."""
        return worst_status(list(self.statuses))

    @property
    def judged(self) -> int:
        """Number of judged records here and below."""
        return sum(self.statuses.values())

    @property
    def wrong(self) -> int:
        """Number of records here and below that are misaligned or without evidence."""
        return sum(number for status, number in self.statuses.items() if status in MISALIGNED_STATUSES | INCOMPLETE_STATUSES)


def build(rows: Iterable[Row]) -> Node:
    """Return the tree of all modules that have rows; counts of a module include what is inside it.

    Each row is counted at its own module, and the sums are passed upwards once, so that a model may be nested as deeply as it
    likes.
    """
    root = Node("(model)")
    around: list[tuple[Node, Node]] = []  # a module and the one around it; outer ones come first
    known: dict[str, Node] = {}
    for row in rows:
        node = known.get(row.measure.module)
        if node is None:
            node = root
            for part in parts(row.measure.module):
                inner = node.children.get(part)
                if inner is None:
                    inner = node.children[part] = Node(part)
                    around.append((inner, node))
                node = inner
            known[row.measure.module] = node
        if row.judged.status not in _UNCOUNTED:
            node.statuses[row.judged.status] += 1
            node.introduces += row.role == "introduces"
    for inner, outer in reversed(around):
        outer.statuses.update(inner.statuses)
        outer.introduces += inner.introduces
    return root


def parts(module: str) -> list[str]:
    """Return the parts of a module's path; none for the model itself.

    >>> parts("encoder.layers.0.mlp"), parts(""), parts("(model)"), parts("encoder.mlp~1")
    (['encoder', 'layers', '0', 'mlp'], [], [], ['encoder', 'mlp'])
    """
    plain = _CALL.sub("", module)
    return [] if plain in {"", "(model)"} else plain.split(".")


def levels(module: str) -> list[str]:
    """Return the parts of a module's path as people count them: the number of a layer belongs to its list.

    >>> levels("encoder.layers.0.mlp.fc1")
    ['encoder', 'layers.0', 'mlp', 'fc1']
    """
    merged: list[str] = []
    for part in parts(module):
        if part.isdigit() and merged:
            merged[-1] += "." + part
        else:
            merged.append(part)
    return merged


def plain(root: Node) -> list[list[object]]:
    """Return a tree as a list for the page, each module before what is inside it.

    One module is its name, worst status, wrong, judged, introduces, and how many modules are around it: nested lists of a
    deeply nested model are more than JSON's writers and readers can follow.
    """
    found: list[list[object]] = []
    waiting = [(root, 0)]
    while waiting:
        node, depth = waiting.pop()
        found.append([printable(node.name), node.worst, node.wrong, node.judged, node.introduces, depth])
        waiting += [(child, depth + 1) for child in reversed(node.children.values())]
    return found
