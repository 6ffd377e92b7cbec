import dataclasses
from xml.etree import ElementTree as ET

import pytest

from precflow import numbers
from precflow.judgement.verdicts import Verdict
from precflow.report import junit
from precflow.report.model import StageView


@pytest.mark.parametrize("name", ["aligned", "misaligned", "inconclusive", "nasty", "empty"])
def test_it_is_valid_xml_whose_totals_hold(name, request):
    root = ET.fromstring(junit.render(request.getfixturevalue(name)).encode("utf-8", "backslashreplace"))
    assert root.tag == "testsuites"
    assert int(root.get("tests")) == len(root.findall(".//testcase"))
    assert int(root.get("failures")) == len(root.findall(".//failure"))
    assert int(root.get("errors")) == len(root.findall(".//error"))
    assert int(root.get("skipped")) == len(root.findall(".//skipped"))


def outcomes(model):
    return {case.name: case.outcome for case in junit.list_cases(model) if case.suite == "modules"}


def test_one_case_a_module_of_two_levels(misaligned):
    found = outcomes(misaligned)
    layers = {f"encoder.layers.{layer}" for layer in range(12)}
    assert set(found) == layers | {"embeddings", "embeddings.token_embedding", "encoder", "final_layer_norm", "(model)"}
    assert found["encoder.layers.3"] == "passed"
    assert found["encoder.layers.4"] == "failure"


def test_the_failing_module_where_it_starts_says_so(misaligned):
    case = next(case for case in junit.list_cases(misaligned) if case.name == "encoder.layers.4")
    assert "the error starts here" in case.message
    assert case.detail.startswith("encoder.layers.4.layer_norm1 / layer_norm: fail")
    assert case.detail.endswith("more in the report")


def test_missing_evidence_is_an_error_and_never_passes(inconclusive):
    found = outcomes(inconclusive)
    assert found["encoder.layers.1"] == "error"
    assert found["encoder.layers.2"] == "error"


def test_a_run_that_is_inconclusive_for_other_reasons_is_not_green(aligned):
    model = dataclasses.replace(aligned, verdict=Verdict("inconclusive", ("the target does not repeat itself",)))
    assert set(outcomes(model).values()) == {"passed"}
    assert (
        ET.fromstring(junit.render(model)).find(".//error").get("message") == "inconclusive: the target does not repeat itself"
    )


def test_a_module_where_nothing_could_fail_is_skipped(misaligned):
    rows = [row for row in misaligned.rows if row.measure.operator in {"view", "transpose"}]
    blind = [dataclasses.replace(row, judged=dataclasses.replace(row.judged, status="blind")) for row in rows]
    for some in (rows, blind):
        assert set(outcomes(dataclasses.replace(misaligned, rows=tuple(some))).values()) == {"skipped"}


@pytest.mark.parametrize(
    ("state", "outcome"),
    [("kept", "passed"), ("run", "passed"), ("skipped", "skipped"), ("failed", "failure"), ("?", "failure")],
)
def test_stages(state, outcome, aligned):
    model = dataclasses.replace(aligned, stages=(StageView("dump.target", state, 2.5),))
    case = next(case for case in junit.list_cases(model) if case.suite == "stages")
    assert (case.outcome, case.seconds) == (outcome, 2.5)


def test_control_characters_and_lone_surrogates_become_visible(aligned):
    text = junit.render(dataclasses.replace(aligned, recipe="a\x00\x1b\ud800b\u202ec\u2067\x9bd"))
    assert 'name="a\\x00\\x1b\\ud800b\\u202ec\\u2067\\x9bd"' in text


def test_a_module_with_an_undecided_record_has_no_evidence(estimated):
    row = dataclasses.replace(estimated.rows[0], judged=dataclasses.replace(estimated.rows[0].judged, status="undecided"))
    cases = junit.list_cases(dataclasses.replace(estimated, rows=(row,)))
    assert [case.outcome for case in cases if case.suite == "modules"] == ["error"]
    assert "undecided" in cases[-1].message


def test_very_many_modules_are_bounded_the_worst_first_and_counted(large, monkeypatch):
    every = [case for case in junit.list_cases(large) if case.suite == "modules"]
    monkeypatch.setattr(junit, "MOST_CASES", 20)
    modules = [case for case in junit.list_cases(large) if case.suite == "modules"]
    assert len(every) > 800
    assert len(modules) == 20
    assert modules[:-1] == [case for case in every if case.outcome == "failure"][:19]
    assert modules[-1].outcome == "failure"
    assert modules[-1].name.startswith(f"({numbers.count(len(every) - 19)} other modules: ")


def test_a_module_passes_with_accepted_records_and_says_how_many(inconclusive):
    taken = next(row for row in inconclusive.rows if row.judged.status == "accepted")
    only = dataclasses.replace(inconclusive, rows=(taken,))
    module = ET.fromstring(junit.render(only)).findall("testsuite")[-1].find("testcase")
    assert module.findtext("system-out") == "1 accepted difference"
    assert module.find("failure") is None


def test_near_ties_pass_and_what_depends_on_them_is_no_failure(aligned):
    def first(status):
        """Return the model with only its first record, in another status."""
        row = aligned.rows[0]
        return dataclasses.replace(
            aligned, rows=(dataclasses.replace(row, judged=dataclasses.replace(row.judged, status=status)),)
        )

    near, behind = (junit.list_cases(first(status))[-1] for status in ("near_tie", "not_comparable"))
    assert (near.outcome, near.message) == ("passed", "1 near tie")
    assert behind.outcome == "skipped"
    assert behind.message == "no record of this module could have failed; 1 record after near ties"
