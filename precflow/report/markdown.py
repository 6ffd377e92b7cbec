"""``report.md``: a short report for a pull request. Verdict, what to do, the worst records, coverage, differences."""

from __future__ import annotations

from precflow import language
from precflow.diagnosis.findings import collect_translations
from precflow.diagnosis.training.phases import describe_phases
from precflow.report import curves, groups, highlights, terminal, wording
from precflow.report.model import ReportModel
from precflow.report.templating import escape_prose, load_templates
from precflow.task.outcome import describe_changed, describe_limit, describe_value

WORST = 10  # records
GROUPS = 5  # of a kind
DIFFERENCES = 30  # lines of the environment


def render(model: ReportModel) -> str:
    """Return the Markdown report; every table in it has a largest number of rows.

    A report in both languages is English here, and :func:`render_chinese` is the other one.
    """
    return render_chinese(model) if model.language == language.CHINESE else _render_english(model)


def render_chinese(model: ReportModel) -> str:
    """Return the Markdown report in Chinese."""
    also = collect_translations(model.findings, language.CHINESE)
    return language.translate_markdown(_render_english(model), language.CHINESE, also, escape=escape_prose)


def _render_english(model: ReportModel) -> str:
    template = load_templates().get_template("report.md.j2")
    return template.render(
        model=model,
        symbol=wording.VERDICT_SYMBOLS[model.verdict.verdict],
        inconclusive=wording.describe_inconclusive(model.verdict.counts),
        emulated=wording.EMULATED,
        changed=wording.describe_changed(model.verdict),
        coverage=terminal.describe_coverage(model),
        standards=terminal.describe_standards(model),
        check_words=wording.CHECK_WORDS,
        golden_worst=highlights.find_worst_golden(model, WORST),
        has_records=terminal.has_records(model),
        task_metrics=[(one, describe_value(one), describe_limit(one)) for one in model.task_metrics],
        task_words=wording.TASK_WORDS,
        describe_changed=describe_changed,
        curves=[(one, curves.describe_curve(one)) for one in model.curves],
        phases=describe_phases(model.phases),
        groups=groups.choose_shown(model.groups, GROUPS, in_trouble=True),
        worst=highlights.find_worst_rows(model, WORST),
        missing=highlights.find_incomplete_rows(model, WORST),
        closest=highlights.find_closest_row(model),
        known_issues=[each for each in model.known_issues if each.findings],
        differences=list(model.differences.items())[:DIFFERENCES],
        hidden_differences=max(0, len(model.differences) - DIFFERENCES),
    )
