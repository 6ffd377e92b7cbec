"""Keeps Python's garbage collector from walking over millions of values that are no garbage, again and again.

The collector looks at every container that was made since its last pass, and now and then at all of them. A dump of a million
records is all containers and holds no cycle, so each of these passes finds nothing and takes as long as reading did.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

MANY = 50_000  # calls, or tensors of a shard

_LOCK = threading.Lock()
_blocks: list[bool] = []  # one for each block of `freezing_allowed` that runs: had the program frozen objects of its own?


@contextmanager
def freezing_allowed() -> Iterator[None]:
    """Allow :func:`collector_off` to freeze what it made, until the outermost such block is left.

    Freezing takes everything that exists at that time out of collections, so it is not done for a program that reads a dump
    outside of such a block, nor for one that has frozen objects of its own: thawing ours would thaw those.
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
    """Switch the garbage collector off while values are made that are in no cycle.

    Yields:
        A list that takes how many values were made. From ``MANY`` on, and inside of :func:`freezing_allowed`, they are frozen:
        reference counts free them as they free any value, but collections skip them. One pass over a million values takes a
        third of the time that reading them took.
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
