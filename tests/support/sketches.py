"""Sketches of whole tensors: precflow itself adds them up block by block while it reads."""

import numpy as np

from precflow.comparison.estimated.sketch import BLOCK, BUCKETS, sketch_block


def make_sketch(values):
    """Return the sketch of a tensor's values: flat and finite, with 0 in place of NaN, infinities and mask fills."""
    total = np.zeros(BUCKETS)
    for number, start in enumerate(range(0, values.size, BLOCK)):
        total += sketch_block(values[start : start + BLOCK], number)
    return total
