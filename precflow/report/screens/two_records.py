"""The screen of one record of both sides: what each holds, what differs, where the error is, and the worst elements."""

from __future__ import annotations

from collections.abc import Sequence

from precflow import numbers
from precflow.comparison.detail.axis_patterns import format_percent
from precflow.comparison.detail.description import Description
from precflow.comparison.detail.detail import Detail, Element
from precflow.comparison.detail.extent import mean, norm
from precflow.comparison.detail.record import RecordDetail
from precflow.report import wording
from precflow.report.model import Row
from precflow.report.screens.paper import Paper, draw_bars, format_shape
from precflow.report.screens.record import describe_elements, format_exact

_WORST = 10
_TOP = 3
_VALUES = "values"
_NOTHING = "-"


def show_pair(row: Row, pair: RecordDetail, blockers: Sequence[str] = ()) -> Paper:
    """Return the screen of one record of both sides.

    Args:
        row: Its measure and its status.
        pair: The record in full.
        blockers: Why a comparison of these two dumps may prove nothing, in words.
    """
    paper, measure, judged = Paper(), row.measure, row.judged
    paper.title(pair.record)
    paper.line(f"{measure.name} · {measure.level} · {measure.phase} · order {measure.order}")
    paper.line()
    status = f"{wording.STATUS_SYMBOLS.get(judged.status, '')} {wording.words(judged.status)}{_describe_limit(row)}"
    paper.fact("status", status, "" if judged.status in {"pass", "accepted", "near_tie", "not_judged"} else "red")
    paper.fact("reason", "" if judged.metric and judged.status == "fail" else judged.reason or measure.reason)
    paper.facts("estimate", [] if judged.status == "undecided" else wording.describe_estimate(row))
    paper.facts("pairing", wording.describe_pairing(row))
    paper.facts("doubt", list(blockers), "yellow")
    paper.fact("where", pair.detail.where if pair.detail else "", "bold")
    paper.fact("no detail", pair.reason, "yellow")
    paper.fact("note", pair.note)
    paper.line()
    facts = compare_facts(row, pair)
    # The dtype stays plain: that it differs is mostly what the recipe asks for.
    paper.table(facts, styles=["", *("red" if same == "differs" else "" for *_, same in facts[2:])])
    paper.line()
    paper.facts("inputs", [f"{one.index}{f' ({one.weight})' if one.weight else ''}: {one.state}" for one in pair.inputs])
    paper.fact("feeds", ", ".join(pair.feeds[:6]))
    reference, target = row.measure.site, row.measure.target_site
    paper.facts("called at", reference.split(" <- ") if reference else [])
    if target and target != reference:
        paper.facts("target's", target.split(" <- "))
    texts = [f"{name} {numbers.number(value)}" for name, value in row.measure.metrics.items()]
    lines = [" · ".join(texts[start : start + 4]) for start in range(0, len(texts), 4)]
    paper.facts("metrics", lines)
    if pair.detail is not None and not row.measure.equal:
        _write_detail(paper, pair.detail)
    return paper


def compare_facts(row: Row, pair: RecordDetail, *, pictures: bool = True) -> list[tuple[str, str, str, str]]:
    """Return the facts of both sides as rows of a table: what, reference, target, and ``same`` or ``differs``.

    Args:
        row: Measure of the record.
        pair: The record in full.
        pictures: Draw histograms as bars of text.
    """
    measure = row.measure
    rows = [
        _compare_fact("dtype", measure.reference_dtype, measure.target_dtype),
        _compare_fact("shape", format_shape(measure.reference_shape), format_shape(measure.target_shape)),
    ]
    both = (pair.detail.reference, pair.detail.target) if pair.detail else (pair.reference, pair.target)
    ours, theirs = map(_list_facts, both)
    rows += [
        _compare_fact(what, ours.get(what, _NOTHING), theirs.get(what, _NOTHING))
        for what in {**ours, **theirs}
        if pictures or what != _VALUES
    ]
    rows += [_compare_fact(f"argument {name}", *texts) for name, texts in measure.arguments.items()]
    return [("", "reference", "target", ""), *rows]


