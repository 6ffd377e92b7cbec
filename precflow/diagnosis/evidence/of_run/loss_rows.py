"""Which tokens count in the loss, by the gradient that arrives at the model's output.

A token that a loss leaves out has no gradient: its row is exactly zero, in any element type, and no rounding makes it so. The
loss itself is one number, and in 16 bits one number fits many causes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from precflow.agent.contract import BACKWARD
from precflow.comparison.fused.value_classes import widen
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.diagnosis.evidence.tensors import call_identity
from precflow.dumps.dtypes import FLOATS
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record
from precflow.errors import DumpError

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison

EVIDENCE = {
    "tokens_left_out": Evidence(
        "tokens that the target's loss leaves out",
        "Rows of the gradient at the model's output that are exactly zero on the target alone; absent if there are none.",
    ),
    "tokens_added": Evidence("extra tokens in the target's loss", "The same for rows that are zero on the reference alone."),
    "tokens_ratio": Evidence("other rows of that gradient", "Their size over that of the reference, the median."),
}

_MOST = 1 << 26  # elements of a gradient that is read
_SMALL = 0.1  # of the median row's norm: a smaller row may have vanished in float16
_FEWEST = 4  # rows that count on both sides
_SAME = 0.05  # deviation of the rows' median ratio from the one that the number of tokens gives
_EACH = 0.25  # deviation of a row's ratio from the median: a maximum over tokens that chose otherwise changes single rows

Rows = npt.NDArray[np.float64]


def gather(run: Comparison) -> dict[str, Any]:
    """Return what is known of rows without a gradient, where something is suspect."""
    return find_rows(run.reference, run.target) if run.region.suspects and not run.blockers else {}


def find_rows(reference: Dump, target: Dump) -> dict[str, Any]:
    """Return the evidence about rows without a gradient, by the names of ``EVIDENCE``; nothing where it is not known.

    Args:
        reference: Dump of the reference.
        target: Dump of the target.
    """
    others = {call_identity(call): call for call in target.calls() if _is_backward(call)}
    arriving = (call for call in sorted(reference.calls(), key=lambda one: one.order) if _is_backward(call))
    call = next(arriving, None)  # at the model itself, or at its last module
    other = None if call is None else others.get(call_identity(call))
    if call is None or other is None:
        return {}
    theirs = {record.index: record for record in other.inputs}
    for record in call.inputs:
        norms = [_read_norms(dump, one) for dump, one in ((reference, record), (target, theirs.get(record.index)))]
        if norms[0] is not None and norms[1] is not None and norms[0].shape == norms[1].shape:
            return compare_rows(norms[0], norms[1])
    return {}


def _is_backward(call: Call) -> bool:
    return call.phase == BACKWARD and not call.operator and any(len(record.shape) > 1 for record in call.inputs)


def _read_norms(dump: Dump, record: Record | None) -> Rows | None:
    """Return the norm of each row of the last axis; ``None`` if the tensor is not there or no gradient of tokens."""
    if record is None or not record.stored or record.part or record.dtype not in FLOATS or len(record.shape) < 2:
        return None
    if not 0 < math.prod(record.shape) <= _MOST:
        return None
    try:
        values = widen(np.ascontiguousarray(dump.tensor(record)).reshape(-1))
    except DumpError:  # the comparison has already called the record unreadable
        return None
    norms: Rows = np.linalg.norm(values.reshape(-1, record.shape[-1]), axis=1)
    return norms if np.isfinite(norms).all() else None


def compare_rows(here: Rows, there: Rows) -> dict[str, Any]:
    """Return which rows count on one side only, where all others have gradients in one ratio: that of the numbers, or 1.

    Args:
        here: Norms of the rows on the reference.
        there: The same on the target.
    """
    both = (here > 0.0) & (there > 0.0)
    lost, added = (here > 0.0) & (there == 0.0), (here == 0.0) & (there > 0.0)
    only = lost if lost.any() else added
    if not only.any() or (lost.any() and added.any()) or np.count_nonzero(both) < _FEWEST:
        return {}
    own = here if lost.any() else there
    if own[only].min() < _SMALL * float(np.median(own[both])):
        return {}
    large = both & (here >= _SMALL * float(np.median(here[both])))
    ratio = float(np.median(there[large] / here[large]))
    if np.abs(there[large] / here[large] / ratio - 1.0).max() > _EACH:
        return {}
    counted = np.count_nonzero(here) / np.count_nonzero(there)  # a mean over fewer tokens gives each of them more
    if all(abs(ratio / expected - 1.0) > _SAME for expected in (counted, 1.0)):
        return {}
    name = "tokens_left_out" if lost.any() else "tokens_added"
    return {name: _describe(np.flatnonzero(only), len(here)), "tokens_ratio": ratio}


def _describe(rows: npt.NDArray[np.intp], count: int) -> str:
    """Say which rows are meant.

    >>> _describe(np.array([45, 46]), 48), _describe(np.array([1, 7]), 8)
    ('2 of 48 (rows 45, 46)', '2 of 8 (rows 1, 7)')
    """
    listed = ", ".join(map(str, rows[:5])) + (f" and {len(rows) - 5} more" if len(rows) > 5 else "")
    return f"{len(rows)} of {count} (row{'s' * (len(rows) > 1)} {listed})"
