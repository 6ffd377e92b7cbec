"""Python's garbage collector during a capture: what was there before is not searched again and again.

A record is a few objects that live until the next flush, so that capture sets off collections that the model alone would not;
each of the oldest generation walks through every object of every imported library, a tenth of a second with transformers.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import Iterator

_LESS_OFTEN = 10


@contextmanager
def spared() -> Iterator[None]:
    """Leave out what is there, and collect the rest less often, until the block is left; nothing where that was done before."""
    if gc.get_freeze_count():
        yield
        return
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_LESS_OFTEN * thresholds[0], *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
