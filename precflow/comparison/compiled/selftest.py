"""A short pair with every class of value in it: the compiled pass must make of it what NumPy makes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.agent.contract import LARGEST
from precflow.comparison.compiled.agreement import disagreements
from precflow.comparison.kernel import PairFacts, float_block
from precflow.comparison.rows import pieces
from precflow.comparison.summary import Summary, merge
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
)
SPECIAL = (*SPECIAL, float(np.finfo(np.float32).min), LARGEST["bfloat16"], -LARGEST["bfloat16"])


def pair_of(facts: PairFacts, *, special: float, signed: bool) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return a pair of flat tensors, a share ``special`` of each side drawn from ``SPECIAL``."""
    random = np.random.default_rng(20)
    reference = random.standard_normal(SIZE)
    target = reference * (1 + 10.0 ** random.uniform(-9, 0, SIZE))
    for side in (reference, target):
        places = random.random(SIZE) < special
        side[places] = random.choice(SPECIAL, int(places.sum()))
    with np.errstate(over="ignore", invalid="ignore"):
        left, right = (side if signed else np.abs(side) for side in (reference, target))
        return left.astype(NUMPY_DTYPES[facts.reference.name]), right.astype(NUMPY_DTYPES[facts.target.name])


def by_numpy(reference: npt.NDArray[Any], target: npt.NDArray[Any], facts: PairFacts, length: int) -> Summary:
    """Return the summary of a flat pair as the NumPy pass makes it."""
    parts = [
        float_block(reference[start:stop], target[start:stop], facts, row=start // length, length=length)
        for start, stop in pieces(0, reference.size, length, SIZE)
    ]
    return merge([Summary(inexact=True), *parts])


def problem_of(measure: Any, facts: PairFacts) -> str:
    """Return which fields of the compiled summary are wrong, ``""`` where it works."""
    for special, signed, length in ((0.0, True, SIZE), (0.1, True, 77), (0.0, False, 900)):
        reference, target = pair_of(facts, special=special, signed=signed)
        wrong = disagreements(measure(reference, target, 0, length), by_numpy(reference, target, facts, length))
        if wrong:
            return f"its self-test differs in {', '.join(wrong)}"
    return ""
