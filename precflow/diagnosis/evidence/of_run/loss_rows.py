"""Which tokens count in the loss, by the gradient that arrives at the model's output.

A token that a loss leaves out has no gradient: its row is exactly zero, in any element type, and no rounding makes it so. The
loss itself is one number, and in 16 bits one number fits many causes. Norms of rows, which a sketch has beside it, are enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from precflow.diagnosis.evidence.of_run.micro_batches import pair_arriving
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.diagnosis.evidence.tensors import read_row_norms
from precflow.dumps.protocol import Dump

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison

EVIDENCE = {
    "tokens_left_out": Evidence(
        "tokens that the target's loss leaves out",
        "Rows of the gradient at the model's output that are exactly zero on the target alone; absent if there are none.",
    ),
    "tokens_added": Evidence("extra tokens in the target's loss", "The same for rows that are zero on the reference alone."),
    "tokens_ratio": Evidence("other rows of that gradient", "Their size over that of the reference, the median."),
    "labels_shifted": Evidence(
        "rows that count are shifted by",
        "Places along the sequence: rows of that gradient that are not zero are the reference's, shifted; absent if not.",
    ),
    "labels_shifted_rows": Evidence("rows that count on one side only", "Of a shift, at the beginnings and ends of texts."),
}

_SMALL = 0.1  # of the median row's norm: a smaller row may have vanished in float16
_FEWEST = 4  # rows that count on both sides
_FEWEST_SHIFTED = 3  # rows that a shift has to move
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
    pairs = pair_arriving(reference, target)
    if not pairs:
        return {}
    here, there = read_row_norms(reference, pairs[0][0]), read_row_norms(target, pairs[0][1])
    if here is None or there is None or here.shape != there.shape:
        return {}
    if shifted := find_shift(here, there):
        return shifted
    # The loss of a micro batch may be divided by the tokens of the whole step.
    counts = [
        [np.count_nonzero(norms) for one, other in pairs if (norms := read_row_norms(dump, (one, other)[side])) is not None]
        for side, dump in enumerate((reference, target))
    ]
    whole = sum(counts[0]) / sum(counts[1]) if all(len(count) == len(pairs) for count in counts) and any(counts[1]) else 1.0
    return compare_rows(here.reshape(-1), there.reshape(-1), whole=whole)


def find_shift(here: Rows, there: Rows) -> dict[str, Any]:
    """Return by how many places the rows that count are shifted, and how many count on one side only; nothing if they are not.

    What is shifted in at the border is free. A shift loses at one end of a text what it gains at the other, where rows that
    count at ends alone may be padding; and one text alone may have another token ignored.

    >>> find_shift(np.array([[0, 0, 1, 1, 0], [0, 1, 1, 1, 0]]), np.array([[0, 1, 1, 0, 0], [1, 1, 1, 0, 0]]))
    {'labels_shifted': -1, 'labels_shifted_rows': 4}

    Args:
        here: Norms of the rows on the reference, as they lie: the last axis is the sequence.
        there: The same on the target.
    """
    one, two = here > 0.0, there > 0.0
    only = int(np.count_nonzero(one != two))
    if only < _FEWEST_SHIFTED or not (one & two).any() or not (one & ~two).any() or not (two & ~one).any():
        return {}
    for places in (-1, 1):
        moved, own = (one[..., 1:], two[..., :-1]) if places < 0 else (one[..., :-1], two[..., 1:])
        if np.array_equal(moved, own):
            return {"labels_shifted": places, "labels_shifted_rows": only}
    return {}


def compare_rows(here: Rows, there: Rows, *, whole: float = 1.0) -> dict[str, Any]:
    """Return which rows count on one side only, where all others have gradients in one ratio: that of the numbers, or 1.

    Args:
        here: Norms of the rows on the reference.
        there: The same on the target.
        whole: Tokens of the whole step on the reference over those of the target.
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
    if all(abs(ratio / expected - 1.0) > _SAME for expected in (counted, whole, 1.0)):
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
