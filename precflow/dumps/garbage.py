"""Reading a million values at a stretch without the garbage collector looking through them again and again."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

MANY = 50_000  # calls, or tensors of a shard

_LOCK = threading.Lock()
_blocks: list[bool] = []  # of `many_spared` that run now: whether the program had frozen objects of its own before


@contextmanager
def many_spared() -> Iterator[None]:
    """Let values that come in numbers be left out of collections until the outermost such block is left.

    They are frozen together with everything else that is there then, so who only reads a dump outside of such a block keeps a
    collector that sees all. Nothing is frozen, or thawed, in a program that has frozen objects of its own.
    """
    with _LOCK:
        _blocks.append(_blocks[0] if _blocks else gc.get_freeze_count() > 0)
    try:
        yield
    finally:
        with _LOCK:
            others = _blocks.pop()
            if not _blocks and not others:
                gc.unfreeze()


@contextmanager
def collector_off() -> Iterator[list[int]]:
    """Keep the garbage collector off while values are made that are in no cycle; it is on again behind it, where it was.

    Yields:
        A list that takes numbers of values. Where they are ``MANY``, and :func:`many_spared` is around, the collector does not
        look at them: they are freed by their count of references as any value is, and one pass over a million takes as long as
        a third of reading them.
    """
    was_on = gc.isenabled()
    made: list[int] = []
    gc.disable()
    try:
        yield made
        if sum(made) >= MANY and _blocks and not _blocks[0]:
            gc.freeze()
    finally:
        if was_on:
            gc.enable()
