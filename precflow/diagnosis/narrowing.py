"""Few of many members that are enough, by delta debugging."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

_Member = TypeVar("_Member")


def narrow(members: Sequence[_Member], enough: Callable[[list[list[_Member]]], list[bool]], most: int = 64) -> list[_Member]:
    """Return few of the members that are still enough, no single one of which can be left out (delta debugging, Zeller 1999).

    Args:
        members: All of them together are enough.
        enough: Tells for each of several parts whether it is enough alone; all of them are tried at once.
        most: Largest number of parts that are tried.
    """
    kept, pieces, tried = list(members), 2, 0
    while len(kept) > 1 and tried < most:
        size = -(-len(kept) // pieces)
        parts = [kept[start : start + size] for start in range(0, len(kept), size)]
        rests = [[one for one in kept if one not in part] for part in parts] if len(parts) > 2 else []
        asked = [*parts, *rests][: most - tried]
        tried += len(asked)
        good = next((part for part, is_enough in zip(asked, enough(asked), strict=True) if is_enough), None)
        if good is not None:
            pieces = 2 if len(good) <= size else max(pieces - 1, 2)
            kept = good
        elif size == 1:
            break
        else:
            pieces = min(2 * pieces, len(kept))
    return kept
