"""The door to the compiled pass: which pairs have one, whether it works here, and its totals as a :class:`Summary`.

Without numba (``pip install 'precflow[fast]'``), for types without a compiled form, and where the self-test fails, the answer
is ``None``, and the NumPy pass does the work.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.comparison.compiled.selftest import problem_of
from precflow.comparison.kernel import PairFacts, pair_facts
from precflow.comparison.ladder import RUNGS
from precflow.comparison.rows import RowNorms
from precflow.comparison.scaled import Scaled
from precflow.comparison.summary import Summary
from precflow.dumps.pages import release

Bits = npt.NDArray[Any]
Range = Callable[[npt.NDArray[Any], npt.NDArray[Any], int, int], Summary]

_PATTERNS = {"float32": np.int32, "bfloat16": np.int16, "float16": np.uint16}
_LOG = logging.getLogger(__name__)
_LOCK = threading.Lock()
_STRETCH = 1 << 19  # elements after which pages are given back: 4 MiB of both sides of float32


def compiled_range(reference: str, target: str) -> Range | None:
    """Return the compiled pass for two types, by name, or ``None``; it is compiled, or loaded, and tested at first use.

    The function takes flat reference elements, as many of the target, the number of the first element in its tensor, and
    the length of a row. Any number of threads may call it; it holds no lock while it works.
    """
    with _LOCK:
        return _tested(reference, target)


@functools.cache
def _tested(reference: str, target: str) -> Range | None:
    if reference not in _PATTERNS or target not in _PATTERNS or importlib.util.find_spec("numba") is None:
        return None
    facts = pair_facts(reference, target)
    try:
        measure = _Form(_kernel(), facts)
        problem = problem_of(measure, facts)
    except Exception as error:  # noqa: BLE001  numba and LLVM fail in many ways, and NumPy can do all of this
        problem = f"{type(error).__name__}: {(str(error) or 'no reason given').splitlines()[0]}"
    if problem:
        _LOG.warning(
            "comparing %s with %s by NumPy, slower: the compiled form does not work here (%s)", target, reference, problem
        )
        return None
    return measure


def _kernel() -> Callable[..., None]:
    from precflow.comparison.compiled.ranges import measure_range  # noqa: PLC0415  imports numba, which takes 0.2 s

    return measure_range


@dataclass(frozen=True, slots=True)
class _Form:
    """The compiled pass for one pair of types; called with a range, its first element and the length of a row."""

    kernel: Callable[..., None]
    facts: PairFacts

    def __call__(self, reference: npt.NDArray[Any], target: npt.NDArray[Any], first: int, length: int) -> Summary:
        """Run the kernel over one range, stretch after stretch, and make a summary of its totals."""
        if not reference.size:
            return Summary(inexact=True)
        left, right = _bits(reference, self.facts.reference.name), _bits(target, self.facts.target.name)
        row = first // length
        rows = (first + reference.size - 1) // length - row + 1
        results = (np.zeros(11), np.zeros(3), np.zeros(15, np.int64), np.zeros((2, rows)))
        for start in range(0, reference.size, _STRETCH):
            parts = left[start : start + _STRETCH], right[start : start + _STRETCH]
            self.kernel(*parts, (first + start - row * length, length), _constants(self.facts), results)
            for part in parts:
                release(part)
        return _summary(self.facts, reference.size, row, results)


def _bits(values: npt.NDArray[Any], name: str) -> Bits:
    bits: Bits = np.require(values, requirements="A").view(_PATTERNS[name])
    bits.flags.writeable = False  # one compiled form serves mapped files and arrays
    return bits


@functools.cache
def _constants(facts: PairFacts) -> tuple[Any, ...]:
    """Return what the kernel knows about the two types, as numbers."""
    fills = np.array([(side.high, side.low, *side.band) for side in facts.fills])
    low, high = max(side.plain_low for side in facts.fills), min(side.high for side in facts.fills)
    bounds = np.array([_order(low), _order(high)], np.int32)
    rungs = [RUNGS[name] for name in facts.rungs]
    ladder = np.array((rungs + rungs[-1:] * 3)[:3])
    for array in (fills, bounds, ladder):
        array.flags.writeable = False
    return fills, bounds, np.float32(facts.reference.smallest_normal).view(np.int32), ladder, facts.target.smallest


def _order(value: float) -> int:
    """Return the place of a value in the order of float32: its bits, or their negative for a negative value."""
    bits = int(np.float32(abs(value)).view(np.int32))
    return bits if value >= 0 else -bits


def _summary(facts: PairFacts, size: int, row: int, results: tuple[npt.NDArray[Any], ...]) -> Summary:
    totals, largest, tallies, squares = results
    sums = [Scaled.of(float(total)) for total in totals]
    counts = [int(count) for count in tallies]
    norms = np.sqrt(squares)
    return Summary(
        inexact=True,
        elements=size,
        unequal=counts[0] if facts.same else size,
        small=counts[1],
        small_mismatch=counts[2],
        within_one_thousandth=counts[3],
        within_five_thousandths=counts[4],
        ulp_max=counts[5],
        sentinel=counts[6],
        nonfinite=counts[7],
        sentinel_mismatch=counts[8],
        nonfinite_mismatch=counts[9],
        infinity_for_sentinel=counts[10],
        close=dict(zip(facts.rungs, counts[11:14], strict=False)),
        negative=bool(counts[14]),
        difference_sum=sums[0],
        difference_square=sums[1],
        reference_sum=sums[2],
        reference_square=sums[3],
        target_sum=sums[4],
        target_square=sums[5],
        product=sums[6],
        relative_sum=sums[7],
        offset_relative_sum=sums[8],
        ulp_sum=sums[9],
        divergence=sums[10],
        difference_max=float(largest[0]),
        relative_max=float(largest[1]),
        offset_relative_max=float(largest[2]),
        rows=RowNorms(row, norms[0], norms[1]),
    )
