"""What evidence takes on disk, from what is known of a record: type, shape, share."""

from __future__ import annotations

import math
from collections.abc import Mapping

from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.dumps.records import Record

WHOLE = 1024  # elements up to which a tensor is kept whole in place of its sketch
LINE_BYTES: Mapping[str, int] = {  # of a record in its line, by detail; about, for the text is as long as its names
    "digest": 280,
    "statistics": 400,
    "sketch": 360,
    "tensors": 280,
}
_SKETCH_BYTES = 509 * 4
_ROWS = 1024
_UNKNOWN = 4  # bytes of an element of a type that no table has


def element_bytes(dtype: str) -> int:
    """Return how many bytes an element takes."""
    known = NUMPY_DTYPES.get(dtype)
    return known.itemsize if known is not None else _UNKNOWN


def tensor_bytes(record: Record) -> int:
    """Return how many bytes a record's tensor, or the part of it that was kept, takes in a shard."""
    return math.ceil(math.prod(record.shape) * record.share) * element_bytes(record.dtype)


def sketch_bytes(record: Record, parts: int = 1) -> int:
    """Return how many bytes a record's sketch takes in a shard; small tensors are kept whole.

    Args:
        record: With a shape.
        parts: Two where high and low parts of values are kept apart.
    """
    elements = math.ceil(math.prod(record.shape) * record.share)
    if elements <= WHOLE:
        return tensor_bytes(record)
    return parts * _SKETCH_BYTES + rows_bytes(record)


def rows_bytes(record: Record) -> int:
    """Return how many bytes the norms of a record's rows take in a shard; small tensors have none."""
    elements = math.ceil(math.prod(record.shape) * record.share)
    rows = elements // max(record.shape[-1], 1) if record.shape else 1
    return 4 * min(max(rows, 1), _ROWS) if elements > WHOLE else 0


def holds_tensor(record: Record, *, movement: bool) -> bool:
    """Tell whether a dump in full detail stores a tensor for a record: not for weights that go in, not for movement."""
    return bool(record.known) and not record.weight and not movement
