"""The entry to the compiled pass: finds the one for two types, tests it, and turns its totals into a :class:`Summary`.

Without numba (``pip install 'precflow[fast]'``), for types without a compiled form, and if the self test fails, there is none,
and the NumPy pass does the work.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.agent.contract import FILLS
from precflow.comparison.compiled.layout import (
    COUNTS,
    FIRST_CLASS,
    FIRST_RUNG,
    LARGEST,
    MEASURED,
    NEGATIVE,
    RUNGS,
    SEGMENT,
    SUMS,
    TALLIES,
    TOTALS,
    UNEQUAL,
)
from precflow.comparison.compiled.selftest import find_problem
from precflow.comparison.fused import close_tolerances
from precflow.comparison.fused.kernel import PairFacts, pair_facts
from precflow.comparison.fused.row_norms import RowNorms
from precflow.comparison.fused.scaled_float import ScaledFloat
from precflow.comparison.fused.summary import Summary
from precflow.comparison.fused.value_classes import FloatPair
from precflow.dumps.digest import BLOCK_BYTES, Words, add_last, weights, words
from precflow.dumps.mapped_pages import release

Bits = npt.NDArray[Any]
Lanes = tuple[Words, Words]  # of the reference and of the target, uint32 [blocks, 2]

_PATTERNS = {"float32": np.int32, "bfloat16": np.int16, "float16": np.uint16}
_SUMS = (
    "difference_sum difference_square reference_sum reference_square target_square product relative_sum "
    "offset_relative_sum ulp_sum divergence target_sum"
).split()
_CLASSES = (
    "sentinel nonfinite sentinel_mismatch nonfinite_mismatch infinity_for_sentinel other_fill saturated_mismatch"
).split()
_LOG = logging.getLogger(__name__)
_LOCK = threading.Lock()
_NO_WORDS, _NO_LANES = words(np.zeros(0, np.uint8)), np.zeros((0, 2), np.uint32)
_WORD = 4  # bytes of a word of the checksums
_STRETCH = 1 << 20  # elements after which mapped pages are released: 8 MiB of both sides of float32


def find_compiled_pass(reference: str, target: str, constants: tuple[float, ...] = FILLS) -> PairKernel | None:
    """Return the compiled pass for two types, or ``None``; at first use it is compiled, or loaded from disk, and tested.

    The function takes flat reference elements, as many of the target, the number of the first element in its tensor, and
    the length of a row. Any number of threads may call it; it does not hold the interpreter's lock.

    Args:
        reference: Type of the reference.
        target: Type of the target.
        constants: Constants that count as mask fills.
    """
    with _LOCK:
        return _load_and_test(reference, target, constants)


@functools.cache
def _load_and_test(reference: str, target: str, constants: tuple[float, ...]) -> PairKernel | None:
    if reference not in _PATTERNS or target not in _PATTERNS or importlib.util.find_spec("numba") is None:
        return None
    facts = pair_facts(reference, target, constants)
    try:
        measure = PairKernel(_import_kernel(), facts, _kernel_constants(facts))
        problem = find_problem(measure, facts)
    except Exception as error:  # noqa: BLE001  numba and LLVM fail in many ways, and NumPy can do all of this
        problem = f"{type(error).__name__}: {(str(error) or 'no reason given').splitlines()[0]}"
    if problem:
        _LOG.warning(
            "comparing %s with %s by NumPy, slower: the compiled form does not work here (%s)", target, reference, problem
        )
        return None
    return measure


def _import_kernel() -> Callable[..., None]:
    from precflow.comparison.compiled.measure_range import measure_range  # noqa: PLC0415  imports numba, which takes 0.2 s

    return measure_range


@dataclass(frozen=True, slots=True)
class PairKernel:
    """The compiled pass for one pair of types; called with a range, its first element and the length of a row."""

    kernel: Callable[..., None]
    facts: PairFacts
    constants: tuple[Any, ...]

    def __call__(
        self,
        reference: npt.NDArray[Any],
        target: npt.NDArray[Any],
        first: int,
        length: int,
        lanes: Lanes | None = None,
        floors: FloatPair = (0.0, 0.0),
    ) -> Summary:
        """Run the kernel over one range, stretch after stretch, and make a summary of its totals.

        With ``lanes`` of both sides, zeros, the range starts a block of content ids, and they are filled in. Constants below
        the ``floors`` are no fills.
        """
        if not reference.size:
            return Summary(inexact=True)
        left, right = _view_bits(reference, self.facts.reference.name), _view_bits(target, self.facts.target.name)
        row = first // length
        rows = (first + reference.size - 1) // length - row + 1
        results = _make_totals(rows), _make_totals(rows), np.array([0.0, 0.0, np.inf, np.inf])
        bounds, bands, types, rungs = self.constants
        constants = bounds, (bands, types, np.array(floors)), rungs
        scratch = _SCRATCH.scratch(left.dtype, right.dtype)
        for start in range(0, reference.size, _STRETCH):
            parts = left[start : start + _STRETCH], right[start : start + _STRETCH]
            place = (first + start - row * length, length)
            self.kernel(*parts, place, constants, results, scratch, _make_lane_arguments(parts, start, lanes))
            if reference.size > _STRETCH:
                release(*parts)
        return _make_summary(self.facts, reference.size, row, results)

    def measure_rows(self, references: npt.NDArray[Any], targets: npt.NDArray[Any], length: int) -> list[Summary]:
        """Measure many small pairs of one shape: what a call gives for each of them, with less to do around it.

        Args:
            references: The elements of all pairs, ``[pairs, elements]``, at least one each and at most ``_STRETCH``.
            targets: The same of the target.
            length: Length of a row of each tensor.
        """
        number, size = references.shape
        rows = (size - 1) // length + 1
        left, right = _view_bits(references, self.facts.reference.name), _view_bits(targets, self.facts.target.name)
        results = *(_make_totals_of_many(number, rows) for _ in range(2)), np.tile([0.0, 0.0, np.inf, np.inf], (number, 1))
        bounds, bands, types, rungs = self.constants
        constants = bounds, (bands, types, np.zeros(2)), rungs
        scratch, place, no_lanes = (
            _SCRATCH.scratch(left.dtype, right.dtype),
            (0, length),
            _make_lane_arguments((left, right), 0, None),
        )
        kept, filled, extents = results
        for reference, target, *totals, extent in zip(left, right, *kept, *filled, extents, strict=True):
            self.kernel(reference, target, place, constants, (tuple(totals[:4]), tuple(totals[4:]), extent), scratch, no_lanes)
        return _make_summaries(self.facts, size, results)


def _view_bits(values: npt.NDArray[Any], name: str) -> Bits:
    bits: Bits = (values if values.flags.aligned else values.copy()).view(_PATTERNS[name])
    bits.flags.writeable = False  # one compiled form serves mapped files and arrays
    return bits


class _ThreadScratch(threading.local):
    """Memory that the kernel computes in, made once a thread: making it would take as long as measuring a small tensor."""

    def __init__(self) -> None:
        self._made: dict[tuple[np.dtype[Any], np.dtype[Any]], tuple[Any, ...]] = {}

    def scratch(self, reference: np.dtype[Any], target: np.dtype[Any]) -> tuple[Any, ...]:
        """Return memory for the sums and classes of a segment and, for each side, a copy of it and its float32 bits.

        Each array comes with a read-only view of it. Tensors are read-only, and for numba that is another type: reading
        through the view lets one compiled form serve both.
        """
        types = reference, target
        if types not in self._made:
            rooms = []
            for dtype in types:
                copy, wide = np.empty(SEGMENT, dtype), np.empty(SEGMENT, np.int32)
                rooms.append((copy, _view_read_only(copy), wide, _view_read_only(wide)))
            self._made[types] = np.zeros(SUMS), np.zeros(SEGMENT, np.uint8), *rooms
        return self._made[types]


_SCRATCH = _ThreadScratch()


def _make_totals(rows: int) -> tuple[npt.NDArray[Any], ...]:
    """Return zeros for the totals of a range."""
    return np.zeros(TOTALS), np.zeros(LARGEST), np.zeros(TALLIES, np.int64), np.zeros((2, rows))


def _make_totals_of_many(pairs: int, rows: int) -> tuple[npt.NDArray[Any], ...]:
    """Return zeros for the totals of many pairs: the first axis counts pairs, the rest is what :func:`_make_totals` returns."""
    return (
        np.zeros((pairs, TOTALS)),
        np.zeros((pairs, LARGEST)),
        np.zeros((pairs, TALLIES), np.int64),
        np.zeros((pairs, 2, rows)),
    )


def _view_read_only(room: Bits) -> Bits:
    view = room.view()
    view.flags.writeable = False
    return view


def _make_lane_arguments(parts: tuple[Bits, Bits], start: int, lanes: Lanes | None) -> tuple[Any, ...]:
    """Return what the kernel needs for the checksums of a stretch; bytes after the last whole word are added here."""
    if lanes is None:
        return _NO_WORDS, _NO_WORDS, weights(), _NO_LANES, _NO_LANES
    sides, blocks = [], []
    for part, mine in zip(parts, lanes, strict=True):
        block = start * part.itemsize // BLOCK_BYTES
        blocks.append(mine[block : block - (-part.nbytes // BLOCK_BYTES)])
        if part.itemsize == _WORD:
            sides.append(part.view(np.uint32))
            continue
        data = part.view(np.uint8)
        sides.append(words(data))
        add_last(data, blocks[-1])
    return (*sides, weights(), *blocks)


def _kernel_constants(facts: PairFacts) -> tuple[Any, ...]:
    """Return what the kernel knows about the two types, as numbers."""
    most = max(fills.lows.size for fills in facts.fills)
    bands = np.zeros((2, 4, most))
    bands[:, 0], bands[:, 1] = np.inf, -np.inf
    for side, fills in enumerate(facts.fills):
        columns = fills.lows, fills.highs, fills.sizes, fills.classes.astype(np.float64)
        for place, column in enumerate(columns):
            bands[side, place, : column.size] = column
    types = np.array([(*fills.ends, fills.largest, fills.slack, fills.plain) for fills in facts.fills])
    plain = np.float32(min(fills.plain for fills in facts.fills)).view(np.int32)
    bounds = plain, np.float32(facts.reference.smallest_normal).view(np.int32), facts.target.smallest
    rungs = [close_tolerances.RUNGS[name] for name in facts.rungs]
    three = np.array((rungs + rungs[-1:] * RUNGS)[:RUNGS])  # always as many, so that one compiled form serves all types
    for array in (bands, types, three):
        array.flags.writeable = False
    return bounds, bands, types, three


def _make_summary(facts: PairFacts, size: int, row: int, results: tuple[Any, ...]) -> Summary:
    kept, filled, extent = results
    (summary,) = _make_summaries(
        facts, size, (tuple(each[None] for each in kept), tuple(each[None] for each in filled), extent[None]), row
    )
    return summary


def _make_summaries(facts: PairFacts, size: int, results: tuple[Any, ...], row: int = 0) -> list[Summary]:
    """Return the summaries of many ranges of one size, from totals whose first axis counts them."""
    kept, filled, extents = results
    elements = [size] * len(extents)
    measured = kept[2][:, MEASURED].tolist()
    fills = _make_populations(facts, measured, row, filled) if any(measured) else [None] * len(extents)
    classes = kept[2][:, FIRST_CLASS:FIRST_RUNG].tolist()
    unequal = kept[2][:, UNEQUAL].tolist()
    return [
        Summary(
            **population,
            **dict(zip(_CLASSES, counts, strict=True)),
            unequal=bool(differs) or not facts.same,
            largest_reference=extent[0],
            largest_target=extent[1],
            least_fill_reference=extent[2],
            least_fill_target=extent[3],
            fills=Summary(**fill) if fill and fill["elements"] else None,
        )
        for population, counts, differs, extent, fill in zip(
            _make_populations(facts, elements, row, kept), classes, unequal, extents.tolist(), fills, strict=True
        )
    ]


def _make_populations(
    facts: PairFacts, elements: Sequence[int], row: int, results: tuple[npt.NDArray[Any], ...]
) -> Iterator[dict[str, Any]]:
    """Yield the fields of the summary of one population of each range, without its classes."""
    totals, largest, tallies, squares = results
    mantissas, exponents = np.frexp(totals)
    norms = np.sqrt(squares)
    for size, mantissa, exponent, most, counts, (difference, reference) in zip(
        elements, mantissas.tolist(), exponents.tolist(), largest.tolist(), tallies.tolist(), norms, strict=True
    ):
        yield {
            "inexact": True,
            "elements": size,
            "small": counts[0],
            "small_mismatch": counts[1],
            "within_one_thousandth": counts[2],
            "within_five_thousandths": counts[3],
            "ulp_max": counts[COUNTS - 1],
            "close": dict(zip(facts.rungs, counts[FIRST_RUNG:NEGATIVE], strict=False)),
            "negative": bool(counts[NEGATIVE]),
            "difference_max": most[0],
            "relative_max": most[1],
            "offset_relative_max": most[2],
            "rows": RowNorms(row, difference, reference),
            **dict(zip(_SUMS, map(ScaledFloat, mantissa, exponent), strict=True)),
        }
