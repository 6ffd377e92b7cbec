"""Reads small pairs of one shape together: a dump of training may have a hundred thousand of a few kilobytes each.

Of a small pair, nearly all time goes into opening it and into array calls, not into its elements. So the bytes of pairs of one
shape and type are copied into one array a side, their content ids are computed at once, and the compiled pass runs over the
rows. The results are those that :func:`~precflow.comparison.reading.read_pair` gives of each, to the last bit. Whatever is
unusual (damage, fills near other values, a tensor that a view of the dump makes) is left to that function.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from precflow.comparison.batches import count_elements
from precflow.comparison.compiled.engine import find_compiled_pass
from precflow.comparison.fused.row_norms import row_length
from precflow.comparison.reading import PairResult, Reading, ReadOptions, read_pair, summarize_result
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.dumps.protocol import Dump
from precflow.dumps.tensors import SMALL

_TOGETHER = 1 << 8  # pairs: 8 MiB of both sides at most


def group_small(readings: Sequence[Reading], options: ReadOptions) -> list[list[int]]:
    """Return the numbers of readings that may be read together, in groups of one shape and types.

    Only the compiled pass measures many pairs at once, and a metric of the user's own is fed pair by pair.
    """
    alike: dict[tuple[str, str, tuple[int, ...]], list[int]] = defaultdict(list)
    for number, reading in enumerate(readings if options.compiled and not options.own else ()):
        reference, target = reading.reference, reading.target
        if not (reference.part or target.part):
            alike[reference.dtype, target.dtype, reference.shape].append(number)
    return [
        numbers[start : start + _TOGETHER]
        for (*dtypes, shape), numbers in alike.items()
        if all(dtype in NUMPY_DTYPES and 0 < count_elements(shape) * NUMPY_DTYPES[dtype].itemsize <= SMALL for dtype in dtypes)
        and find_compiled_pass(dtypes[0], dtypes[1], options.constants)
        for start in range(0, len(numbers), _TOGETHER)
    ]


def read_together(readings: Sequence[Reading], sides: Mapping[str, Dump], options: ReadOptions) -> list[PairResult]:
    """Read the pairs of one group in this thread."""
    first = readings[0]
    dtypes, shape = (first.reference.dtype, first.target.dtype), first.reference.shape
    measure = find_compiled_pass(*dtypes, options.constants)
    reference = sides["reference"].gather([reading.reference for reading in readings])
    target = None if reference is None else sides["target"].gather([reading.target for reading in readings])
    if measure is None or reference is None or target is None:
        return [read_pair(reading, sides, options) for reading in readings]
    y, x = reference.view(NUMPY_DTYPES[dtypes[0]]), target.view(NUMPY_DTYPES[dtypes[1]])
    summaries = measure.measure_rows(y, x, row_length(shape or (1,)))
    return [
        summarize_result(summary) if summary.settled else read_pair(reading, sides, options)
        for reading, summary in zip(readings, summaries, strict=True)
    ]
