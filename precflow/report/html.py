"""``report.html``: one file that opens offline. Verdict, advice and coverage are readable without JavaScript."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass

import jinja2
from markupsafe import Markup

from precflow import language
from precflow.diagnosis.findings import collect_translations
from precflow.diagnosis.training.phases import describe_phases
from precflow.judgement.verdicts import MISALIGNED_STATUSES
from precflow.report import (
    chart,
    copies,
    curves,
    groups,
    highlights,
    page_data,
    record_details,
    task_metrics,
    terminal,
    training,
    tree,
    wording,
)
from precflow.report.model import ReportModel
from precflow.report.templating import load_templates
from precflow.task.outcome import BEYOND, describe_changed, describe_limit, describe_value

_BODY_BEGINS, _BODY_ENDS = "<body>\n", '<dialog id="detail"'
_ENGLISH_TAG = 'lang="en"'
_TITLE = re.compile("<title>.*?</title>", re.DOTALL)
_PICTURE = re.compile(r'(?<=<img)([^>]*) src="data:[^"]*"')
FIRST_ROWS = 50  # rows written into the page, for print and without JavaScript; the script's table shows as many at a time
MOST_BYTES = 3_000_000  # of a page, so that it can be mailed; what is said comes before the records
LEAST_DATA = 100_000  # bytes of records, however much is said
GOLDEN = 20  # records
MOST_ONE_SIDED = 60  # modules that only one side has
GROUPS = 8  # of a kind: modules, operators...
STYLES = (
    "base.css",
    "sections.css",
    "curves.css",
    "groups.css",
    "task_metrics.css",
    "records.css",
    "record_details.css",
    "training.css",
    "print.css",
)
SCRIPTS = (
    "columns.js",
    "format.js",
    "page.js",
    "records.js",
    "chart.js",
    "table.js",
    "tree.js",
    "detail.js",
    "curves.js",
    "start.js",
)


@dataclass(frozen=True)
class Fact:
    """One line of the section Environment: its name, both values, and whether they count as different."""

    name: str
    reference: str
    target: str
    differs: bool


def render(model: ReportModel) -> str:
    """Return the page: every section is a template in ``templates/html``, listed in ``templates/report.html.j2``.

    A page in both languages has its body twice; that in Chinese waits in a ``template``, and the script puts it in place.
    """
    text, data = _render(model, page_data.MOST_BYTES)
    said = len(text.encode("utf-8", "backslashreplace")) - data
    if said + data > MOST_BYTES:  # the letter itself is long: fewer records
        text, _ = _render(model, max(LEAST_DATA, MOST_BYTES - said))
    return text


def _render(model: ReportModel, room: int) -> tuple[str, int]:
    """Return the page with at most so many bytes of data about its records, and how many they are."""
    english, data = _render_english(model, room)
    return _translate(model, english), data


def _translate(model: ReportModel, english: str) -> str:
    """Return the page in the language that the recipe asks for, or in both."""
    if model.language == language.ENGLISH:
        return english
    also = collect_translations(model.findings, language.CHINESE)
    if model.language == language.CHINESE:
        head, _, body = english.partition("<body>")
        head = head.replace(_ENGLISH_TAG, f'lang="{language.TAGS[language.CHINESE]}"', 1)
        return language.translate_page(f"{head}<body>{body}", language.CHINESE, also)
    head, _, rest = english.partition(_BODY_BEGINS)
    body, _, tail = rest.partition(_BODY_ENDS)
    translated = _share_pictures(language.translate_page(body, language.CHINESE, also))
    title = language.translate_page(_TITLE.findall(head)[0], language.CHINESE)
    other = f'<template lang="{language.TAGS[language.CHINESE]}">\n{title}\n{translated}</template>\n'
    return f"{head}{_BODY_BEGINS}{body}{other}{_BODY_ENDS}{tail}"


def _share_pictures(body: str) -> str:
    """Return the second body without the bytes of its pictures; the script takes those of the first, by their place."""
    return _PICTURE.sub(r"\1 data-same", body)


def _render_english(model: ReportModel, room: int) -> tuple[str, int]:
    templates, verdict = load_templates(), model.verdict
    page, data = page_data.fit_into_page(model, room)
    style, script = inline_sources(templates, "css", STYLES), inline_sources(templates, "js", SCRIPTS)
    text = templates.get_template("report.html.j2").render(
        model=page,
        style=style,
        script=script,
        policy=build_policy(style, script, pictures=any(one.shown for one in model.task_metrics)),
        data=Markup(data),  # noqa: S704 - neither its JSON (<, > and & are escaped) nor base64 can end the element
        symbol=wording.VERDICT_SYMBOLS[verdict.verdict],
        headline=describe_verdict(model),
        changed=wording.describe_changed(verdict),
        emulated=wording.EMULATED,
        copies=[(copies.write_finding(one), copies.write_prompt(model, one)) for one in model.findings],
        one_sided=tree.find_one_sided(model.rows, MOST_ONE_SIDED),
        operators=sorted(model.operators, key=lambda row: (-row.faults, not row.is_worse, -row.in_run)),
        unpaired=highlights.count_unpaired(model),
        roles=highlights.count_roles(model),
        closest=highlights.find_closest_row(page),
        uses=_describe_suspects(model),
        closest_records=record_details.render(page, templates),
        failing=sum(verdict.counts.get(status, 0) for status in MISALIGNED_STATUSES),
        first_rows=highlights.find_first_rows(page, FIRST_ROWS),
        picture=chart.build_chart(page),
        groups=groups.choose_shown(model.groups, GROUPS),
        golden_worst=highlights.find_worst_golden(model, GOLDEN),
        has_records=terminal.has_records(model),
        task_metrics=[
            (one, describe_value(one), describe_limit(one), task_metrics.describe_worst(one)) for one in model.task_metrics
        ],
        task_words=wording.TASK_WORDS,
        describe_changed=describe_changed,
        task_colours=wording.TASK_COLOURS,
        rows_of_text=task_metrics.lay_out_text,
        curves=[
            (one, curves.describe_curve(one), curves.describe_growth(one.growth), curves.draw_curve(one))
            for one in model.curves
        ],
        height=curves.HEIGHT,
        lower=curves.LOWER,
        left_out=wording.describe_left_out(len(page.rows), page.rows_left_out, page.recipe),
        facts=list_facts(model),
        phases=describe_phases(model.phases),
        gradients=training.draw_gradients(model.gradients),
        check_words=wording.CHECK_WORDS,
        check_colours=wording.CHECK_COLOURS,
        phase_symbols=wording.PHASE_SYMBOLS,
        phase_words=wording.PHASE_WORDS,
        phase_colours=wording.PHASE_COLOURS,
        status_symbols=wording.STATUS_SYMBOLS,
        status_meanings=wording.STATUS_MEANINGS,
        role_meanings=wording.ROLE_MEANINGS,
        severity=highlights.SEVERITY,
        kinds=wording.STATUS_COLOURS,
    )
    return text, len(data)


def _describe_suspects(model: ReportModel) -> dict[str, str]:
    """Return the condition that decides each suspect's record; ``""`` where none does, or where no number is known for sure."""
    uses = dict.fromkeys((suspect.record for suspect in model.region.suspects), "")
    for row in model.rows:
        if row.measure.record in uses and row.judged.status != "undecided":
            uses[row.measure.record] = wording.describe_use(row.judged)
    return uses


