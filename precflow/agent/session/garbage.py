"""Python's garbage collector during a capture: it runs less often, and not over objects that were there before.

A record is a few objects that live until the next flush, so a capture triggers collections that the model alone would not.
Each full collection walks through every object of every imported library: a tenth of a second with transformers.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import Iterator

_TIMES_RARER = 10  # so many times more new objects before a collection


@contextmanager
def collect_rarely() -> Iterator[None]:
    """Exclude existing objects from collection, and collect the others less often, until the block ends.

    Does nothing if somebody has excluded objects already: ``gc.unfreeze`` would include theirs again.
    """
    if gc.get_freeze_count():
        yield
        return
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_TIMES_RARER * thresholds[0], *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
