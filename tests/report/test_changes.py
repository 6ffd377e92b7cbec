"""Every report says with the verdict what was changed in what ran, and what both sides do as they are."""

import dataclasses
import json
import re

import pytest

from precflow.agent.contract import CHANGES
from precflow.dumps.header import Header
from precflow.environment.changes import find_changes
from precflow.judgement.verdicts import AsIs, AsIsStep
from precflow.report import ci, html, junit, markdown, result_json, terminal

AGREES = AsIs("agrees", "the script as it is agrees: losses to 0", (AsIsStep(0, 2.0, 2.0, 0.0, 2.0**-12),))


def changed(model, what, as_is=AGREES):
    header = Header(determinism={"changes": [{"what": what, "count": 3, "places": ["blocks.0.drop"]}]})
    verdict = dataclasses.replace(model.verdict, changes=find_changes(header, header), as_is=as_is)
    return dataclasses.replace(model, verdict=verdict)


def plain(text):
    return " ".join(re.sub(r"<[^>]+>|\\", " ", text).split())


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("outcome", ["aligned", "misaligned", "inconclusive"])
def test_each_change_is_in_each_report(request, what, outcome):
    model = changed(request.getfixturevalue(outcome), what)
    (change,) = model.verdict.changes
    said = f"with {change.text}; the script as it is agrees: losses to 0"
    screen = terminal.render_summary(model, report_path="", exit_code=0)
    assert said in plain(screen)
    assert len(screen.splitlines()) <= terminal.LINES[80]
    assert said in plain(markdown.render(model))
    assert said in plain(junit.render(model))
    assert said in plain(html.render(model))
    assert f"changed={what}:3 as_is=agrees" in ci.format_outcome(model, report_path="r.html")
    document = json.loads(result_json.render(model))
    assert document["verdict"]["changes"][0]["what"] == what
    assert document["verdict"]["as_is"]["steps"][0]["reference"] == 2.0


def test_a_reason_is_not_said_twice_and_nothing_is_said_of_a_run_that_changed_nothing(inconclusive, aligned):
    text = "the script as it is does not agree"
    model = changed(inconclusive, "dropout", AsIs("differs", text))
    model = dataclasses.replace(model, verdict=dataclasses.replace(model.verdict, reasons=(text,)))
    assert plain(terminal.render_summary(model, report_path="", exit_code=3)).count(text) == 1
    assert "changed=" not in ci.format_outcome(aligned, report_path="")
    assert "What ran" not in markdown.render(aligned)


def test_sides_that_counted_other_numbers_are_both_counted(aligned):
    headers = [Header(determinism={"changes": [{"what": "draws", "count": count, "places": []}]}) for count in (1, 4)]
    model = dataclasses.replace(aligned, verdict=dataclasses.replace(aligned.verdict, changes=find_changes(*headers)))
    assert "changed=draws:1/4" in ci.format_outcome(model, report_path="")
