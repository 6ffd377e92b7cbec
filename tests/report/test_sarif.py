"""SARIF: what stands at a line of source, what has none, and that code scanning can read both."""

import dataclasses
import json
from pathlib import Path
from urllib.parse import unquote

import jsonschema
import pytest

from precflow.report import sarif
from precflow.scan.findings import Finding, ScanResult
from precflow.scan.rules import LOOK, NUMBERS, STOPS

SCHEMA = json.loads((Path(__file__).parents[1] / "support" / "sarif.schema.json").read_text(encoding="utf-8"))


def read(text):
    """Return the one run of a file that keeps the standard."""
    log = json.loads(text)
    jsonschema.validate(log, SCHEMA)
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    assert [rules[result["ruleIndex"]]["id"] for result in run["results"]] == [result["ruleId"] for result in run["results"]]
    return run


def notices(run):
    return [(one["level"], one["message"]["text"]) for one in run["invocations"][0]["toolExecutionNotifications"]]


@pytest.mark.parametrize("name", ["aligned", "misaligned", "inconclusive", "nasty", "empty"])
def test_every_run_keeps_the_standard(name, request):
    model = request.getfixturevalue(name)
    run = read(sarif.render(model))
    assert len(run["results"]) + len(notices(run)) - 1 == len(model.findings)  # one says the verdict
    assert notices(run)[0][1].startswith(("recipe", "sd_text"))


def test_a_finding_stands_at_its_innermost_line_with_the_way_to_it(misaligned):
    first = dataclasses.replace(misaligned.findings[0], site="my models/clip ü.py:371 in forward <- train.py:40 in main")
    run = read(sarif.render(dataclasses.replace(misaligned, findings=(first, misaligned.findings[1]))))
    (result,) = run["results"]
    place = result["locations"][0]
    assert unquote(place["physicalLocation"]["artifactLocation"]["uri"]) == "my models/clip ü.py"
    assert place["physicalLocation"]["region"]["startLine"] == 371
    assert place["logicalLocations"][0]["fullyQualifiedName"] == first.where
    assert (result["level"], run["invocations"][0]["exitCode"]) == ("error", 1)
    frames = result["stacks"][0]["frames"]
    assert [frame["location"]["physicalLocation"]["region"]["startLine"] for frame in frames] == [371, 40]
    assert first.fix in result["message"]["text"]
    assert notices(run)[1] == ("note", "PF102 HF32 is on for matrix products of the target. Turn it off to rule it out.")


def test_a_finding_that_moved_by_some_lines_is_the_same_one(misaligned):
    prints = set()
    for line in (371, 380):
        finding = dataclasses.replace(misaligned.findings[0], site=f"clip.py:{line} in forward")
        (result,) = read(sarif.render(dataclasses.replace(misaligned, findings=(finding,))))["results"]
        prints.add(result["partialFingerprints"]["precflow/v1"])
    assert len(prints) == 1


@pytest.mark.parametrize("site", ["", "workload", "model.py:0 in forward", "a <- b", "model.py:x in f"])
def test_what_is_no_line_of_source_is_none(site):
    assert sarif.read_site(site) == ()


def place(number, weight, **changes):
    fields = {"rule": "device.text", "weight": weight, "file": "a.py", "line": number, "end_line": number + 1}
    return Finding(**fields, found="cuda", why="No such device.", do="npu", **changes)


def test_a_scan_puts_what_stops_first_and_counts_what_has_no_room(monkeypatch):
    monkeypatch.setattr(sarif, "MOST_RESULTS", 2)
    places = (place(1, NUMBERS), place(5, LOOK), place(9, STOPS), place(2, STOPS, patched=True))
    scan = ScanResult("tree", places, {"Python": 1}, {"b.bin": "is too large"}, {"device": "Devices by name"})
    run = read(sarif.render_scan(scan, 1))
    regions = [result["locations"][0]["physicalLocation"]["region"] for result in run["results"]]
    assert [region["startLine"] for region in regions] == [9, 2]
    assert run["results"][1]["message"]["text"].endswith("(the patch does it)")
    assert [text for _, text in notices(run)] == [
        "b.bin was not read: it is too large",
        "2 more findings are left out here; the other files have all",
    ]


def test_the_schema_of_the_test_notices_what_is_wrong(misaligned):
    log = json.loads(sarif.render(misaligned))
    log["runs"][0]["invocations"][0]["toolExecutionNotifications"][0]["level"] = "fatal"
    with pytest.raises(jsonschema.ValidationError, match="fatal"):
        jsonschema.validate(log, SCHEMA)
