"""Reading a million values at a stretch without the garbage collector looking through them again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

MANY = 50_000  # calls, or tensors of a shard


@contextmanager
def collector_off() -> Iterator[list[int]]:
    """Keep the garbage collector off while values are made that are in no cycle; it is on again behind it, where it was.

    Yields:
        A list that takes numbers of values. Where they are ``MANY``, the collector never looks at them: they are freed by their
        count of references as any value is, and one pass over a million takes as long as a third of reading them.
    """
    was_on = gc.isenabled()
    made: list[int] = []
    gc.disable()
    try:
        yield made
        if sum(made) >= MANY:
            gc.freeze()
    finally:
        if was_on:
            gc.enable()
