"""One record of both sides in the terminal: what each holds, what differs, where it is, and the worst elements."""

from __future__ import annotations

from collections.abc import Sequence

from precflow.comparison.detail.description import Description
from precflow.comparison.detail.detail import Detail, Element
from precflow.comparison.detail.extent import mean, norm
from precflow.comparison.detail.record import RecordDetail
from precflow.comparison.detail.whereabouts import percent
from precflow.report import wording
from precflow.report.model import Row
from precflow.report.screens.paper import Paper, bars, shape
from precflow.report.screens.record import elements, exact

_WORST = 10
_TOP = 3
_VALUES = "values"
_NOTHING = "-"


def pair_screen(row: Row, of: RecordDetail, blockers: Sequence[str] = ()) -> Paper:
    """Return the screen of one record of both sides.

    Args:
        row: Its measure and its status.
        of: Its detail.
        blockers: What makes any comparison of the two dumps doubtful, in words.
    """
    paper, measure, judged = Paper(), row.measure, row.judged
    paper.title(of.record)
    paper.line(f"{measure.name} · {measure.level} · {measure.phase} · order {measure.order}")
    paper.line()
    failed = judged.status not in {"pass", "accepted", "not_judged"}
    paper.fact(
        "status", f"{wording.STATUS_SYMBOLS.get(judged.status, '')} {wording.words(judged.status)}{_limit(row)}", _red(failed)
    )
    paper.fact("reason", "" if judged.metric and judged.status == "fail" else judged.reason or measure.reason)
    paper.facts("estimate", [] if judged.status == "undecided" else wording.estimated(row))
    paper.facts("doubt", list(blockers), "yellow")
    paper.fact("where", of.detail.where if of.detail else "", "bold")
    paper.fact("no detail", of.reason, "yellow")
    paper.fact("note", of.note)
    paper.line()
    paper.table(sides(row, of), styles=["", *(_red(line[3] == "differs") for line in sides(row, of)[2:])])
    paper.line()
    paper.facts("inputs", [f"{one.index}{f' ({one.weight})' if one.weight else ''}: {one.state}" for one in of.inputs])
    paper.fact("feeds", ", ".join(of.feeds[:6]))
    _sites(paper, row)
    _metrics(paper, row)
    if of.detail is not None and not row.measure.equal:
        _detail(paper, of.detail)
    return paper


def sides(row: Row, of: RecordDetail, *, pictures: bool = True) -> list[tuple[str, str, str, str]]:
    """Return the table of both sides: what, reference, target, and whether it is the same.

    Args:
        row: Measure of the record.
        of: Its detail.
        pictures: Draw histograms as bars of text.
    """
    measure = row.measure
    rows = [
        _compared("dtype", measure.reference_dtype, measure.target_dtype),
        _compared("shape", shape(measure.reference_shape), shape(measure.target_shape)),
    ]
    pair = (of.detail.reference, of.detail.target) if of.detail else (of.reference, of.target)
    rows += [_compared(what, *both) for what, *both in _facts(*pair) if pictures or what != _VALUES]
    rows += [_compared(f"argument {name}", *both) for name, both in measure.arguments.items()]
    return [("", "reference", "target", ""), *rows]


def _facts(reference: Description | None, target: Description | None) -> list[tuple[str, str, str]]:
    told = [_of_one(side) for side in (reference, target)]
    names = dict.fromkeys([name for one in told for name in one])
    return [(name, told[0].get(name, "-"), told[1].get(name, "-")) for name in names]


def _of_one(of: Description | None) -> dict[str, str]:
    if of is None:
        return {}
    found = {"elements": elements(of.extent)}
    if of.extent.ordinary:
        found["min / max"] = f"{exact(of.extent.minimum)} / {exact(of.extent.maximum)}"
        found["mean"] = exact(mean(of.extent))
        found["norm"] = exact(norm(of.extent))
        found[_VALUES] = f"|{bars(of.values.counts, logarithmic=True)}|"
    found["first"] = ", ".join(of.first[:3])
    return found


