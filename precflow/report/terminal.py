"""The end of a run in the terminal: verdict, what to do, numbers, report. At most 20 lines, as wide as the terminal."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.cells import cell_len

from precflow.diagnosis.findings import CERTAINTIES, Finding
from precflow.judgement.verdicts import MISALIGNED_STATUSES
from precflow.report import highlights, wording
from precflow.report.model import ReportModel, Row, SideView

NARROWEST, WIDEST = 60, 88  # columns; a narrower terminal breaks lines itself
LINES, MORE_LINES = 20, 28  # more on a screen that is narrower than USUAL, which takes more lines for the same
USUAL = 80
_PAGE = "report.html"
_RARE = frozenset({"blind", "undecided", "by estimate"})  # told only where there are some
_EXTENTS = ((2, 2), (2, 1), (2, 0), (1, 0))  # findings and facts, as far as there is room
_INDENT = " " * 15  # of what stands behind a label of three letters' indent and twelve letters' width
_LEAST_NAME = 28  # columns; a name that would get less stands on a line of its own
_TO_ASCII = str.maketrans({"·": "-", "✓": "ok", "✗": "x", "…": "~", "≥": ">=", "\u202f": " ", "→": "->"})
_SHELL_WORD = re.compile(r"""(?:[^\s'"\\]|'[^']*'|"(?:[^"\\]|\\.)*"|\\.)+""")


class Uncut(str):
    """A line that is meant to be pasted: whole, however narrow the terminal is."""

    __slots__ = ()


@dataclass(frozen=True)
class _Extent:
    """How much is told of the findings: how many, with how many measured facts, and the command that the first one proposes.

    Half a command is worse than none; what it changes is told all the same.
    """

    findings: int
    facts: int
    command: Sequence[Uncut] = ()


def columns_of(stream: TextIO) -> int:
    """Return how many columns a summary takes on a stream: those of its terminal, within bounds; the most where it is none.

    ``COLUMNS`` in the environment counts more than what the terminal says, as elsewhere.
    """
    if not stream.isatty():
        return WIDEST
    told = os.environ.get("COLUMNS", "")
    try:
        columns = int(told) if told.isdigit() else os.get_terminal_size(stream.fileno()).columns
    except OSError:
        return WIDEST
    return min(WIDEST, max(NARROWEST, columns or WIDEST))


def summary(  # noqa: PLR0913  what the model does not know: this run's own end, and the screen
    model: ReportModel,
    *,
    report_path: str,
    exit_code: int,
    columns: int = WIDEST,
    ascii_only: bool = False,
    kept: bool = False,
) -> str:
    """Return the closing summary of a run.

    Args:
        model: What happened.
        report_path: Where the report is, as the user may type it: the page, or a folder without one; ``""`` for none.
        exit_code: The code that precflow is about to leave with.
        columns: Width of the screen. Commands and paths are not cut to it: they are pasted.
        ascii_only: Use no letter beyond ASCII.
        kept: Nothing was computed: all that is shown is of the run that the model is from.
    """
    form = {"aligned": _aligned, "misaligned": _misaligned, "inconclusive": _inconclusive}[model.verdict.verdict]
    foot = [*_report(report_path, columns), f"   exit {exit_code}"]
    head = [_title(model, columns)]
    if kept:
        head.append(f"   nothing was computed: everything is kept from run {model.run}")
    head += ["", *_verdict(model, columns), ""]
    room = (LINES if columns >= USUAL else MORE_LINES) - len(head) - len(foot) - 1
    command = _command(model, columns, ascii_only=ascii_only)
    body: list[str] = []
    for extent in (*(_Extent(*most, command) for most in _EXTENTS), *(_Extent(*most) for most in _EXTENTS)):
        body = form(model, columns, extent)
        if len(body) <= room:
            break
    lines = [*head, *_whole(body, room), "", *foot]
    shown = (line if isinstance(line, Uncut) else fit(_ascii(line) if ascii_only else line, columns) for line in lines)
    return "\n".join(shown)


