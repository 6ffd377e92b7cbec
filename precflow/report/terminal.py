"""The closing summary of a run in the terminal: verdict, what to do, numbers, where the report is.

At most 20 lines, as wide as the terminal. ``render_summary`` puts the lines together; what is said about each verdict is in
``_render_aligned``, ``_render_misaligned`` and ``_render_inconclusive``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from rich.cells import cell_len

from precflow import numbers, streams
from precflow.diagnosis.advice.whatif import describe, explain
from precflow.diagnosis.chain import describe_parts
from precflow.diagnosis.findings import ALSO_AT, CERTAINTIES, Finding, collect_translations
from precflow.diagnosis.mend import describe_mends
from precflow.diagnosis.training.phases import describe_phases
from precflow.environment.known_issues import describe_sides
from precflow.judgement.task import TENSORS_ALONE
from precflow.judgement.verdicts import MISALIGNED_STATUSES
from precflow.language import said, speaking, spoken
from precflow.report import curves, highlights, wording
from precflow.report.model import ReportModel, Row, SideView
from precflow.task.outcome import TaskOutcome, summarize

NARROWEST, WIDEST = 40, 88  # columns; a narrower terminal breaks the lines itself
USUAL, _NARROW_SCREEN = 80, 60  # columns
LINES = {80: 20, 60: 28, 0: 40}  # columns -> most lines: on a narrower screen texts need more of them
_PAGE = "report.html"
_OPERATORS = 3  # of which the summary says how many records failed
_RARE = frozenset(
    {"covered by their modules", "near ties", "not comparable", "blind", "undecided", "artefact", "artefacts", "by estimate"}
)  # left out where their number is 0
_AMOUNTS = ((2, 2), (2, 1), (2, 0), (1, 0))  # findings and facts of each; the first that fits is shown
_NARROW = {"float16": 100 * 2.0**-11, "bfloat16": 100 * 2.0**-8}  # percent that one rounding changes a number by at most
_INDENT = " " * 15  # of text in the second column: three letters of margin, twelve of label
_MOST_TASK = 4  # task metrics
_LABEL = 11  # columns of a label
_LEAST_NAME = 28  # columns; with less room a name gets a line of its own
_TO_ASCII = str.maketrans({"·": "-", "✓": "ok", "✗": "x", "…": "~", "≥": ">=", "\u202f": " ", "→": "->", "\u00d7": "x"})
_SHELL_WORD = re.compile(r"""(?:[^\s'"\\]|'[^']*'|"(?:[^"\\]|\\.)*"|\\.)+""")


class Uncut(str):
    """A line to copy and paste, such as a command or a path: it is never cut to the width of the terminal."""

    __slots__ = ()


@dataclass(frozen=True)
class _Amount:
    """How much of the findings is shown: how many, how many facts of each, and the lines of the command to try.

    The command is shown whole or not at all: half a command runs something else.
    """

    findings: int
    facts: int
    command: Sequence[Uncut] = ()


def count_columns(stream: TextIO) -> int:
    """Return how wide a summary on this stream is: as wide as its terminal, within bounds; the widest if it is no terminal."""
    return min(WIDEST, max(NARROWEST, streams.measure_terminal(stream) or WIDEST))


def render_summary(  # noqa: PLR0913  the model knows nothing of how this run ended and of the screen
    model: ReportModel,
    *,
    report_path: str,
    exit_code: int,
    columns: int = WIDEST,
    ascii_only: bool = False,
    kept: bool = False,
    reference_age: str = "",
) -> str:
    """Return the closing summary of a run.

    Args:
        model: What happened.
        report_path: Where the report is, as the user may type it: the page, or a folder if there is no page; ``""`` for none.
        exit_code: The code that precflow is about to leave with.
        columns: Width of the screen.
        ascii_only: Use only ASCII letters.
        kept: This run computed nothing, and the model is from an earlier one.
        reference_age: How long ago a reference that was kept was made, in words; ``""`` for a fresh one.
    """
    with speaking(spoken(), collect_translations(model.findings, spoken())):
        return _render_lines(
            model, report_path, exit_code, columns, ascii_only=ascii_only, kept=kept, reference_age=reference_age
        )


