"""The end of a run in the terminal: verdict, what to do, numbers, where the report is. At most 20 lines of 88 columns."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len

from precflow.diagnosis.findings import CERTAINTIES, Finding
from precflow.judgement.verdicts import MISALIGNED_STATUSES
from precflow.report import selection, wording
from precflow.report.model import ReportModel, Row, SideView

COLUMNS = 88
LINES = 20
_RARE = frozenset({"blind", "undecided", "by estimate"})  # told only where there are some
_INDENT = " " * 15  # of what stands behind a label of three letters' indent and twelve letters' width
_TO_ASCII = str.maketrans({"·": "-", "✓": "ok", "✗": "x", "…": "~", "≥": ">=", "\u202f": " ", "→": "->"})


def summary(model: ReportModel, *, report_path: str, exit_code: int, ascii_only: bool = False) -> str:
    """Return the closing summary of a run.

    Args:
        model: What happened.
        report_path: Where the HTML report is, as the user may type it; ``""`` where none was written.
        exit_code: The code that precflow is about to leave with.
        ascii_only: Use no letter beyond ASCII.
    """
    forms = {"aligned": _aligned, "misaligned": _misaligned, "inconclusive": _inconclusive}
    foot = [*_labelled("report", f"{report_path:<56} precflow open")] if report_path else []
    foot.append(f"   exit {exit_code}")
    body = forms[model.verdict.verdict](model)
    head = [_title(model), "", *_verdict(model), ""]
    room = LINES - len(head) - len(foot) - 1
    lines = [*head, *_whole(body, room), "", *foot]
    return "\n".join(fit(_ascii(line) if ascii_only else line) for line in lines)


def fit(line: str) -> str:
    """Return a line that takes at most ``COLUMNS`` columns, wide letters counted as two; cut at its end."""
    line = wording.printable(line).rstrip()
    if cell_len(line) <= COLUMNS:
        return line
    mark = "~" if line.isascii() else "…"
    while cell_len(line) > COLUMNS - 1:
        line = line[: max(COLUMNS - 1, len(line) - (cell_len(line) - COLUMNS))][:-1]
    return line + mark


def _whole(lines: Sequence[str], room: int) -> list[str]:
    """Return as many lines as there is room for, and say so where some are left out."""
    return list(lines) if len(lines) <= room else [*lines[: room - 1], "   ...         more in the report"]


def _title(model: ReportModel) -> str:
    sides = " -> ".join(_side(view) for view in model.sides)
    return f" {wording.shortened(model.recipe, 40)} · {sides} · {wording.duration(model.seconds)}"


def _side(view: SideView) -> str:
    return f"{'EMULATED ' if view.emulated else ''}{view.device} {view.dtype}".rstrip()


def _verdict(model: ReportModel) -> list[str]:
    """Return the verdict's own lines: never a colour alone, and where it starts."""
    verdict = model.verdict.verdict
    line = f" {wording.VERDICT_SYMBOLS[verdict]} {verdict.upper()}"
    if verdict == "aligned":
        return [f"{line} ({wording.EMULATED})" if model.emulated else line]
    line += " (emulated)" if model.emulated else ""
    emulated = [f"   ({wording.EMULATED})"] if model.emulated else []
    if verdict == "misaligned":
        if not model.region.start:
            return [line, *emulated]
        start = f"{line}   starts at  "
        return [start + wording.shortened(model.region.start, COLUMNS - len(start)), *emulated]
    failing = any(model.verdict.counts.get(status) for status in MISALIGNED_STATUSES)
    said = "records differ, but that proves nothing yet" if failing else "nothing failed, but something needed is missing"
    return [f"{line}   {said}", *emulated]


def _aligned(model: ReportModel) -> list[str]:
    lines = [*_labelled("records", coverage(model)), *_labelled("standards", standards(model))]
    closest = selection.closest_row(model)
    if closest is not None:
        lines += _measured("closest", closest, wording.used(closest.judged.ratio))
    for warning in model.verdict.warnings[:2]:
        lines += _labelled("warning", warning)
    if model.findings:
        lines += ["", *_finding(1, model.findings[0])]
    return lines


def _misaligned(model: ReportModel) -> list[str]:
    lines: list[str] = []
    for place, finding in enumerate(model.findings[:2], start=1):
        lines += _finding(place, finding) if place == 1 else _headline(place, finding)
    if not model.findings:
        lines += _labelled("because", "; ".join(model.verdict.reasons) or "records are over their limits")
        lines += _labelled("advice", "no rule knows this fault; the report shows the operator and its source line")
    besides = [f"{wording.count(many)} {what}" for what, many in _besides(model).items() if many]
    lines += ["", *_labelled("records", "   ".join([compared(model), _roles(model), *besides]))]
    worst = selection.furthest_row(model)
    if worst is not None:
        lines += _measured("worst", worst, f"(limit {wording.number(worst.judged.limit)})")
    return lines