def fit(line: str, columns: int = WIDEST) -> str:
    """Return a line that takes at most so many columns, wide letters counted as two; cut at its end."""
    line = wording.printable(line).rstrip()
    if cell_len(line) <= columns:
        return line
    mark = "~" if line.isascii() else "…"
    while cell_len(line) > columns - 1:
        line = line[: max(columns - 1, len(line) - (cell_len(line) - columns))][:-1]
    return line + mark


def _whole(lines: Sequence[str], room: int) -> list[str]:
    """Return as many lines as there is room for, and say so where some are left out."""
    return list(lines) if len(lines) <= room else [*lines[: room - 1], "   ...         more in the report"]


def _title(model: ReportModel, columns: int) -> str:
    sides = " -> ".join(_side(view) for view in model.sides)
    behind = f" · {sides} · {wording.duration(model.seconds)}"
    return f" {_shortened(model.recipe, min(40, max(12, columns - 1 - cell_len(behind))))}{behind}"


def _side(view: SideView) -> str:
    return f"{'EMULATED ' if view.emulated else ''}{view.device} {view.dtype}".rstrip()


def _verdict(model: ReportModel, columns: int) -> list[str]:
    """Return the verdict's own lines: never a colour alone, and where it starts."""
    verdict = model.verdict.verdict
    line = f" {wording.VERDICT_SYMBOLS[verdict]} {verdict.upper()}"
    emulated = [f"   {part}" for part in _broken(f"({wording.EMULATED})", columns - 3, 2)] if model.emulated else []
    if verdict == "aligned":
        whole = f"{line} ({wording.EMULATED})"
        return [line, *emulated] if cell_len(whole) > columns or not model.emulated else [whole]
    line += " (emulated)" if model.emulated else ""
    if verdict == "misaligned":
        start = wording.printable(model.region.start)
        return [*_beside(line, "starts at  ", start, columns), *emulated] if start else [line, *emulated]
    failing = any(model.verdict.counts.get(status) for status in MISALIGNED_STATUSES)
    said = "records differ, but that proves nothing yet" if failing else "nothing failed, but something needed is missing"
    return [*_beside(line, "", said, columns), *emulated]


def _beside(line: str, label: str, text: str, columns: int) -> list[str]:
    """Return a text with its label behind a line, or below it where there is no room."""
    whole = f"{line}   {label}{text}"
    return [whole] if cell_len(whole) <= columns else [line, f"   {label}{_shortened(text, columns - 3 - len(label))}"]


def _aligned(model: ReportModel, columns: int, extent: _Extent) -> list[str]:
    lines = [*_labelled("records", coverage(model), columns), *_labelled("standards", standards(model), columns)]
    closest = highlights.closest_row(model)
    if closest is not None:
        lines += _measured("closest", closest, wording.used(closest.judged.ratio), columns)
    for warning in model.verdict.warnings[:2]:
        lines += _labelled("warning", warning, columns)
    if model.findings:
        lines += ["", *_finding(1, model.findings[0], columns, extent)]
    return lines


def _misaligned(model: ReportModel, columns: int, extent: _Extent) -> list[str]:
    lines: list[str] = []
    for place, finding in enumerate(model.findings[: extent.findings], start=1):
        lines += _finding(place, finding, columns, extent) if place == 1 else _headline(place, finding, columns)
    if not model.findings:
        lines += _labelled("because", "; ".join(model.verdict.reasons) or "records are over their limits", columns)
        lines += _labelled("advice", "no rule knows this fault; the report shows the operator and its source line", columns)
    besides = [f"{wording.count(many)} {what}" for what, many in _besides(model).items() if many]
    lines += ["", *_labelled("records", "   ".join([compared(model), _roles(model), *besides]), columns, most=3)]
    worst = highlights.furthest_row(model)
    if worst is not None:
        lines += _measured("worst", worst, f"(limit {wording.number(worst.judged.limit)})", columns)
    return lines


