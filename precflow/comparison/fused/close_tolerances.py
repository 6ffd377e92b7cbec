"""The tolerances of ``assert_close`` by type, and how many elements are within them.

Which of them decides is known only when limits are applied: a record of a float32 operator inside a float16 run is judged by
float16's. So elements are counted for the record's own type and all coarser ones, and no second pass is needed.
"""

from __future__ import annotations

import numpy as np

from precflow.comparison.fused.value_classes import Floats

# rtol and atol of torch.testing.assert_close; from tight to loose, which :func:`count_close` relies on
RUNGS = {"float64": (1e-7, 1e-7), "float32": (1.3e-6, 1e-5), "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5)}


def rungs_from(coarse: str) -> tuple[str, ...]:
    """Return a type and all coarser ones that have tolerances; none for float8, for which ``assert_close`` has none.

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
        rungs: Names in ``RUNGS``, from tight to loose: once all elements are within one, they are within the looser ones too.
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
