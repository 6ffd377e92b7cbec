"""Keys that the schema has and this version does not act on yet: one table, so that none is silently ignored.

``AVAILABLE`` maps a dotted key (``*`` is one part, ``[]`` each item of a list) to the values that work now. Any other value
is refused with a clear word before any work is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from precflow import __version__
from precflow.config import standards
from precflow.config.schema import SIDES

AVAILABLE: Mapping[str, tuple[Any, ...] | Callable[[], tuple[Any, ...]]] = {
    "golden": (None,),
    "curves": ({},),
    "workload.tokenizer": ("",),
    "workload.script": ("",),
    "workload.arguments": ({},),
    "*.layout": ({},),
    "*.ranks": (1,),
    "*.migration": ("",),
    "*.arguments": ({},),
    "determinism.seed": (int,),
    "determinism.algorithms": ("strict", "warn", "native"),
    "determinism.shuffle": ("kept",),
    "determinism.data": ("own",),
    "capture.slowdown": (0.0,),
    "tolerance.standards[]": standards.names,  # those of a team too
    "report.language": ("en",),
    "sides[]": ("reference", "target"),
    "site.store_profile": ("",),
    "time_limit": (0.0,),
}


def unavailable(config: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield ``(path, message)`` for every value that a later version will know.

    Args:
        config: The whole configuration as plain data, with values converted.
    """
    for pattern, values in AVAILABLE.items():
        available = _now(values)
        for path, value in _matching(config, tuple(pattern.replace("[]", ".[]").split("."))):
            if not _is_available(value, available):
                yield path, _message(value, available)


def refused_words(key: str, words: Sequence[str]) -> tuple[str, ...]:
    """Return those of a key's words that a later version will know.

    >>> refused_words("determinism.algorithms", ["strict", "when_needed"])
    ('when_needed',)
    """
    available = _available(key)
    return tuple(word for word in words if available is not None and not _is_available(word, available))


def is_later(key: str, default: Any) -> bool:
    """Tell whether nothing but its default can be given to a key in this version."""
    available = _available(key)
    return (
        available is not None
        and len(available) == 1
        and not isinstance(available[0], type)
        and _is_available(default, available)
    )


def _available(key: str) -> tuple[Any, ...] | None:
    """Return what a dotted key takes in this version, ``None`` where it takes everything that the schema allows."""
    first, _, name = key.partition(".")
    of_side = (f"*.{name}",) if first in SIDES else ()
    return next((_now(AVAILABLE[pattern]) for pattern in (key, f"{key}[]", *of_side) if pattern in AVAILABLE), None)


def _now(values: tuple[Any, ...] | Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
    return values() if callable(values) else values


def _matching(value: Any, pattern: tuple[str, ...], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not pattern:
        yield path, value
        return
    first, rest = pattern[0], pattern[1:]
    if first == "[]":
        for number, item in enumerate(value or ()):
            yield from _matching(item, rest, (*path, str(number)))
    elif isinstance(value, Mapping):
        names = ("reference", "target") if first == "*" else (first,)
        for name in names:
            if name in value:
                yield from _matching(value[name], rest, (*path, name))


def _is_available(value: Any, available: tuple[Any, ...]) -> bool:
    comparable = tuple(value) if isinstance(value, list) else value
    return any(isinstance(value, one) if isinstance(one, type) else comparable == one for one in available)


def _message(value: Any, available: tuple[Any, ...]) -> str:
    many = isinstance(value, (list, tuple))
    shown = f"{list(value)} is" if many else f"`{value}` is" if isinstance(value, (str, int)) else "is"
    here = [str(list(one) if isinstance(one, tuple) else one) for one in available if isinstance(one, (str, tuple)) and one]
    return f"{shown} not available in precflow {__version__}" + (f" (available: {', '.join(here)})" if here else "")