def _inconclusive(model: ReportModel, columns: int, extent: _Extent) -> list[str]:
    lines: list[str] = []
    for place, reason in enumerate(model.verdict.reasons[:4]):
        lines += _labelled("missing" if place == 0 else "", reason, columns, most=3)
    if model.findings:
        lines += ["", *_finding(1, model.findings[0], columns, extent)]
    return [*lines, "", *_labelled("records", coverage(model), columns, most=3)]


def _finding(place: int, finding: Finding, columns: int, extent: _Extent) -> list[str]:
    """Return a finding: its title, measured facts, what to do, what to change in the same command, and that command."""
    lines = _headline(place, finding, columns)
    lines += [
        line for what, value in finding.evidence[: extent.facts] for line in _labelled("", f"{what}: {value}", columns, most=1)
    ]
    if finding.fix:
        lines += _labelled("   do", finding.fix, columns, most=3)
    if finding.change:
        lines += _labelled("   try", f"the same command with   {finding.change}", columns, most=3)
    return [*lines, *extent.command]


def _command(model: ReportModel, columns: int, *, ascii_only: bool) -> list[Uncut]:
    r"""Return the command that the first finding proposes, none where the screen cannot show it as it is.

    A shell takes its lines for one when they are pasted: all but the last end with a backslash, between two words.
    """
    text = model.findings[0].try_it if model.findings else ""
    if not text.isprintable() or (ascii_only and not text.isascii()):
        return []
    lines: list[str] = []
    for word in _SHELL_WORD.findall(text):
        if lines and cell_len(f"{lines[-1]} {word} \\") <= columns:
            lines[-1] += f" {word}"
        else:
            lines.append(f"{'        ' if lines else '      '}{word}")
    return [Uncut(f"{line} \\") for line in lines[:-1]] + [Uncut(line) for line in lines[-1:]]


def _report(path: str, columns: int) -> list[str]:
    """Return where the report is, and how it is opened where it is a page."""
    if not path:
        return []
    line = f"   {'report':<12}{path}"
    if Path(path).name != _PAGE:
        return [Uncut(line)]
    newest = Path(path).parts[0] == "runs"  # where `open` looks when nobody tells it where
    command = "precflow open" if newest else f"precflow open {shlex.quote(str(Path(path).parent))}"
    gap = max(columns - cell_len(line + command), 0)
    return [Uncut(line + " " * gap + command)] if gap > 2 else [Uncut(line), Uncut(_INDENT + command)]


def _headline(place: int, finding: Finding, columns: int) -> list[str]:
    """Return the title of a finding with its certainty at the right; a long title goes on below."""
    head = f"   {place}  {finding.rule}  "
    room = columns - len(head) - max(map(len, CERTAINTIES)) - 2
    first, *more = _broken(wording.printable(finding.title), room, 2 if columns >= USUAL else 3)
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
        "unpaired": highlights.unpaired(model),
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
    counted = highlights.roles(model)
    starting = wording.plural(counted["introduces"], "introduces", "introduce")
    return f"{starting} the error   {wording.count(counted['inherits'])} inherit it   {wording.count(counted['agrees'])} agree"


def _measured(label: str, row: Row, behind: str, columns: int) -> list[str]:
    """Return a record with its value on one line; the record's name gives way, as far as it can be told from others."""
    value = f"{row.judged.metric} {wording.number(row.judged.value)}   {behind}"
    name = wording.printable(row.measure.name)
    room = columns - len(_INDENT)
    beside = room - cell_len(value) - 3
    if beside >= min(_LEAST_NAME, cell_len(name)):
        return [f"   {label:<12}{_shortened(name, beside)}   {value}"]
    return [f"   {label:<12}{_shortened(name, room)}", *(_INDENT + line for line in _broken(value, room, 2))]


def _shortened(text: str, columns: int) -> str:
    """Return text of at most so many columns, its end kept: see ``wording.shortened``, which counts letters."""
    letters = columns
    while cell_len(short := wording.shortened(text, letters)) > columns:
        letters -= 1
    return short


def _labelled(label: str, text: str, columns: int, most: int = 2) -> list[str]:
    """Return a label and its text, broken into at most ``most`` lines of the text's own column."""
    lines = _broken(wording.printable(text), columns - len(_INDENT), most)
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
