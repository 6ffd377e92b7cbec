"""``report.html``: one file that opens offline. The verdict, the advice and the coverage stand in it without any script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import jinja2
from markupsafe import Markup

from precflow.judgement.verdicts import INCOMPLETE_STATUSES, MISALIGNED_STATUSES
from precflow.report import chart, highlights, page_data, record_details, wording
from precflow.report.model import ReportModel
from precflow.report.templating import environment

FIRST_ROWS = 50  # that stand in the page itself, for print and for readers without script; the script's table shows as many
STYLES = ("base.css", "sections.css", "records.css", "record_details.css", "print.css")
SCRIPTS = ("format.js", "page.js", "records.js", "chart.js", "table.js", "tree.js", "detail.js", "start.js")


@dataclass(frozen=True)
class Fact:
    """One line of the environment: its name, both values, and whether the run calls them different."""

    name: str
    reference: str
    target: str
    differs: bool


def text(model: ReportModel) -> str:
    """Return the HTML report."""
    templates, verdict = environment(), model.verdict
    page, data = page_data.fitted(model)
    style, script = inlined(templates, "css", STYLES), inlined(templates, "js", SCRIPTS)
    return templates.get_template("report.html.j2").render(
        model=page,
        style=style,
        script=script,
        policy=policy(style, script),
        data=Markup(data),  # noqa: S704 - neither its JSON (<, > and & are escaped) nor base64 can end the element
        symbol=wording.VERDICT_SYMBOLS[verdict.verdict],
        headline=headline(model),
        emulated=wording.EMULATED,
        unpaired=highlights.unpaired(model),
        roles=highlights.roles(model),
        closest=highlights.closest_row(page),
        closest_records=record_details.render(page, templates),
        failing=sum(verdict.counts.get(status, 0) for status in MISALIGNED_STATUSES),
        first_rows=highlights.first_rows(page, FIRST_ROWS),
        picture=chart.build(page),
        left_out=wording.left_out(len(page.rows), page.rows_left_out, page.recipe),
        facts=facts(model),
        status_symbols=wording.STATUS_SYMBOLS,
        status_meanings=wording.STATUS_MEANINGS,
        role_meanings=wording.ROLE_MEANINGS,
        severity=highlights.SEVERITY,
        kinds=kinds(),
    )


def inlined(templates: jinja2.Environment, folder: str, names: tuple[str, ...]) -> Markup:
    """Return style sheets or scripts as one text, in order.

    Raises:
        jinja2.TemplateNotFound: The installation lacks one of them.
    """
    loader = templates.loader
    assert loader is not None, "the report's environment always has a loader"
    text = "".join(loader.get_source(templates, f"{folder}/{name}")[0] for name in names)
    whole = f'"use strict";\n(async () => {{\n{text}}})();\n' if folder == "js" else text
    assert "</s" not in whole.lower(), "our own sources never close their element"
    return Markup("\n" + whole)  # noqa: S704 - shipped with precflow, holds nothing of the run


def policy(style: str, script: str) -> str:
    """Return the content security policy: no network at all, and no style or script but these two."""
    allowed = {"style-src": style, "script-src": script}
    hashes = [f"{name} 'sha256-{_digest(source)}'" for name, source in allowed.items()]
    return "; ".join(["default-src 'none'", *hashes, "base-uri 'none'", "form-action 'none'"])


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def headline(model: ReportModel) -> str:
    """Return the verdict as one sentence."""
    if model.verdict.verdict == "misaligned":
        return "The two sides part at" if model.region.start else "Records are over their limits; no single start was found."
    if model.verdict.verdict == "inconclusive":
        return "Nothing failed, but something needed for a verdict is missing."
    return "Every record that was compared stays within its limits."


def facts(model: ReportModel) -> list[Fact]:
    """Return the environment of both sides, what differs first; a difference without a fact is shown all the same."""
    by_side = {view.side: view.facts for view in model.sides}
    reference, target = by_side.get("reference", {}), by_side.get("target", {})
    names = dict.fromkeys([*model.differences, *sorted({*reference, *target})])
    return [_fact(name, model.differences, reference, target) for name in names]


def _fact(
    name: str, differences: Mapping[str, tuple[str, str]], reference: Mapping[str, str], target: Mapping[str, str]
) -> Fact:
    pair = differences.get(name)
    if pair is not None:
        return Fact(name, pair[0], pair[1], differs=True)
    return Fact(name, reference.get(name, ""), target.get(name, ""), differs=False)


def kinds() -> Mapping[str, str]:
    """Return status -> the class of colour that it is shown in: ``bad``, ``doubt``, ``known``, ``good`` or ``quiet``."""
    bad = dict.fromkeys(MISALIGNED_STATUSES, "bad")
    doubt = dict.fromkeys(INCOMPLETE_STATUSES | {"blind"}, "doubt")
    return dict.fromkeys(highlights.SEVERITY, "quiet") | {"pass": "good", "accepted": "known"} | doubt | bad
