"""One record of one dump in the terminal: who it is, where it came from and goes to, and what its tensor holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from precflow.comparison.detail.description import Description
from precflow.comparison.detail.extent import Extent, mean, norm
from precflow.comparison.detail.histogram import Histogram
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.dumps.lookup import Found
from precflow.dumps.records import Call, Statistics
from precflow.report import wording
from precflow.report.screens.paper import Paper, bars, shape, size

_MOST_USERS = 5


@dataclass(frozen=True)
class RecordView:
    """One record with everything that is known about it.

    Attributes:
        found: The record and its call.
        text: What to type for it.
        source: The output that it came from, ``None`` from outside.
        users: Inputs that it became.
        kept: What is kept of it, in words.
        problem: Why its tensor cannot be described, ``""`` where it can or where nothing is wrong.
        description: Its tensor, ``None`` where there is none to be read.
    """

    found: Found
    text: str
    source: Found | None
    users: Sequence[Found]
    kept: str
    problem: str = ""
    description: Description | None = None


def record_screen(view: RecordView) -> Paper:
    """Return the screen of a record."""
    paper, record, call = Paper(), view.found.record, view.found.call
    identity = record.identity
    paper.title(view.text)
    place = f"{identity.phase} · {identity.role} {identity.index} · step {identity.step} · rank {identity.rank}"
    paper.line(f"{call.name} · {call.level} · {place}")
    paper.line()
    paper.fact("dtype", record.dtype)
    paper.fact("shape", f"{shape(record.shape)}   {_extent(record.shape, record.dtype)}")
    paper.fact("content", record.content or "none: a tensor without plain bytes, or a weight that went into a call")
    paper.fact("kept", view.kept)
    paper.fact("problem", view.problem, "red")
    paper.fact("weight", record.weight)
    paper.fact("call", call_words(call))
    paper.fact("source", _source(view))
    paper.facts("users", _users(view))
    paper.facts("called at", call.site.split(" <- ") if call.site else [])
    paper.facts("arguments", [f"{name} = {value}" for name, value in call.arguments.items()])
    if view.description is not None:
        paper.line()
        describe(paper, view.description)
    elif record.statistics is not None:
        paper.line()
        statistics(paper, record.statistics)
    return paper


def call_words(call: Call) -> str:
    """Return what a call was: its number, the class of the module, and what is special about it."""
    special = [word for word, holds in (("movement", call.movement), ("compiled", call.compiled)) if holds]
    words = [
        f"number {call.order} of its step",
        call.class_name,
        f"call {call.call} of the module" if call.call else "",
        *special,
    ]
    return " · ".join(word for word in words if word)


def describe(paper: Paper, of: Description) -> None:
    """Write what a tensor holds: classes of values, sums, a histogram, both ends."""
    paper.fact("elements", elements(of.extent))
    if of.extent.ordinary:
        paper.fact("min / max", f"{exact(of.extent.minimum)} / {exact(of.extent.maximum)}")
        paper.fact("mean", wording.number(mean(of.extent)))
        paper.fact("norm", exact(norm(of.extent)))
        paper.fact("histogram", picture(of.values))
    paper.fact("first", ", ".join(of.first))
    paper.fact("last", ", ".join(of.last))


def statistics(paper: Paper, of: Statistics) -> None:
    """Write what the agent counted of a tensor that it did not store."""
    paper.line("  counted on the device; the tensor itself was not stored", "dim")
    counts = {"zero": of.zero, "sentinel": of.sentinel, "NaN": of.nan, "Inf": of.positive_infinity + of.negative_infinity}
    paper.fact("elements", _counts({**counts, "saturated": of.saturated}))
    if of.minimum is not None and of.maximum is not None:
        paper.fact("min / max", f"{exact(of.minimum)} / {exact(of.maximum)}")
    if of.sum is not None:
        paper.fact("sum", exact(of.sum))
    if of.square is not None and of.square >= 0:
        paper.fact("norm", exact(math.sqrt(of.square)))


def elements(of: Extent) -> str:
    """Return how many elements are of which class; classes that do not occur are left out."""
    infinite = of.positive_infinity + of.negative_infinity
    special = {"zero": of.zero, "mask fill": of.sentinel, "NaN": of.nan, "Inf": infinite, "saturated": of.saturated}
    return _counts({"ordinary": of.ordinary, **{name: count for name, count in special.items() if count}})


def picture(of: Histogram) -> str:
    """Return a histogram as one line between its two ends."""
    if not of.counts:
        return ""
    drawn = bars(of.counts, logarithmic=True)
    return f"{wording.number(of.low)} |{drawn}| {wording.number(of.high)}   (height: logarithm of the count)"


def exact(value: float) -> str:
    """Return a number with enough digits to compare it by eye with another one.

    >>> exact(431.77412345), exact(3.0), exact(2**40), exact(float("-inf"))
    ('431.7741', '3', '1099511627776', '-infinity')
    """
    if isinstance(value, int):
        return str(value)
    return f"{value:.7g}" if math.isfinite(value) else wording.number(value)


def _extent(sizes: Sequence[int], dtype: str) -> str:
    count = math.prod(sizes)
    itemsize = NUMPY_DTYPES[dtype].itemsize if dtype in NUMPY_DTYPES else 0
    return f"{wording.plural(count, 'element')}" + (f", {size(count * itemsize)}" if itemsize else "")


def _source(view: RecordView) -> str:
    """Return where a record came from; an operator made its outputs itself."""
    if view.source is not None:
        return view.source.text
    made_here = view.found.record.whose.role == "output" and view.found.call.operator
    return "" if made_here or view.found.record.weight else "outside: no recorded call made it"


def _users(view: RecordView) -> list[str]:
    shown = [one.text for one in view.users[:_MOST_USERS]]
    more = [f"and {len(view.users) - _MOST_USERS} more"] if len(view.users) > _MOST_USERS else []
    return [*shown, *more]


def _counts(counts: Mapping[str, int | None]) -> str:
    return " · ".join(f"{name} {wording.count(number)}" for name, number in counts.items() if number is not None)
