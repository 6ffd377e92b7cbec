"""A run that ended because a side broke, as a page, as Markdown and as plain data: where, with what, and what to do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from precflow.breakdown import FORMAT, Breakdown
from precflow.files import write_text
from precflow.language import ENGLISH
from precflow.report import html, junit
from precflow.report.templating import load_templates
from precflow.report.translated import in_languages
from precflow.version import __version__

SCHEMA = 1
EXIT_CODE = 2
_HEADINGS = {
    "exception": "raised an exception",
    "memory": "ran out of memory",
    "crash": "crashed",
    "hang": "did not come to its end",
    "silence": "ended without a result",
}


@dataclass(frozen=True)
class BrokenRun:
    """Everything that is shown of it. Nothing in it is a path of this machine.

    Attributes:
        recipe: Name of the recipe.
        title: Its title.
        run: Number of the run in its folder.
        finished: Date and time, UTC, to the minute.
        command: What was typed.
        stage: The stage in which the side broke.
        message: What happened.
        next_step: What to do.
        breakdown: What is known of it.
        stages: Name and state of the stages that had ended before.
    """

    recipe: str
    title: str
    run: int
    finished: str
    command: str
    stage: str
    message: str
    next_step: str
    breakdown: Breakdown
    stages: tuple[tuple[str, str], ...] = ()

    @property
    def heading(self) -> str:
        """One line: which side, and what became of it."""
        return f"The {self.breakdown.side} {_HEADINGS[self.breakdown.kind]}"


def as_plain(run: BrokenRun) -> dict[str, Any]:
    """Return everything as plain data: what ``result.json`` has."""
    head = {"format": FORMAT, "schema": SCHEMA, "precflow": __version__, "exit_code": EXIT_CODE, "verdict": None}
    return {**head, **asdict(run), "rows": [list(row) for row in run.breakdown.rows()]}


def write_files(run: BrokenRun, folder: Path, formats: Sequence[str], language: str = ENGLISH) -> None:
    """Write ``report.html``, ``report.md``, ``result.json`` and ``junit.xml`` as far as they are among the formats.

    Page and Markdown are in ``language``; in ``both`` there are two of each.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, (file, render) in _FORMATS.items():
        if name in formats:
            for shown, text in in_languages(file, render(run), language).items():
                write_text(folder / shown, text)


def _render_html(run: BrokenRun) -> str:
    templates = load_templates()
    style = html.inline_sources(templates, "css", ("base.css", "sections.css", "print.css"))
    text: str = templates.get_template("broken.html.j2").render(
        run=run, style=style, policy=html.build_policy(style, ""), version=__version__
    )
    return text


def _render_markdown(run: BrokenRun) -> str:
    text: str = load_templates().get_template("broken.md.j2").render(run=run, version=__version__)
    return text


def _render_json(run: BrokenRun) -> str:
    return json.dumps(as_plain(run), indent=1, ensure_ascii=False) + "\n"


def _render_junit(run: BrokenRun) -> str:
    """Return a case for the stage that broke, which is an error, and one for each that had ended before."""
    detail = "\n".join([run.message, *(f"{label}: {text}" if label else text for label, text in run.breakdown.rows())])
    broke = junit.Case("stages", run.stage, "error", run.heading, f"{detail}\n{run.next_step}")
    return junit.render_cases(run.recipe, [broke, *(junit.Case("stages", name, "passed", state) for name, state in run.stages)])


_FORMATS = {
    "html": ("report.html", _render_html),
    "markdown": ("report.md", _render_markdown),
    "json": ("result.json", _render_json),
    "junit": ("junit.xml", _render_junit),
}
