"""Where a script sets seeds: the lines of its source that call a function of a seed."""

from __future__ import annotations

import ast
from typing import Iterable, List, Tuple

_SEEDING = frozenset(("manual_seed", "manual_seed_all", "seed_everything", "set_seed", "seed"))
_MOST = 20  # places that are listed


def find_seeds(files: Iterable[Tuple[str, str]]) -> List[str]:
    """Return ``file:line function`` of each call that sets a seed; a file that cannot be parsed has none.

    Args:
        files: Name to show, and path.
    """
    places: List[str] = []
    for name, path in files:
        try:
            with open(path, "rb") as file:
                tree = ast.parse(file.read())
        except (OSError, SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if called in _SEEDING and (node.args or node.keywords):
                    places.append("%s:%d %s" % (name, node.lineno, called))
    return places[:_MOST]