def _list_facts(description: Description | None) -> dict[str, str]:
    if description is None:
        return {}
    facts = {"elements": describe_elements(description.extent)}
    if description.extent.ordinary:
        facts["min / max"] = f"{format_exact(description.extent.minimum)} / {format_exact(description.extent.maximum)}"
        facts["mean"] = format_exact(mean(description.extent))
        facts["norm"] = format_exact(norm(description.extent))
        facts[_VALUES] = f"|{draw_bars(description.values.counts, logarithmic=True)}|"
    facts["first"] = ", ".join(description.first[:3])
    return facts


def _compare_fact(what: str, reference: str, target: str) -> tuple[str, str, str, str]:
    both = (reference or _NOTHING, target or _NOTHING)
    return what, *both, "" if _NOTHING in both else "same" if reference == target else "differs"


def _describe_limit(row: Row) -> str:
    judged = row.judged
    if not judged.metric or judged.status == "undecided":  # whose value is one end of a range
        return ""
    return f"   {wording.describe_use(judged)} ({judged.standard})"


def _write_detail(paper: Paper, detail: Detail) -> None:
    total = detail.exact + sum(count for _, _, count in detail.error_bins)
    paper.line()
    share = numbers.share(detail.unequal / detail.reference.extent.elements) if detail.reference.extent.elements else "none"
    first = f", first at {list(detail.first.index)}: {detail.first.reference} / {detail.first.target}" if detail.first else ""
    paper.fact("unequal", f"{numbers.count(detail.unequal)} elements, {share}{first}")
    if detail.error_bins:
        low, high = detail.error_bins[0][0], detail.error_bins[-1][1]
        drawn = draw_bars([count for _, _, count in detail.error_bins], logarithmic=True)
        equal = f"   and {numbers.count(detail.exact)} of {numbers.count(total)} equal" if detail.exact else ""
        paper.fact("|error|", f"{numbers.number(low)} |{drawn}| {numbers.number(high)}{equal}   (both logarithmic)")
    paper.fact("ulp", _describe_ulps(detail))
    for axis in detail.axes:
        if axis.size > 1 and axis.top:
            top = ", ".join(
                f"{first if first == last else f'{first}-{last}'} {format_percent(share)}"
                for first, last, share in axis.top[:_TOP]
            )
            paper.fact(f"axis {axis.number}", f"|{draw_bars(axis.profile)}| of {numbers.count(axis.size)}   most at {top}")
    for title, worst in (
        ("mismatched", detail.mismatched),
        ("worst", detail.worst_absolute),
        ("relative", detail.worst_relative),
    ):
        _write_elements(paper, title, worst)


def _describe_ulps(detail: Detail) -> str:
    """Return the distances in units in the last place: the median, and how many elements are how far apart."""
    counted = [(low, high, count) for low, high, count in detail.ulps if count]
    if not counted:
        return ""
    classes = [
        f"{numbers.count(low) if low == high else f'to {numbers.count(high)}'}: {numbers.count(n)}" for low, high, n in counted
    ]
    shown = classes if len(classes) <= 8 else [*classes[:3], "...", *classes[-4:]]
    return f"median {describe_median(detail)}   ({'   '.join(shown)})"


def describe_median(detail: Detail) -> str:
    """Return the median distance in units in the last place; as a range, because distances are counted in classes."""
    low, high = detail.median_ulps
    return numbers.count(low) if low == high else f"{numbers.count(low)} to {numbers.count(high)}"


def _write_elements(paper: Paper, title: str, worst: Sequence[Element]) -> None:
    if not worst:
        return
    paper.line()
    rows = [(title, "reference", "target", "error", "relative")]
    for element in worst[:_WORST]:
        error, relative = numbers.number(element.error), numbers.number(element.relative)
        rows.append((str(list(element.index)), element.reference, element.target, error, relative))
    paper.table(rows)