def _render_lines(  # noqa: PLR0913
    model: ReportModel,
    report_path: str,
    exit_code: int,
    columns: int,
    *,
    ascii_only: bool,
    kept: bool,
    reference_age: str,
) -> str:
    bodies = {"aligned": _render_aligned, "misaligned": _render_misaligned, "inconclusive": _render_inconclusive}
    foot = [*_render_report_path(report_path, columns), said(f"   exit {exit_code}")]
    sides = " -> ".join(_describe_side(view) for view in model.sides)
    behind = f" · {said(sides)} · {wording.duration(model.seconds)}"
    title = f"{_shorten(model.recipe, min(40, max(12, columns - 1 - cell_len(behind))))}{behind}"
    head = [f" {part}" for part in _break_lines(title, columns - 1, 3)]
    if kept:
        head.append(said(f"   nothing was computed: everything is kept from run {model.run}"))
    if reference_age:
        head.append(said(f"   the reference was made {reference_age}"))
    # Which phase of a training step is guilty and which are aligned; no line if nothing was trained.
    phases = _break_lines(said(describe_phases(model.phases)), columns - 3, 2) if model.phases else []
    unseen = [line for text in model.verdict.unseen for line in _break_lines(said(wording.printable(text)), columns - 3, 3)]
    head += ["", *_render_verdict(model, columns), *(f"   {line}" for line in (*phases, *unseen)), ""]
    of_parts = (("parts", describe_parts(model.parts)), ("mend", describe_mends(model.mends)))
    chain = [line for label, text in of_parts if text for line in render_labelled(label, text, columns)]
    head += [*chain, ""] if chain else []
    known = _render_known_issue(model, columns)
    head += [*known, ""] if known else []
    if model.task_metrics:
        alone = [text for text in model.verdict.warnings if text.startswith(TENSORS_ALONE)]
        told = [line for text in alone for line in render_labelled("", text, columns)]
        head += [*_render_task_metrics(model.task_metrics, columns), *told, ""]
    tried = _render_whatifs(model, columns)
    room = next(most for least, most in LINES.items() if columns >= least) - len(head) - len(foot) - 1 - len(tried)
    shown = _render_command(model, columns, ascii_only=ascii_only)
    # A command that changes something may mend the run. One that shows more stands last, where there is room.
    command, last = (shown, []) if model.findings and model.findings[0].change else ([], shown)
    body: list[str] = []
    # The command is worth more than a second finding, so every amount is tried with it before any without it.
    for amount in (*(_Amount(*most, command) for most in _AMOUNTS), *(_Amount(*most) for most in _AMOUNTS)):
        body = bodies[model.verdict.verdict](model, columns, amount)
        if len(body) <= room:
            break
    if len(body) > room:
        change = _render_change(model.findings[0], columns) if model.findings else []
        at = next((place for place in range(len(body)) if change and body[place : place + len(change)] == change), room)
        # What to change in the command is worth more than the lines before it: it is neither cut in two nor left out.
        first = body[: room - 1] if at + len(change) < room else [*body[: min(at, room - 1 - len(change))], *change]
        body = [*first, said("   ...         more in the report")]
    body += tried
    room += len(tried)
    if model.verdict.verdict == "misaligned":  # an accepted difference past its last day is why a build fails from one day on
        for warning in model.verdict.warnings[:2]:
            told = render_labelled("warning", warning, columns)
            body += told if len(body) + len(told) <= room else []
        told = render_labelled("by operator", failing, columns) if (failing := _describe_failing(model)) else []
        body += told if len(body) + len(told) <= room else []
    body += last if len(body) + len(last) <= room else []
    lines = [*head, *body, "", *foot]
    if ascii_only:
        lines = as_ascii(lines)
    return "\n".join(line if isinstance(line, Uncut) else fit(line, columns) for line in lines)


def as_ascii(lines: Sequence[str]) -> list[str]:
    """Return lines in ASCII, but those that are never cut.

    What no ASCII letter stands for becomes an escape: a module of another script is still told from its neighbours.
    """
    return [
        line if isinstance(line, Uncut) else line.translate(_TO_ASCII).encode("ascii", "backslashreplace").decode("ascii")
        for line in lines
    ]


