"""Tests the compiled pass before it is used: on short pairs with every class of value it must agree with NumPy's.

What numba makes depends on its version, on LLVM and on the processor: fast-math flags, contraction and vectors differ. A wrong
sum would be a wrong verdict that nobody sees. The test runs once for each pair of types; if it fails, NumPy does the work.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from precflow.agent.contract import LARGEST
from precflow.comparison.fused.kernel import PairFacts, summarize_floats
from precflow.comparison.fused.row_norms import split_at_rows
from precflow.comparison.fused.scaled_float import ScaledFloat
from precflow.comparison.fused.summary import Summary, merge
from precflow.dumps.dtypes import NUMPY_DTYPES

SIZE = 9001  # three blocks, the last one short
SPECIAL: tuple[float, ...] = (
    0.0,
    -0.0,
    1e-42,
    6e-8,
    3e-5,
    np.nan,
    np.inf,
    -np.inf,
    -65504.0,
    -65490.0,
    -1e9,
    65504.0,
    -1e4,
    3e38,
    -3e38,
    float(np.finfo(np.float32).min),
    LARGEST["bfloat16"],
    -LARGEST["bfloat16"],
)
TOLERANCE = 1e-12  # of sums, relative: the two add in another order. Counts and maxima are the same


def find_problem(measure: Any, facts: PairFacts) -> str:
    """Return which fields of the compiled summary are wrong; ``""`` if it works."""
    for special, signed, length in ((0.0, True, SIZE), (0.1, True, 77), (0.0, False, 900)):
        reference, target = make_pair(facts, special=special, signed=signed)
        wrong = find_disagreements(measure(reference, target, 0, length), summarize_by_numpy(reference, target, facts, length))
        if wrong:
            return f"its self-test differs in {', '.join(wrong)}"
    return ""


def make_pair(facts: PairFacts, *, special: float, signed: bool) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return two flat tensors; a share ``special`` of each is drawn from ``SPECIAL``."""
    random = np.random.default_rng(20)
    reference = random.standard_normal(SIZE)
    target = reference * (1 + 10.0 ** random.uniform(-9, 0, SIZE))
    for side in (reference, target):
        places = random.random(SIZE) < special
        side[places] = random.choice(SPECIAL, int(places.sum()))
    with np.errstate(over="ignore", invalid="ignore"):
        left, right = (side if signed else np.abs(side) for side in (reference, target))
        return left.astype(NUMPY_DTYPES[facts.reference.name]), right.astype(NUMPY_DTYPES[facts.target.name])


def summarize_by_numpy(reference: npt.NDArray[Any], target: npt.NDArray[Any], facts: PairFacts, length: int) -> Summary:
    """Return the summary that the NumPy pass makes of two flat tensors."""
    parts = [
        summarize_floats(reference[start:stop], target[start:stop], facts, row=start // length, length=length)
        for start, stop in split_at_rows(0, reference.size, length, SIZE)
    ]
    return merge([Summary(inexact=True), *parts])


def find_disagreements(first: Summary, second: Summary) -> list[str]:
    """Return the names of the fields in which two summaries differ by more than the order of additions explains.

    The rounding of the product is relative to the squares, because its terms cancel. The divergence and the target's sum are
    not compared where a value is negative: they mean nothing there.
    """
    return [name for name in Summary.__struct_fields__ if not _agrees(name, first, second)]


def _keep_filled_rows(fills: Summary) -> Summary:
    return replace(fills, rows=fills.rows.filled())


def _agrees(name: str, first: Summary, second: Summary) -> bool:
    left, right = getattr(first, name), getattr(second, name)
    if name == "fills":
        return (left is None) == (right is None) and (
            left is None or not find_disagreements(_keep_filled_rows(left), _keep_filled_rows(right))
        )
    if name == "rows":
        if left.difference.size != right.difference.size:
            return False
        return left.first == right.first and all(
            np.allclose(one, other, rtol=TOLERANCE, atol=0.0)
            for one, other in ((left.difference, right.difference), (left.reference, right.reference))
        )
    if not isinstance(left, ScaledFloat):
        return bool(left == right)
    if name in {"divergence", "target_sum"} and first.negative:
        return True
    room = float(first.reference_square) + float(first.target_square) if name == "product" else 0.0
    return abs(float(left) - float(right)) <= TOLERANCE * (abs(float(right)) + room)
