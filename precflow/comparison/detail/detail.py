"""Compares one pair of tensors in full detail, in blocks, so that memory is bounded whatever their size."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from precflow.comparison.detail.axes import Axis, AxisSums
from precflow.comparison.detail.axis_patterns import AxisPattern, describe_patterns, find_patterns
from precflow.comparison.detail.boxes import BLOCK, Box, cut_boxes, unravel
from precflow.comparison.detail.description import Description, as_scalar, describe
from precflow.comparison.detail.errors import Errors, measure_box, measure_differences, measure_equal_block
from precflow.comparison.detail.heat_map import HeatMap
from precflow.comparison.detail.quantiles import ErrorQuantiles, compare_quantiles
from precflow.comparison.formulas import measure_all
from precflow.comparison.fused.summarize import PairOfTensors, summarize
from precflow.comparison.fused.summary import Summary
from precflow.dumps.mapped_pages import release

_TASK = 64  # boxes that one task of a thread reads


@dataclass(frozen=True)
class Element:
    """One element of a pair.

    Attributes:
        index: Position along each axis; for complex tensors one more number says which part, 0 real and 1 imaginary.
        reference: The reference's value, as the shortest text that reads back as the same value.
        target: The target's value, in the same form.
        error: ``|target - reference|``; NaN if one of them is not finite.
        relative: ``error / |reference|``; NaN if the reference is 0 or the error NaN.
    """

    index: tuple[int, ...]
    reference: str
    target: str
    error: float
    relative: float


@dataclass(frozen=True)
class Detail:
    """Everything about one pair of tensors of the same shape; y is the reference, x the target.

    Attributes:
        reference: Description of the reference's tensor; both histograms have the same range.
        target: Description of the target's tensor.
        metrics: Metric name -> number; a metric that has no meaning is absent.
        mismatches: Number of elements that are NaN, infinite or a mask fill without an equal partner on the other side.
        unequal: Number of elements whose values differ; NaN equals NaN.
        first: The first of these in C order; ``None`` if there is none.
        mismatched: The first elements that are NaN, infinite or a mask fill on one side only, or of different kinds.
        worst_absolute: Elements with the largest ``|x - y|``, largest first.
        worst_relative: Elements with the largest ``|x - y| / |y|``, largest first.
        error_bins: ``(from, to, elements)`` of ``|x - y|`` by powers of two; elements that are equal are not in it.
        exact: Number of compared elements with an error of 0.
        ulps: ``(smallest, largest, elements)`` of distances in units in the last place.
        median_ulps: Smallest and largest distance of the class that holds the median.
        axes: How the squared error is distributed along each axis; for complex tensors the last axis is real and imaginary.
        places: Patterns of the error along the axes.
        where: These patterns as one sentence.
        heat: The squared error over two axes at once; ``None`` where there are none, and without any error.
        quantiles: Sizes of errors against those of one rounding; ``None`` of integers, and without any error.
    """

    reference: Description
    target: Description
    metrics: Mapping[str, float]
    mismatches: int
    unequal: int
    first: Element | None
    mismatched: tuple[Element, ...]
    worst_absolute: tuple[Element, ...]
    worst_relative: tuple[Element, ...]
    error_bins: tuple[tuple[float, float, int], ...]
    exact: int
    ulps: tuple[tuple[int, int, int], ...]
    median_ulps: tuple[int, int]
    axes: tuple[Axis, ...]
    places: tuple[AxisPattern, ...]
    where: str
    heat: HeatMap | None = None
    quantiles: ErrorQuantiles | None = None


def examine(reference: npt.NDArray[Any], target: npt.NDArray[Any], *, threads: int = 0, block: int = BLOCK) -> Detail:
    """Compare a pair of tensors in full detail; they are read several times.

    Args:
        reference: Any element type that a dump can hold.
        target: The same shape, possibly another element type.
        threads: Number of threads; 0 is one per processor. The result does not depend on it.
        block: Elements read at a time; changes only the rounding of sums.

    Raises:
        ValueError: The shapes differ.
    """
    pair = PairOfTensors(reference, target)
    # A complex tensor is read as pairs of reals, so it has one more axis.
    shape = (*reference.shape, 2) if pair.size != reference.size else reference.shape
    summary = summarize(reference, target)
    errors, sums = _measure_errors(pair, shape, summary, threads or os.cpu_count() or 1, block)
    patterns = find_patterns(sums)
    first, second = describe([reference, target], block=block)
    return Detail(
        reference=first,
        target=second,
        metrics=measure_all(summary),
        mismatches=_count_mismatches(summary),
        unequal=errors.unequal,
        first=next(iter(_read_elements(pair, shape, [errors.first] if errors.first >= 0 else [])), None),
        mismatched=_read_elements(pair, shape, errors.mismatched),
        worst_absolute=_read_elements(pair, shape, errors.absolute.places),
        worst_relative=_read_elements(pair, shape, errors.relative.places),
        error_bins=tuple(errors.sizes.bins()),
        exact=errors.sizes.zero,
        ulps=tuple(errors.ulps.rows()),
        median_ulps=errors.ulps.median(),
        axes=sums.axes(),
        places=patterns,
        where=_describe_where(patterns, summary, errors, sums.sizes),
        heat=sums.heat.draw(),
        quantiles=compare_quantiles(reference, target),
    )


def _count_mismatches(summary: Summary) -> int:
    by_place = summary.sentinel_mismatch + summary.other_fill + summary.saturated_mismatch
    return by_place + summary.nonfinite_mismatch


def _measure_errors(
    pair: PairOfTensors, shape: tuple[int, ...], summary: Summary, threads: int, block: int
) -> tuple[Errors, AxisSums]:
    """Return the errors of the pair, and the sums of their squares along each axis.

    The pair is cut into the same tasks for any number of threads, and their results are added up in order. So the result is the
    same to the last bit.
    """
    boxes = cut_boxes(shape, block)
    total, found = AxisSums(shape), Errors()
    with ThreadPoolExecutor(threads) as pool:
        # As many tasks at a time as there are threads: each holds sums along all axes, which would add up in memory.
        while tasks := [task for _ in range(threads) if (task := list(itertools.islice(boxes, _TASK)))]:
            for errors, sums in pool.map(lambda task: _measure_task(pair, shape, summary, task), tasks):
                found += errors
                total.merge(sums)
    return found, total


def _measure_task(pair: PairOfTensors, shape: tuple[int, ...], summary: Summary, task: list[Box]) -> tuple[Errors, AxisSums]:
    sums, errors = AxisSums(shape), Errors()
    for box in task:
        errors += _measure_errors_of_box(pair, box, sums, summary, errors)
    return errors, sums


def _measure_errors_of_box(pair: PairOfTensors, box: Box, sums: AxisSums, summary: Summary, before: Errors) -> Errors:
    reference, target = pair.reference[box.start : box.stop], pair.target[box.start : box.stop]
    differences = measure_differences(reference, target, inexact=pair.inexact, floors=summary.floors)
    errors = (
        measure_equal_block(reference, inexact=pair.inexact, floors=summary.floors)
        if isinstance(differences, int)
        else measure_box(differences, box, sums, float(summary.difference_max), before)
    )
    for side in (reference, target):
        release(side)
    return errors


def _read_elements(pair: PairOfTensors, shape: tuple[int, ...], flat: Iterable[int]) -> tuple[Element, ...]:
    elements = []
    for number in flat:
        y, x = pair.reference[number], pair.target[number]
        exact = not pair.inexact  # Python's integers: NumPy's wrap around, and float64 cannot hold every int64
        error = float(abs(int(x) - int(y))) if exact else abs(float(x) - float(y))
        magnitude = float(abs(int(y))) if exact else abs(float(y))
        relative = error / magnitude if math.isfinite(error) and magnitude > 0 else math.nan
        error = error if math.isfinite(error) else math.nan
        elements.append(Element(unravel(number, shape), as_scalar(y), as_scalar(x), error, relative))
    return tuple(elements)


def _describe_where(patterns: tuple[AxisPattern, ...], summary: Summary, found: Errors, sizes: tuple[int, ...]) -> str:
    """Return where the error is, in one sentence; NaN and mask fills on one side, which have no size, come first."""
    mismatched = _count_mismatches(summary)
    texts = [f"{mismatched} elements are NaN, infinite or a mask's fill on one side only"] if mismatched else []
    if summary.difference_max:
        texts.append(describe_patterns(patterns, sizes))
    elif 0 in sizes:
        texts.append("no element")
    elif not mismatched:
        texts.append("only values that no sum counts differ" if found.unequal else "no error")
    return "; ".join(texts)
