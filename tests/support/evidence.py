"""Records and dumps that keep less than the tensors, made from tensors as an agent would make them."""

from dataclasses import replace

import msgspec
import numpy as np

from precflow.agent.contract import DETAILS, FILLS, Identity
from precflow.comparison.estimated import estimates
from precflow.comparison.estimated.kept_evidence import KeptTensor, sum_tensor
from precflow.comparison.measure import Measure
from precflow.dumps.records import Record

WHO = Identity("a", 0, "linear", 0, "forward", "output", "0", 0, 0)


class Dump:
    """A dump of one record in one detail; its sums have the rounding of float32."""

    fills = FILLS

    def __init__(self, array, detail, content, **facts):
        self.array = array
        self.known = sum_tensor(array, KeptTensor(array.dtype.name, array.shape))
        self.detail = DETAILS.index(detail)
        counted = self.known.statistics if 0 < self.detail < 3 else None
        self.record = Record.of(
            WHO, 0, array.dtype.name, array.shape, content, detail == "tensors", None, "", statistics=counted, **facts
        )

    def tensor(self, record):
        del record
        return self.array

    def sketch(self, record):
        del record
        return None if self.detail < 2 else self.known.sketch.astype(np.float32).reshape(1, -1)

    def rows(self, record):
        del record
        return None if self.detail < 2 or self.known.rows is None else self.known.rows.astype(np.float32)

    def counted(self, **changes):
        """Return the dump with other statistics."""
        self.record = msgspec.structs.replace(
            self.record, statistics=msgspec.structs.replace(self.record.statistics, **changes)
        )
        return self


def paired(first, second, *, equal=False, **facts):
    """Return the measure of two records before any number is known."""
    plain = Measure("a/linear.0/forward.output.0", "a / linear", "a", "linear", "api", "forward", 0, "paired")
    left, right = first.record, second.record
    return replace(
        plain,
        reference_dtype=left.dtype,
        target_dtype=right.dtype,
        reference_shape=left.shape,
        target_shape=right.shape,
        equal=equal,
        **facts,
    )


def measured(one, other, details=("sketch", "sketch"), contents=("c1", "c2"), **facts):
    """Measure two arrays of which each side kept a detail."""
    first, second = Dump(one, details[0], contents[0], **facts), Dump(other, details[1], contents[1], **facts)
    equal = bool(contents[0]) and contents[0] == contents[1]
    return estimates.estimate_pair(paired(first, second, equal=equal), first.record, second.record, first, second)