def _inconclusive(model: ReportModel) -> list[str]:
    lines: list[str] = []
    for place, reason in enumerate(model.verdict.reasons[:4]):
        lines += _labelled("missing" if place == 0 else "", reason, most=3)
    if model.findings:
        lines += ["", *_finding(1, model.findings[0])]
    return [*lines, "", *_labelled("records", coverage(model))]


def _finding(place: int, finding: Finding) -> list[str]:
    """Return a finding: its title, one measured fact, what to do, and a command to try."""
    lines = _headline(place, finding)
    lines += [line for what, value in finding.evidence[:2] for line in _labelled("", f"{what}: {value}", most=1)]
    if finding.fix:
        lines += _labelled("   do", finding.fix, most=3)
    if finding.try_it:
        lines += _labelled("   try", finding.try_it, most=5)  # what was overridden too: half a command is none
    return lines


def _headline(place: int, finding: Finding) -> list[str]:
    """Return the title of a finding with its certainty at the right; a long title goes on below."""
    head = f"   {place}  {finding.rule}  "
    room = COLUMNS - len(head) - max(map(len, CERTAINTIES)) - 2
    first, *more = _broken(wording.printable(finding.title), room, 2)
    title = f"{head}{first}{' ' * (room - cell_len(first))}  {finding.certainty}"
    return [title, *(" " * len(head) + line for line in more)]


def coverage(model: ReportModel) -> str:
    """Return how many records were compared, and what became of the others."""
    shown = [f"{wording.count(many)} {what}" for what, many in _besides(model).items() if many or what not in _RARE]
    return "   ".join([compared(model), *shown])


def _besides(model: ReportModel) -> dict[str, int]:
    """Return what became of the records that were not compared, and how many of the others no tensor decided."""
    counts = model.verdict.counts
    return {
        "unpaired": selection.unpaired(model),
        "unreadable": counts.get("unreadable", 0),
        "undecided": counts.get("undecided", 0),
        "accepted differences": counts.get("accepted", 0),
        "blind": counts.get("blind", 0),
        "by estimate": model.verdict.estimated,
    }


def compared(model: ReportModel) -> str:
    """Return ``1 214 of 1 214 compared``."""
    part = f" ({wording.share(model.verdict.sampled)} of their elements)" if model.verdict.sampled < 1 else ""
    return f"{wording.count(model.verdict.compared)} of {wording.count(model.verdict.total)} compared{part}"


def standards(model: ReportModel) -> str:
    """Return each standard with its outcome; where nothing failed, one that is not met is open."""
    otherwise = "?" if model.verdict.verdict == "inconclusive" else "✗"
    told = [f"{name} {'✓' if met else otherwise}" for name, met in model.verdict.standards.items()]
    return "   ".join(told) or "none"


def _roles(model: ReportModel) -> str:
    counted = selection.roles(model)
    starting = wording.plural(counted["introduces"], "introduces", "introduce")
    return f"{starting} the error   {wording.count(counted['inherits'])} inherit it   {wording.count(counted['agrees'])} agree"


def _measured(label: str, row: Row, behind: str) -> list[str]:
    """Return a record with its value on one line; the record's name gives way."""
    value = f"{row.judged.metric} {wording.number(row.judged.value)}   {behind}"
    room = COLUMNS - len(_INDENT) - len(value) - 3
    return _labelled(label, f"{wording.shortened(row.measure.name, room)}   {value}")


def _labelled(label: str, text: str, most: int = 2) -> list[str]:
    """Return a label and its text, broken into at most ``most`` lines of the text's own column."""
    lines = _broken(wording.printable(text), COLUMNS - len(_INDENT), most)
    return [f"   {label:<12}{lines[0]}", *(_INDENT + line for line in lines[1:])]


def _broken(text: str, width: int, most: int) -> list[str]:
    """Return text in lines of a width, broken at its wide gaps where it has such, else at any space."""
    lines = [""]
    for word in re.findall(r"(?:\S| (?=\S))+\s*" if "   " in text else r"\S+\s*", text) or [""]:
        if lines[-1] and cell_len(lines[-1] + word.rstrip()) > width:
            lines.append("")
        lines[-1] += word
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1].rstrip() + " …"]
    return [line.rstrip() for line in lines]


def _ascii(line: str) -> str:
    return line.translate(_TO_ASCII).encode("ascii", "backslashreplace").decode("ascii")