def _describe_failing(model: ReportModel) -> str:
    """Return how many records of each operator failed, those that fail most first; ``""`` if it is one operator or none."""
    operators = [group for group in model.groups if group.by == "operator" and group.failed]
    shown = [
        f"{wording.printable(group.name)} {numbers.count(group.failed)} of {numbers.count(group.records)} failed"
        for group in operators[:_OPERATORS]
    ]
    more = [f"and {numbers.count(len(operators) - len(shown))} more operators"] if len(operators) > len(shown) else []
    return "   ".join([*shown, *more]) if len(operators) > 1 else ""


def _render_whatifs(model: ReportModel, columns: int) -> list[str]:
    """Return a line or two with the best what-if that no finding tells of, and with the cheapest mend and its price."""
    told = {value for finding in model.findings for _, value in finding.evidence}
    untold = [outcome for outcome in model.whatifs if explain(outcome) not in told]
    shown = dict.fromkeys(describe(outcome) for outcome in (*untold[:1], *(one for one in untold[1:] if one.price)))
    return [line for text in list(shown)[:2] for line in render_labelled("what-if", text, columns)]


def _describe_side(view: SideView) -> str:
    words = ["EMULATED" * view.emulated, view.device, view.dtype, f"{view.ranks} ranks" * (view.ranks > 1)]
    return " ".join(filter(None, words))


def fit(line: str, columns: int = WIDEST) -> str:
    """Return a line cut to ``columns`` columns of the terminal; a wide letter, such as a Chinese one, takes two."""
    line = wording.printable(line).rstrip()
    if cell_len(line) <= columns:
        return line
    mark = "~" if line.isascii() else "…"
    # With wide letters the number of columns is not the number of letters, so a slice alone would cut too much or too little:
    # cut what is surely too much in one go, and then one letter at a time.
    while cell_len(line) > columns - 1:
        line = line[: max(columns - 1, len(line) - (cell_len(line) - columns))][:-1]
    return line + mark


def _render_verdict(model: ReportModel, columns: int) -> list[str]:
    """Return the lines with the verdict, where the error starts and what the recipe changed.

    The verdict is a word, never only a colour.
    """
    verdict = model.verdict.verdict
    line = f" {wording.VERDICT_SYMBOLS[verdict]} {said(verdict.upper())}"
    only_emulated = said(f"({wording.EMULATED})")
    emulated = [f"   {part}" for part in _break_lines(only_emulated, columns - 3, 2)] if model.emulated else []
    text = said(wording.printable(wording.describe_changed(model.verdict)))
    changed = [f"   {part}" for part in _break_lines(text, columns - 3, 3)] if text else []
    if verdict == "aligned":
        if not model.emulated:
            whole = f"{line}   {text}"
            return [whole.rstrip()] if cell_len(whole) <= columns else [line, *changed]
        whole = f"{line} {only_emulated}"
        return [*([line, *emulated] if cell_len(whole) > columns else [whole]), *changed]
    line += f" {said('(emulated)')}" if model.emulated else ""
    if verdict == "misaligned":
        start = wording.printable(model.region.start)
        return [*(_put_beside(line, f"{said('starts at')}  ", start, columns) if start else [line]), *emulated, *changed]
    return [*_put_beside(line, "", said(wording.describe_inconclusive(model.verdict.counts)), columns), *emulated, *changed]


def _put_beside(line: str, label: str, text: str, columns: int) -> list[str]:
    """Return a line with a text to its right, or below it if there is no room."""
    whole = f"{line}   {label}{text}"
    return [whole] if cell_len(whole) <= columns else [line, f"   {label}{_shorten(text, columns - 3 - cell_len(label))}"]


def _render_task_metrics(outcomes: Sequence[TaskOutcome], columns: int) -> list[str]:
    """Return task metrics, each with what its samples could have shown: without that, it is no proof."""
    shown = [(f"{one.name} {summarize(one)}", "task" * (number == 0)) for number, one in enumerate(outcomes[:_MOST_TASK])]
    lines = [line for text, label in shown for line in render_labelled(label, text, columns)]
    more = len(outcomes) - _MOST_TASK
    return [*lines, *([f"{_INDENT}{said(f'and {more} more in the report')}"] if more > 0 else [])]


def _render_curves(model: ReportModel, columns: int) -> list[str]:
    """Return a line or two for each curve that was compared."""
    return [
        line
        for one in model.curves
        if (text := curves.describe_curve(one))
        for line in render_labelled(_shorten(one.name, _LABEL), text, columns)
    ]


