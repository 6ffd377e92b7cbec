"""Whether whole numbers are those of a narrower type that wrapped: 128 became -128, or 256 became 0."""

from __future__ import annotations

import numpy as np

from precflow.comparison.fused.value_classes import Floats

_TYPES = tuple((f"{sign}int{bits}", bits, sign == "") for bits in (8, 16, 32) for sign in ("", "u"))


def find_wrapped_type(reference: Floats, target: Floats) -> tuple[str, int] | None:
    """Return the narrower type whose wrapped numbers the target has, and the first number that it lacks; ``None`` for none.

    Args:
        reference: Whole numbers that are right.
        target: What the target has, of the same shape.

    >>> find_wrapped_type(np.array([126.0, 127.0, 128.0, 129.0]), np.array([126.0, 127.0, -128.0, -127.0]))
    ('int8', 128)
    """
    if not (np.isfinite(reference).all() and np.isfinite(target).all()) or np.array_equal(reference, target):
        return None
    if (reference != np.rint(reference)).any() or (target != np.rint(target)).any():
        return None
    for name, bits, is_signed in _TYPES:
        size = 2.0**bits
        low = -size / 2 if is_signed else 0.0
        if np.array_equal((reference - low) % size + low, target):
            return name, int(low + size)
    return None
