"""The fixed ladder of tolerances for which elements are counted, so that ``allclose`` needs no second pass.

A record of a float32 operator inside a float16 run is judged by float16's tolerances. So every rung from the record's own
type down to the coarsest is counted.
"""

from __future__ import annotations

import numpy as np

from precflow.comparison.fused.value_classes import Floats

# rtol and atol of torch.testing.assert_close; from tight to loose in both, which :func:`count_close` relies on
RUNGS = {"float64": (1e-7, 1e-7), "float32": (1.3e-6, 1e-5), "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5)}


def rungs_from(coarse: str) -> tuple[str, ...]:
    """Return the rungs for a type and all coarser ones; none for float8, where ``assert_close`` has no tolerance.

    >>> rungs_from("float16")
    ('float16', 'bfloat16')
    """
    names = tuple(RUNGS)
    return names[names.index(coarse) :] if coarse in RUNGS else ()


def count_close(distance: Floats, magnitude: Floats, rungs: tuple[str, ...]) -> dict[str, int]:
    """Count the elements with ``distance <= atol + rtol * magnitude`` for each rung.

    Args:
        distance: |d|, finite.
        magnitude: |y|, finite, same shape.
        rungs: Names in ``RUNGS``, from tight to loose: once all elements are within, they are on the looser ones too.
    """
    counts: dict[str, int] = {}
    within = 0
    for name in rungs:
        if within < distance.size:
            relative, absolute = RUNGS[name]
            allowed = magnitude * relative
            allowed += absolute
            within = int(np.count_nonzero(distance <= allowed))
        counts[name] = within
    return counts