def has_records(model: ReportModel) -> bool:
    """Tell whether there is anything to say of records; a run that compares curves alone has none."""
    return bool(model.rows or model.verdict.total) or not model.curves


def _render_aligned(model: ReportModel, columns: int, amount: _Amount) -> list[str]:
    lines = [
        *(render_labelled("records", describe_coverage(model), columns) if has_records(model) else []),
        *_render_curves(model, columns),
        *render_labelled("standards", describe_standards(model), columns),
    ]
    if model.verdict.sources:
        lines += render_labelled(
            "source", "   ".join(f"{name}: {text}" for name, text in model.verdict.sources.items()), columns
        )
    for text in model.verdict.links[:1]:
        lines += render_labelled("links", text, columns)
    closest = highlights.find_closest_row(model)
    if closest is not None:
        lines += _render_record("closest", closest, columns, whole=True)
    for warning in model.verdict.warnings[:2]:
        lines += render_labelled("warning", warning, columns)
    if model.findings:
        lines += ["", *_render_finding(1, model.findings[0], columns, amount)]
    return lines


def _render_misaligned(model: ReportModel, columns: int, amount: _Amount) -> list[str]:
    if model.findings:
        lines = _render_finding(1, model.findings[0], columns, amount)
        for place, finding in enumerate(model.findings[1 : amount.findings], start=2):
            lines += _render_finding_title(place, finding, columns)
    else:
        shown = "the operator and its source line" if has_records(model) else "the curves"
        advice = f"no rule knows this fault; the report shows {shown}"
        if has_records(model) and not (
            model.region.suspects or any(model.verdict.counts.get(one) for one in MISALIGNED_STATUSES)
        ):
            advice = "no record is over its limit, and no operator errs by more than rounding: only what is named above fails"
        lines = render_labelled("because", "; ".join(model.verdict.reasons) or "records are over their limits", columns)
        lines += render_labelled("advice", advice, columns)
    others = [f"{numbers.count(many)} {what}" for what, many in _count_others(model).items() if many]
    records = "   ".join([describe_compared(model), *_describe_roles(highlights.count_roles(model)), *others])
    lines += ["", *(render_labelled("records", records, columns, most=3) if has_records(model) else [])]
    lines += _render_curves(model, columns)
    worst = highlights.find_furthest_row(model)
    if worst is not None:
        lines += _render_record("worst", worst, columns, whole=False)
    return lines


def _render_known_issue(model: ReportModel, columns: int) -> list[str]:
    """Return the first known issue at whose operators something was found, with its way round; the page has all of them."""
    for met in model.known_issues[:1]:
        if met.findings:
            return render_labelled("known", f"{met.issue.title} ({describe_sides(met.sides)}): {met.issue.do}", columns)
    return []


def _describe_roles(roles: Mapping[str, int]) -> list[str]:
    """Say how many records introduce the error, inherit it and agree.

    Where none introduces one, because all that differs carries on an accepted difference, or no record is over its limit, the
    first is left out: ``0 introduce the error`` would be no news.
    """
    agrees = f"{numbers.count(roles['agrees'])} agree"
    if not roles["introduces"]:
        inherits = [f"{numbers.plural(roles['inherits'], 'inherits', 'inherit')} an error"] if roles["inherits"] else []
        return [*inherits, agrees]
    starting = numbers.plural(roles["introduces"], "introduces", "introduce")
    return [f"{starting} the error", f"{numbers.count(roles['inherits'])} inherit it", agrees]


def _render_inconclusive(model: ReportModel, columns: int, amount: _Amount) -> list[str]:
    lines: list[str] = []
    for place, reason in enumerate(model.verdict.reasons[:4]):
        lines += render_labelled("missing" if place == 0 else "", reason, columns, most=3)
    if model.findings:
        lines += ["", *_render_finding(1, model.findings[0], columns, amount)]
    records = render_labelled("records", describe_coverage(model), columns, most=3) if has_records(model) else []
    return [*lines, "", *records, *_render_curves(model, columns)]


