"""Which rows of a table are read wrongly, wherever they are read.

A row that is wrong wherever its number stands belongs to the table, and not to a sample or a place: the row for padding, which
one side reads as another row, is wrong in the samples that are padded, and the first one is often the longest.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from precflow.comparison.fused.value_classes import Floats

_MOST = 0.5  # share of the different numbers that may be read wrongly: of more, the whole call is
_SHOWN = 3


def describe_wrong_rows(numbers: npt.NDArray[np.integer], table: Floats, target: Floats) -> str:
    """Say what is read in place of which rows, ``""`` if the wrong rows are not the same wherever their number stands.

    Args:
        numbers: Whole numbers of the rows that are read, of any shape.
        table: ``(rows, features)``.
        target: What the target read, ``(*numbers.shape, features)``.

    >>> table = np.arange(12.0).reshape(6, 2); numbers = np.array([[1, 2, 3], [4, 0, 0]])
    >>> read = table[numbers]; read[numbers == 0] = table[5]
    >>> describe_wrong_rows(numbers, table, read)
    'row 5 in place of row 0'
    """
    flat = numbers.reshape(-1)
    if table.ndim != 2 or target.shape != (*numbers.shape, table.shape[1]) or not flat.size or not np.isfinite(target).all():
        return ""
    if flat.min() < 0 or flat.max() >= len(table):
        return ""
    read = target.reshape(flat.size, -1)
    wrong = (read != table[flat]).any(axis=1)
    rows, known = np.unique(flat[wrong]), np.unique(flat)
    if not 0 < len(rows) <= _MOST * len(known) or wrong[np.isin(flat, rows)].sum() < np.isin(flat, rows).sum():
        return ""
    found = [_name_row(table, read[flat == row]) for row in rows[:_SHOWN]]
    if any(one is None for one in found):
        return ""
    more = f" and of {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    return ", ".join(f"{name} in place of row {row}" for name, row in zip(found, rows, strict=False)) + more


def _name_row(table: Floats, read: Floats) -> str | None:
    """Say what was read for one number; ``None`` if not the same each time."""
    if (read != read[0]).any():
        return None
    if not read[0].any():
        return "zeros"
    same = np.flatnonzero((table == read[0]).all(axis=1))
    return f"row {same[0]}" if len(same) == 1 else "other values"
