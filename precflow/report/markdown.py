"""``report.md``: the letter for a pull request. Verdict, what to do, worst records, coverage, differences."""

from __future__ import annotations

from precflow.report import highlights, terminal, wording
from precflow.report.model import ReportModel
from precflow.report.templating import environment

WORST = 10
DIFFERENCES = 30


def text(model: ReportModel) -> str:
    """Return the Markdown report; names are escaped, and it stays short whatever the size of the model."""
    template = environment().get_template("report.md.j2")
    return template.render(
        model=model,
        symbol=wording.VERDICT_SYMBOLS[model.verdict.verdict],
        emulated=wording.EMULATED,
        coverage=terminal.coverage(model),
        standards=terminal.standards(model),
        worst=highlights.worst_rows(model, WORST),
        missing=highlights.incomplete_rows(model, WORST),
        closest=highlights.closest_row(model),
        differences=list(model.differences.items())[:DIFFERENCES],
        hidden_differences=max(0, len(model.differences) - DIFFERENCES),
    )