def _render_finding(place: int, finding: Finding, columns: int, amount: _Amount) -> list[str]:
    """Return a finding: its title, facts, what to do, what to change in the command of this run, and the whole command."""
    lines = _render_finding_title(place, finding, columns)
    facts = finding.evidence[: amount.facts]
    facts += tuple(fact for fact in finding.evidence[amount.facts :] if fact[0] == ALSO_AT)  # no operator is left unnamed
    told = [line for what, value in facts for line in render_labelled("", f"{what}: {value}", columns, most=1)]
    if finding.fix:
        lines += render_labelled("   do", finding.fix, columns, most=3)
    return [*lines, *_render_change(finding, columns), *amount.command, *told]


def _render_change(finding: Finding, columns: int) -> list[str]:
    """Return what to change in the command of this run; no line if nothing."""
    return render_labelled("   next", f"the same command with   {finding.change}", columns, most=3) if finding.change else []


def _render_command(model: ReportModel, columns: int, *, ascii_only: bool) -> list[Uncut]:
    r"""Return the command that the first finding proposes; no line if the screen cannot show all of its letters.

    Its lines can be pasted into a shell as one command: all but the last end with a backslash, between two words.
    """
    text, change = (model.findings[0].try_it, model.findings[0].change) if model.findings else ("", "")
    if not text.isprintable() or (ascii_only and not text.isascii()):
        return []
    lines: list[str] = []
    for word in _SHELL_WORD.findall(text):
        if lines and cell_len(f"{lines[-1]} {word} \\") <= columns:
            lines[-1] += f" {word}"
        else:
            first = " " * 6 if change else f"   {_label('next')}"
            lines.append(f"{' ' * 8 if lines else first}{word}")
    return [Uncut(f"{line} \\") for line in lines[:-1]] + [Uncut(line) for line in lines[-1:]]


def _render_report_path(path: str, columns: int) -> list[str]:
    """Return the line with the path of the report and, if it is a page, the command that opens it."""
    if not path:
        return []
    line = f"   {_label('report')}{path}"
    if Path(path).name != _PAGE:
        return [Uncut(line)]
    newest = Path(path).parts[0] == "runs"  # where `precflow open` looks by itself
    command = "precflow open" if newest else f"precflow open {shlex.quote(str(Path(path).parent))}"
    gap = max(columns - cell_len(line + command), 0)
    return [Uncut(line + " " * gap + command)] if gap > 2 else [Uncut(line), Uncut(_INDENT + command)]


def _render_finding_title(place: int, finding: Finding, columns: int) -> list[str]:
    """Return the title of a finding with its certainty at the right; a long title continues below."""
    head = f"   {place}  {finding.rule}  "
    room = columns - len(head) - max(map(len, CERTAINTIES)) - 2
    first, *more = _break_lines(said(wording.printable(finding.title)), room, 2 if columns >= USUAL else 3)
    title = f"{head}{first}{' ' * (room - cell_len(first))}  {said(finding.certainty)}"
    return [title, *(" " * len(head) + line for line in more)]


def describe_coverage(model: ReportModel) -> str:
    """Return in words how many records were compared, how many were not and why, and what a clean run cannot tell."""
    shown = [f"{numbers.count(many)} {what}" for what, many in _count_others(model).items() if many or what not in _RARE]
    return "   ".join([describe_compared(model), *shown, *_describe_hidden(model)])


def _describe_hidden(model: ReportModel) -> list[str]:
    """Say of an aligned run in 16 bits what it cannot see: a fact, and nothing that anybody has to do something about."""
    narrow = [view.dtype for view in model.sides if view.dtype in _NARROW]
    if not narrow or model.verdict.verdict != "aligned":
        return []
    coarsest = max(narrow, key=_NARROW.__getitem__)
    return [f"errors below the rounding of {coarsest} ({_NARROW[coarsest]:.1g} %) do not show"]


def _count_others(model: ReportModel) -> dict[str, int]:
    """Return kind of record -> how many were not compared or count less: unpaired, undecided, blind, by estimate..."""
    counts = model.verdict.counts
    return {
        "near tie" if counts.get("near_tie") == 1 else "near ties": counts.get("near_tie", 0),
        "not comparable": counts.get("not_comparable", 0),
        "covered by their modules": counts.get("covered", 0),
        "unpaired": highlights.count_unpaired(model),
        "unreadable": counts.get("unreadable", 0),
        "undecided": counts.get("undecided", 0),
        "artefact" if counts.get("artefact") == 1 else "artefacts": counts.get("artefact", 0),
        "accepted differences": counts.get("accepted", 0),
        "blind": counts.get("blind", 0),
        "by estimate": model.verdict.estimated,
    }