def _compared(what: str, reference: str, target: str) -> tuple[str, str, str, str]:
    both = (reference or _NOTHING, target or _NOTHING)
    return what, *both, "" if _NOTHING in both else "same" if reference == target else "differs"


def _limit(row: Row) -> str:
    judged = row.judged
    if not judged.metric or judged.status == "undecided":  # whose value is one end of a range
        return ""
    used = f"{wording.used(judged.ratio)} {wording.number(judged.limit)}"
    return f"   {judged.metric} {wording.number(judged.value)}, {used} ({judged.standard})"


def _sites(paper: Paper, row: Row) -> None:
    reference, target = row.measure.site, row.measure.target_site
    paper.facts("called at", reference.split(" <- ") if reference else [])
    if target and target != reference:
        paper.facts("target's", target.split(" <- "))


def _metrics(paper: Paper, row: Row) -> None:
    told = [f"{name} {wording.number(value)}" for name, value in row.measure.metrics.items()]
    lines = [" · ".join(told[start : start + 4]) for start in range(0, len(told), 4)]
    paper.facts("metrics", lines)


def _detail(paper: Paper, of: Detail) -> None:
    total = of.exact + sum(count for _, _, count in of.error_bins)
    paper.line()
    share = wording.share(of.unequal / of.reference.extent.elements) if of.reference.extent.elements else "none"
    first = f", first at {list(of.first.index)}: {of.first.reference} / {of.first.target}" if of.first else ""
    paper.fact("unequal", f"{wording.count(of.unequal)} elements, {share}{first}")
    if of.error_bins:
        low, high = of.error_bins[0][0], of.error_bins[-1][1]
        drawn = bars([count for _, _, count in of.error_bins], logarithmic=True)
        equal = f"   and {wording.count(of.exact)} of {wording.count(total)} equal" if of.exact else ""
        paper.fact("|error|", f"{wording.number(low)} |{drawn}| {wording.number(high)}{equal}   (both logarithmic)")
    paper.fact("ulp", _ulps(of))
    _axes(paper, of)
    for title, worst in (("mismatched", of.mismatched), ("worst", of.worst_absolute), ("relative", of.worst_relative)):
        _elements(paper, title, worst)


def _ulps(of: Detail) -> str:
    """Return the distances in units in the last place: the median's class, and the occupied classes."""
    counted = [(low, high, count) for low, high, count in of.ulps if count]
    if not counted:
        return ""
    low, high = of.median_ulps
    classes = [
        f"{wording.count(low) if low == high else f'to {wording.count(high)}'}: {wording.count(n)}" for low, high, n in counted
    ]
    shown = classes if len(classes) <= 8 else [*classes[:3], "...", *classes[-4:]]
    median = wording.count(low) if low == high else f"{wording.count(low)} to {wording.count(high)}"
    return f"median {median}   ({'   '.join(shown)})"


def _axes(paper: Paper, of: Detail) -> None:
    for axis in of.axes:
        if axis.size > 1 and axis.top:
            top = ", ".join(f"{_positions(first, last)} {percent(share)}" for first, last, share in axis.top[:_TOP])
            paper.fact(f"axis {axis.number}", f"|{bars(axis.profile)}| of {wording.count(axis.size)}   most at {top}")


def _positions(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _elements(paper: Paper, title: str, worst: Sequence[Element]) -> None:
    if worst:
        paper.line()
        rows = [
            (str(list(one.index)), one.reference, one.target, wording.number(one.error), wording.number(one.relative))
            for one in worst[:_WORST]
        ]
        paper.table([(title, "reference", "target", "error", "relative"), *rows])


def _red(wanted: bool) -> str:  # noqa: FBT001 - a question with one answer
    return "red" if wanted else ""
