"""Merges files and the command line: maps merge, other values replace, and each value keeps the line that set it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from precflow.config.documents import Document, DottedPath, Mark, dotted, walk_scalars

COMMAND_LINE = "command line"
TARGET = "_target_"


class Layers:
    """Configuration under construction.

    Attributes:
        data: Plain data as written, later layers over earlier ones.
        marks: Path -> where the effective value comes from.
    """

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self.marks: dict[DottedPath, Mark] = {}

    def add(self, document: Document, package: DottedPath = ()) -> None:
        """Merge a file over what is there already.

        Args:
            document: The file.
            package: Where its keys go; ``()`` is the top.
        """
        data: Any = document.data
        for part in reversed(package):
            data = {part: data}
        marks = {(*package, *path): mark for path, mark in document.marks.items() if path[:1] != ("defaults",)}
        self._overlay(self.data, data, (), marks)

    def join(self, document: Document, package: DottedPath) -> None:
        """Lay a file beside one that its package has already: lists go on behind those that are there, texts behind a ``+``.

        So two faults of the emulated device are both planted, where :meth:`add` would leave the second.
        """
        here = self.data
        for part in package:
            here = here.setdefault(part, {})
        data, marks = dict(document.data), dict(document.marks)
        kept: dict[DottedPath, Mark] = {}
        for key, value in document.data.items():
            before = here.get(key)
            if isinstance(value, list) and isinstance(before, list):
                data[key] = [*before, *value]
                own = [path for path in marks if path[:1] == (key,) and len(path) > 1]
                moved = {(key, str(int(path[1]) + len(before)), *path[2:]): marks.pop(path) for path in own}
                marks.update(moved)
                kept |= {path: mark for path, mark in self.marks.items() if path[: len(package) + 1] == (*package, key)}
            elif isinstance(value, str) and isinstance(before, str):
                data[key] = f"{before}+{value}"
        self.add(replace(document, data=data, marks=marks), package)
        self.marks.update(kept)

    def assign(self, path: DottedPath, value: Any, mark: Mark) -> str:
        """Set one value; a map is merged into an existing map. Return why it cannot be set, ``""`` if it was."""
        marks = {(*path, *inner): Mark(mark.place, None) for inner, _ in walk_scalars(value)}
        marks[path] = mark
        parent = self._find_parent(path)
        if isinstance(parent, str):
            return parent
        if isinstance(parent, dict):
            self._overlay(parent, {path[-1]: value}, path[:-1], marks)
            return ""
        number = int(path[-1]) if path[-1].isdigit() else len(parent)
        if number >= len(parent):
            return f"{dotted(path[:-1])} has {len(parent)} entries, counted from 0"
        self._forget(path, parent[number])
        parent[number] = _copy(value)
        self.marks.update(marks)
        return ""

    def remove(self, path: DottedPath) -> str:
        """Remove one key. Return why it cannot be removed, ``""`` if it was."""
        here: Any = self.data
        for part in path[:-1]:
            here = here.get(part) if isinstance(here, Mapping) else None
        if not isinstance(here, dict) or path[-1] not in here:
            return "is not set, so it cannot be taken away"
        self._forget(path, here.pop(path[-1]))
        return ""

    def mark(self, path: DottedPath) -> Mark:
        """Return the mark of a path, or of the nearest map or list around it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.marks:
                return self.marks[path[:length]]
        return Mark("")

    def provenance(self) -> dict[str, str]:
        """Return dotted key -> ``file:line`` or ``command line`` for every value that was set."""
        return {dotted(path): self.mark(path).place for path, _ in walk_scalars(self.data)}

    def _overlay(
        self, under: dict[str, Any], over: Mapping[str, Any], path: DottedPath, marks: Mapping[DottedPath, Mark]
    ) -> None:
        # Both name a function, and not the same. (If only one does, `get` returns its name for both.)
        if under.get(TARGET, over.get(TARGET)) != over.get(TARGET, under.get(TARGET)):
            # If a recipe inherits `{_target_: a.build, layers: 2}` and says `_target_: b.build`, b.build must not get `layers`.
            # Arguments from the command line stay: they were typed for this run.
            for key in [key for key in under if self.mark((*path, key)).place != COMMAND_LINE]:
                self._forget((*path, key), under.pop(key))
        for key, value in over.items():
            here = (*path, key)
            if isinstance(value, Mapping) and isinstance(under.get(key), dict):
                self._overlay(under[key], value, here, marks)
                continue
            if key in under:
                self._forget(here, under[key])
            under[key] = _copy(value)
            self.marks.update({inner: marks[inner] for inner in _list_paths(value, here) if inner in marks})

    def _forget(self, path: DottedPath, value: Any) -> None:
        for inner in _list_paths(value, path):
            self.marks.pop(inner, None)

    def _find_parent(self, path: DottedPath) -> dict[str, Any] | list[Any] | str:
        here: Any = self.data
        for depth, part in enumerate(path[:-1]):
            if isinstance(here, list):
                if not part.isdigit() or int(part) >= len(here):
                    return f"{dotted(path[:depth])} has {len(here)} entries, counted from 0"
                here = here[int(part)]
            else:
                if not isinstance(here.get(part), (dict, list)):
                    if path[depth + 1].isdigit():
                        return f"{dotted(path[: depth + 1])} has 0 entries, counted from 0"
                    here[part] = {}  # `a.b.c=1` makes the maps a and b
                here = here[part]
        return here if isinstance(here, (dict, list)) else f"{dotted(path[:-1])} is one value and has no keys"


def _list_paths(value: Any, path: DottedPath) -> Iterator[DottedPath]:
    """Yield a path and those of everything in its value."""
    yield path
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _list_paths(item, (*path, str(key)))
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _list_paths(item, (*path, str(number)))


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, (list, tuple)) else value
