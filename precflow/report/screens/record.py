"""The screen of one record: its name, the call that made it, where its tensor comes from and goes to, and what is in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from precflow import numbers
from precflow.comparison.detail.description import Description
from precflow.comparison.detail.extent import Extent, mean, norm
from precflow.comparison.detail.histogram import Histogram
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.dumps.lookup import FoundRecord
from precflow.dumps.records import Call, Statistics
from precflow.report.screens.paper import Paper, draw_bars, format_shape, format_size

_MOST_USERS = 5


@dataclass(frozen=True)
class RecordView:
    """One record and everything that is known about it.

    Attributes:
        found: The record and its call.
        text: What to type for it.
        source: The output of an earlier call that this tensor is, ``None`` if it comes from outside.
        users: The inputs of later calls that take this tensor.
        kept: What is kept of it, in words.
        problem: Why its tensor cannot be described, ``""`` if it can or if none was stored.
        description: What the tensor holds, ``None`` if it cannot be read.
    """

    found: FoundRecord
    text: str
    source: FoundRecord | None
    users: Sequence[FoundRecord]
    kept: str
    problem: str = ""
    description: Description | None = None


def show_record(view: RecordView) -> Paper:
    """Return the screen of one record."""
    paper, record, call = Paper(), view.found.record, view.found.call
    identity = record.identity
    paper.title(view.text)
    place = f"{identity.phase} · {identity.role} {identity.index} · step {identity.step} · rank {identity.rank}"
    paper.line(f"{call.name} · {call.level} · {place}")
    paper.line()
    paper.fact("dtype", record.dtype)
    paper.fact("shape", f"{format_shape(record.shape)}   {_describe_extent(record.shape, record.dtype)}")
    paper.fact("content", record.content or "none: a tensor without plain bytes, or a weight that went into a call")
    paper.fact("kept as", view.kept)
    paper.fact("problem", view.problem, "red")
    paper.fact("weight", record.weight)
    paper.fact("call", describe_call(call))
    paper.fact("source", _describe_source(view))
    shown = [user.text for user in view.users[:_MOST_USERS]]
    more = [f"and {len(view.users) - _MOST_USERS} more"] if len(view.users) > _MOST_USERS else []
    paper.facts("users", [*shown, *more])
    paper.facts("called at", call.site.split(" <- ") if call.site else [])
    paper.facts("arguments", [f"{name} = {value}" for name, value in call.arguments.items()])
    if view.description is not None:
        paper.line()
        write_description(paper, view.description)
    elif record.statistics is not None:
        paper.line()
        write_statistics(paper, record.statistics)
    return paper


def describe_call(call: Call) -> str:
    """Return a call in words: its number in the step, the class of its module, and what is special about it."""
    special = [word for word, holds in (("movement", call.movement), ("compiled", call.compiled)) if holds]
    words = [
        f"number {call.order} of its step",
        call.class_name,
        f"call {call.call} of the module" if call.call else "",
        *special,
    ]
    return " · ".join(word for word in words if word)


def write_description(paper: Paper, description: Description) -> None:
    """Write what a tensor holds: kinds of values, extremes, a histogram, the first and the last values."""
    paper.fact("elements", describe_elements(description.extent))
    if description.extent.ordinary:
        paper.fact("min / max", f"{format_exact(description.extent.minimum)} / {format_exact(description.extent.maximum)}")
        paper.fact("mean", numbers.number(mean(description.extent)))
        paper.fact("norm", format_exact(norm(description.extent)))
        paper.fact("histogram", draw_histogram(description.values))
    paper.fact("first", ", ".join(description.first))
    paper.fact("last", ", ".join(description.last))


def write_statistics(paper: Paper, kept: Statistics) -> None:
    """Write the statistics that the agent kept of a tensor instead of the tensor itself."""
    paper.line("  counted on the device; the tensor itself was not stored", "dim")
    counts = {
        "zero": kept.zero,
        "mask fill": kept.sentinel,
        "NaN": kept.nan,
        "Inf": kept.positive_infinity + kept.negative_infinity,
    }
    paper.fact("elements", _format_counts({**counts, "saturated": kept.saturated}))
    if kept.minimum is not None and kept.maximum is not None:
        paper.fact("min / max", f"{format_exact(kept.minimum)} / {format_exact(kept.maximum)}")
    if kept.sum is not None:
        paper.fact("sum", format_exact(kept.sum))
    if kept.square is not None and kept.square >= 0:
        paper.fact("norm", format_exact(math.sqrt(kept.square)))


def describe_elements(extent: Extent) -> str:
    """Return how many elements are ordinary, zero, mask fills, NaN and so on; kinds that do not occur are left out."""
    infinite = extent.positive_infinity + extent.negative_infinity
    special = {
        "zero": extent.zero,
        "mask fill": extent.sentinel,
        "NaN": extent.nan,
        "Inf": infinite,
        "saturated": extent.saturated,
    }
    return _format_counts({"ordinary": extent.ordinary, **{name: count for name, count in special.items() if count}})


def draw_histogram(histogram: Histogram) -> str:
    """Return a histogram as one line of bars between the smallest and the largest value."""
    if not histogram.counts:
        return ""
    drawn = draw_bars(histogram.counts, logarithmic=True)
    return f"{numbers.number(histogram.low)} |{drawn}| {numbers.number(histogram.high)}   (height: logarithm of the count)"


def format_exact(value: float) -> str:
    """Return a number with enough digits to compare it by eye with another one.

    >>> format_exact(431.77412345), format_exact(3.0), format_exact(2**40), format_exact(float("-inf"))
    ('431.7741', '3', '1099511627776', '-infinity')
    """
    if isinstance(value, int):
        return str(value)
    return f"{value:.7g}" if math.isfinite(value) else numbers.number(value)


def _describe_extent(sizes: Sequence[int], dtype: str) -> str:
    count = math.prod(sizes)
    itemsize = NUMPY_DTYPES[dtype].itemsize if dtype in NUMPY_DTYPES else 0
    return f"{numbers.plural(count, 'element')}" + (f", {format_size(count * itemsize)}" if itemsize else "")


def _describe_source(view: RecordView) -> str:
    """Return where a tensor comes from; ``""`` for the output of an operator, which made it itself."""
    if view.source is not None:
        return view.source.text
    is_own_output = view.found.record.whose.role == "output" and view.found.call.operator
    return "" if is_own_output or view.found.record.weight else "outside: no recorded call made it"


def _format_counts(counts: Mapping[str, int | None]) -> str:
    return " · ".join(f"{name} {numbers.count(number)}" for name, number in counts.items() if number is not None)
