"""Keeps Python's garbage collector from searching millions of records for cycles that they cannot have.

The collector visits every container made since its last pass, and now and then all containers of the process. A dump of a
million records consists of containers without any cycle, so each of these passes finds nothing and may take as long as reading
the dump did.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

MANY = 50_000  # calls, or tensors of a shard

_LOCK = threading.Lock()
_blocks: list[bool] = []  # one per running block of `freezing_allowed`: had the program frozen objects of its own before?


@contextmanager
def freezing_allowed() -> Iterator[None]:
    """Allow :func:`collector_off` to freeze new objects, until the outermost such block is left.

    ``gc.freeze`` exempts every object of the process from collection, not only ours. So nothing is frozen in a program that
    reads a dump outside of such a block, nor in one that has frozen objects itself: ``gc.unfreeze`` would unfreeze those too.
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
    """Switch the garbage collector off while values without cycles are created.

    Yields:
        A list to which the caller appends how many values it created. If there are at least ``MANY``, inside of
        :func:`freezing_allowed`, they are frozen: reference counting still frees them, but the collector skips them. One pass
        over a million values takes a third of the time that reading them took.
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