def describe_compared(model: ReportModel) -> str:
    """Return in words how many records were compared, such as ``1 214 of 1 214 compared``."""
    part = f" ({numbers.share(model.verdict.sampled)} of their elements)" if model.verdict.sampled < 1 else ""
    return f"{numbers.count(model.verdict.compared)} of {numbers.count(model.verdict.total)} compared{part}"


def describe_standards(model: ReportModel) -> str:
    """Return each standard with ``✓`` or ``✗``; an inconclusive run has ``?`` in place of ``✗``.

    One that was not applied has ``?`` in any run.
    """
    otherwise = "?" if model.verdict.verdict == "inconclusive" else "✗"
    outcomes = [
        f"{name} {'✓' if met else '?' if name in model.verdict.not_applied else otherwise}"
        for name, met in model.verdict.standards.items()
    ]
    return "   ".join(outcomes) or "none"


def _render_record(label: str, row: Row, columns: int, *, whole: bool) -> list[str]:
    """Return a record with what decides it on one line; its name is shortened to fit, or gets a line of its own.

    Args:
        label: What is shown of it.
        row: The record.
        columns: Width of the screen.
        whole: Two lines are better than to leave out the share of its limit or the noise floor.
    """
    name = wording.printable(row.measure.name)
    room = columns - len(_INDENT)
    full = said(wording.describe_use(row.judged))
    short = said(wording.describe_use(replace(row.judged, floor=None)))  # what is left out stands in the report
    for value in (full,) if whole else (full, short, said(wording.describe_value(row.judged))):
        beside = room - cell_len(value) - 3
        if beside >= min(_LEAST_NAME, cell_len(name)):
            return [f"   {_label(label)}{_shorten(name, beside)}   {value}"]
    return [
        f"   {_label(label)}{_shorten(name, room)}",
        *(_INDENT + line for line in _break_lines(full, room, 4)),
    ]


def _shorten(text: str, columns: int) -> str:
    """Return text of at most ``columns`` columns; ``wording.shorten`` counts letters, and some letters take two columns."""
    letters = columns
    while cell_len(short := wording.shorten(text, letters)) > columns:
        letters -= 1
    return short


def render_labelled(label: str, text: str, columns: int, most: int = 2) -> list[str]:
    """Return a label with its text beside it in at most ``most`` lines, twice as many on a narrow screen."""
    lines = _break_lines(said(wording.printable(text)), columns - len(_INDENT), most if columns >= _NARROW_SCREEN else 2 * most)
    return [f"   {_label(label)}{lines[0]}", *(_INDENT + line for line in lines[1:])]


def _label(text: str) -> str:
    """Return a label of the first column, which is twelve columns wide."""
    shown = text.replace(text.strip(), said(text.strip())) if text.strip() else text
    return shown + " " * max(12 - cell_len(shown), 1)


def _break_lines(text: str, width: int, most: int) -> list[str]:
    """Return text in lines of at most ``width`` columns, broken at gaps of three spaces if it has any, else at any space."""
    lines = [""]
    for piece in _find_pieces(text, width):
        if lines[-1] and cell_len(lines[-1] + piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1].rstrip() + " …"]
    return [line.rstrip() for line in lines]


def _find_pieces(text: str, width: int) -> list[str]:
    """Return what is not broken: parts between gaps of three spaces, if there are any and they fit, else words."""
    parts = re.findall(r"(?:\S| (?=\S))+\s*", text) if "   " in text else [text]
    whole = len(parts) > 1
    pieces = [[part] if whole and cell_len(part.rstrip()) <= width else _split_words(part) for part in parts]
    return [piece for few in pieces for piece in few] or [""]


def _split_words(text: str) -> list[str]:
    """Return the words of a text, each with the spaces behind it; Chinese may be broken behind each letter."""
    pieces = []
    for word, gap in re.findall(r"(\S+)(\s*)", text):
        *first, last = streams.split_wide(word)
        pieces += [*first, last + gap]
    return pieces
