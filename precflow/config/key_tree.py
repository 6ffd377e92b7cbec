"""The schema as a tree of keys: which keys exist, of which type their values are, and what an unknown key may have meant."""

from __future__ import annotations

import dataclasses
import keyword
import types
import typing
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from precflow.config.documents import DottedPath, dotted
from precflow.config.schema import SIDES, Numbers, RunConfig, key_of
from precflow.config.suggestions import find_near
from precflow.version import __version__

_SPOKEN_KEYS = {
    "standard": "tolerance.standards",
    "standards": "tolerance.standards",
    "seed": "determinism.seed",
    "device": "target.device",
}
# Keys of the recipe format that this version does not have yet: to look for a misspelling would lead astray.
_FEW = 8  # keys of a section that are all named
_PLANNED = frozenset("time_limit workload.tokenizer determinism.shuffle capture.slowdown report.language side.layout".split())


@lru_cache(maxsize=64)
def fields(kind: type) -> dict[str, Any]:
    """Return key -> type of a dataclass, in the order of the recipe's sections."""
    hints = typing.get_type_hints(kind)
    return {key_of(field.name): hints[field.name] for field in dataclasses.fields(kind)}


def attribute(key: str) -> str:
    """Return the name of the field behind a key."""
    return f"{key}_" if keyword.iskeyword(key) else key


def without_none(hint: Any) -> Any:
    """Return ``X`` for ``X | None``; other types as they are."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return kinds[0] if len(kinds) == 1 else hint
    return hint


def is_section(hint: Any) -> bool:
    """Tell whether a type is a dataclass: a closed set of keys."""
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def item(hint: Any) -> Any:
    """Return the type of a list's items or of a map's values, or ``None`` for a scalar."""
    if hint is Numbers:
        return int
    origin = typing.get_origin(hint)
    if origin is tuple:
        return typing.get_args(hint)[0]
    return typing.get_args(hint)[1] if origin is not None and issubclass(origin, Mapping) else None


def explain_problem(path: DottedPath) -> str:
    """Say why there is no such key, with a did-you-mean; return ``""`` if there is one."""
    hint: Any = RunConfig
    for depth, part in enumerate(path):
        hint = without_none(hint)
        if is_section(hint):
            if part not in fields(hint):
                return f"no such key.{suggest_key(path, depth)}"
            hint = fields(hint)[part]
        elif hint is Any or item(hint) is None:
            return "" if hint is Any else f"{dotted(path[:depth])} is one value and has no keys.{suggest_key(path, depth)}"
        elif typing.get_origin(hint) is tuple and not part.isdigit():
            return f"{dotted(path[:depth])} is a list: {dotted((*path[:depth], '0'))}..., or the whole list"
        else:
            hint = item(hint)
    return ""


def is_known(path: DottedPath) -> bool:
    """Tell whether there is such a key. Like :func:`explain_problem`, without the message, which takes time."""
    hint: Any = RunConfig
    for part in path:
        hint = without_none(hint)
        if hint is Any:
            return True
        if is_section(hint):
            hint = fields(hint).get(part)
        else:
            hint = item(hint) if part.isdigit() or typing.get_origin(hint) is not tuple else None
        if hint is None:
            return False
    return True


def suggest_key(path: DottedPath, depth: int) -> str:
    """Suggest the key that was meant: one beside the wrong part, else one of the same name elsewhere in the schema.

    Where nothing is alike, all keys of a small section are named.
    """
    if ".".join(("side" if path[0] in SIDES else path[0], *path[1 : depth + 1])) in _PLANNED:
        return f" precflow {__version__} does not have it yet"
    rest = path[depth + 1 :]
    hint: Any = RunConfig
    for part in path[:depth]:
        hint = without_none(hint)
        hint = fields(hint).get(part) if is_section(hint) else item(hint)
    kind = without_none(hint)
    for neighbour in find_near(path[depth], tuple(fields(kind)) if is_section(kind) else ()):
        meant = (*path[:depth], neighbour, *rest)
        if not explain_problem(meant):
            return f" Did you mean  {dotted(meant)} ?"
    spoken = _SPOKEN_KEYS.get(".".join(path))
    if spoken:
        return f" Did you mean  {spoken} ?"
    every = list(list_keys())
    words = {key.rsplit(".", 1)[-1] for key in every}
    if depth and is_section(kind) and path[-1] not in words and len(fields(kind)) <= _FEW:
        return f" There are  {', '.join(dotted((*path[:depth], name)) for name in fields(kind))}"
    same_word = [key for key in every if key.rsplit(".", 1)[-1] in find_near(path[-1], words, most=1)]
    if same_word:
        best = find_near(dotted(path), same_word, most=1) or same_word
        return f" Did you mean  {best[0]} ?"
    far = find_near(dotted(path), every, most=1, alike=0.85)
    return f" Did you mean  {far[0]} ?" if far else ""


@lru_cache(maxsize=1)
def list_keys() -> tuple[str, ...]:
    """Return every dotted key of the schema; lists and open maps count as one."""
    return tuple(_list_keys(RunConfig, ()))


def _list_keys(kind: type, path: DottedPath) -> Iterator[str]:
    for name, hint in fields(kind).items():
        inner = without_none(hint)
        if is_section(inner):
            yield from _list_keys(inner, (*path, name))
        else:
            yield dotted((*path, name))