def inline_sources(templates: jinja2.Environment, folder: str, names: tuple[str, ...]) -> Markup:
    """Return style sheets or scripts, joined in this order.

    Raises:
        jinja2.TemplateNotFound: One of them is missing from the installation.
    """
    loader = templates.loader
    assert loader is not None, "the report's environment always has a loader"
    text = "".join(loader.get_source(templates, f"{folder}/{name}")[0] for name in names)
    whole = f'"use strict";\n(async () => {{\n{text}}})();\n' if folder == "js" else text
    # They are not escaped: inside these two elements browsers decode no entities, so "&lt;" would reach the script as such.
    assert "</s" not in whole.lower(), "none of our sources may end the <style> or <script> element around it"
    return Markup("\n" + whole)  # noqa: S704 - shipped with precflow, holds nothing of the run


def build_policy(style: str, script: str, *, pictures: bool = False) -> str:
    """Return the content security policy of the page: no network, only this style and script, and pictures that stand in it."""
    allowed = {"style-src": style, "script-src": script}
    # The hash is over the exact text between the tags, with the newline at its start: the template must not add a space.
    hashes = []
    for name, source in allowed.items():
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        hashes.append(f"{name} 'sha256-{digest}'")
    inline = ["img-src data:"] if pictures else []
    return "; ".join(["default-src 'none'", *hashes, *inline, "base-uri 'none'", "form-action 'none'"])


def describe_verdict(model: ReportModel) -> str:
    """Return the verdict as one sentence."""
    if model.curves and not model.rows:
        return {
            "misaligned": "A curve is beyond its limits.",
            "inconclusive": "No curve is beyond its limits, but something needed for a verdict is missing.",
            "aligned": "Every curve stays within its limits. No tensor was compared.",
        }[model.verdict.verdict]
    if model.verdict.verdict == "misaligned":
        beyond = [one.name for one in model.task_metrics if one.state == BEYOND]
        if beyond and not model.region.start and not any(map(model.verdict.counts.get, MISALIGNED_STATUSES)):
            return f"No record is over its limit, and the task metric {', '.join(beyond)} is beyond its own."
        return (
            "The first difference is at" if model.region.start else "Records are over their limits; no single start was found."
        )
    if model.verdict.verdict == "inconclusive":
        text = wording.describe_inconclusive(model.verdict.counts)
        return f"{text[0].upper()}{text[1:]}."
    return "Every record that was compared stays within its limits."


def list_facts(model: ReportModel) -> list[Fact]:
    """Return the facts of both sides, those that differ first; a difference is listed even if neither side has that fact."""
    by_side = {view.side: view.facts for view in model.sides}
    reference, target = by_side.get("reference", {}), by_side.get("target", {})
    different = [Fact(name, *values, differs=True) for name, values in model.differences.items()]
    others = sorted({*reference, *target} - model.differences.keys())
    return different + [Fact(name, reference.get(name, ""), target.get(name, ""), differs=False) for name in others]
