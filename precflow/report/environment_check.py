"""A check of environments alone as a page, as Markdown, JSON, JUnit and as a screen; all of them show every row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from precflow.environment.checks import Row, count_problems
from precflow.environment.known_issues import MetIssue
from precflow.files import write_text
from precflow.judgement.verdicts import EXIT_CODES
from precflow.language import ENGLISH, said
from precflow.report import html, junit
from precflow.report.templating import load_templates
from precflow.report.translated import in_languages
from precflow.version import __version__

HEADINGS: Mapping[str, str] = {
    "aligned": "The environment fits",
    "misaligned": "The environment does not fit",
    "inconclusive": "Whether the environment fits could not be told",
}


@dataclass(frozen=True)
class CheckedSide:
    """One side as it is shown: its name, its rows, its known issues, and the version of everything that says one."""

    side: str
    rows: tuple[Row, ...]
    issues: tuple[MetIssue, ...]
    versions: Mapping[str, str]


@dataclass(frozen=True)
class CheckReport:
    """Everything that is shown of a check.

    Attributes:
        recipe: Name of the recipe.
        verdict: ``aligned`` if all is right, ``misaligned`` if something has to be fixed, else ``inconclusive``.
        finished: Date and time, UTC, to the minute.
        sides: Those that were checked.
    """

    recipe: str
    verdict: str
    finished: str
    sides: tuple[CheckedSide, ...]

    @property
    def code(self) -> int:
        """The exit code."""
        return EXIT_CODES[self.verdict]

    @property
    def outcome(self) -> str:
        """One sentence."""
        return f"{HEADINGS[self.verdict]}: {count_problems([row for side in self.sides for row in side.rows])}"


def render_rows(rows: Sequence[Row]) -> str:
    """Return rows as text: each topic only in its first row, each fix in the line below its problem."""
    width = max((len(row.topic) for row in rows), default=0)
    lines, last = [], ""
    for row in rows:
        topic = "" if row.topic == last else row.topic
        lines.append(f" {topic:<{width}}  {f'{row.mark} ' if row.mark else ''}{row.text}")
        lines += [f" {'':<{width}}    {row.fix}"] if row.fix else []
        last = row.topic
    return "\n".join([*lines, f" {count_problems(rows)}"]) + "\n"


def render_screen(report: CheckReport, page: str) -> str:
    """Return the closing screen."""
    mark = {"aligned": "✓", "misaligned": "✗", "inconclusive": "?"}[report.verdict]
    lines = [f" {mark} {report.outcome}"]
    for side in report.sides:
        lines += ["", f" {side.side}", *render_rows(side.rows).splitlines()[:-1]]
    return "\n".join([*lines, "", f" {said('report')}   {page}", f" exit {report.code}"])


def render_line(report: CheckReport, page: str) -> str:
    """Return one line for logs of continuous integration."""
    rows = [row for side in report.sides for row in side.rows]
    problems, unknown = sum(row.problem for row in rows), sum(row.unknown for row in rows)
    issues = sum(len(side.issues) for side in report.sides)
    words = f"verdict={report.verdict} problems={problems} unknown={unknown} known_issues={issues} report={page}"
    return f"precflow {report.recipe} {words}"


def as_plain(report: CheckReport) -> dict[str, Any]:
    """Return everything as plain data: what ``result.json`` has."""
    plain = asdict(report)
    for side in plain["sides"]:
        for met in side["issues"]:
            del met["issue"]["zh"]
    return {**plain, "precflow": __version__, "exit_code": report.code}


def write_files(report: CheckReport, folder: Path, formats: Sequence[str], language: str = ENGLISH) -> list[Path]:
    """Write ``report.html``, ``report.md``, ``result.json`` and ``junit.xml`` as far as they are among the formats.

    Page and Markdown are in ``language``; in ``both`` there are two of each.

    There are no records for tables and no lines of source for SARIF.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = {
        "html": ("report.html", _render_html),
        "markdown": ("report.md", _render_markdown),
        "json": ("result.json", lambda each: json.dumps(as_plain(each), indent=1, ensure_ascii=False) + "\n"),
        "junit": ("junit.xml", _render_junit),
    }
    written = []
    for name in formats:
        if name in made:
            file, render = made[name]
            for shown, text in in_languages(file, render(report), language).items():
                write_text(folder / shown, text)
                written.append(folder / shown)
    return written


def _render_junit(report: CheckReport) -> str:
    """Return a case for the whole and one for each topic of a side: failure if something has to be fixed."""
    outcome = {"aligned": "passed", "misaligned": "failure", "inconclusive": "error"}[report.verdict]
    cases = [junit.Case("verdict", "environment", outcome, report.outcome)]
    for side in report.sides:
        topics: dict[str, list[Row]] = {}
        for row in side.rows:
            topics.setdefault(row.topic, []).append(row)
        for topic, rows in topics.items():
            wrong = [row for row in rows if row.problem or row.unknown]
            state = "failure" if any(row.problem for row in rows) else "error" if wrong else "passed"
            message = "; ".join(row.text for row in wrong or rows)
            cases.append(junit.Case(side.side, topic, state, message, "\n".join(row.fix for row in wrong if row.fix)))
    return junit.render_cases(report.recipe, cases)


def _render_html(report: CheckReport) -> str:
    templates = load_templates()
    style = html.inline_sources(templates, "css", ("base.css", "sections.css", "print.css"))
    policy = html.build_policy(style, "")
    text: str = templates.get_template("environment_check.html.j2").render(
        report=report, style=style, policy=policy, version=__version__
    )
    return text


def _render_markdown(report: CheckReport) -> str:
    text: str = load_templates().get_template("environment_check.md.j2").render(report=report, version=__version__)
    return text
