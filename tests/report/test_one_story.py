"""Page, Markdown, JSON, JUnit and terminal of one run say the same: each number and place that several of them show."""

import html
import json
import re
from xml.etree import ElementTree as ET

import pytest
import torch

import precflow
from precflow import numbers
from precflow.dumps.formats import read_dump
from precflow.report import html as page
from precflow.report import junit, markdown, result_json, terminal, wording
from precflow.stages.two_dumps import compare_dumps

KINDS = {  # what the target is: whether it trains, and its fault
    "aligned": (True, ""),
    "training": (True, "gradient"),
    "forward": (False, "eps"),
    "inconclusive": (False, "weights"),
}
NUMBER = r"(?<![\w.])(?:\d[\d ]*(?:\.\d+)?(?:e-?\d+)?|infinity|NaN)"
USE = re.compile(rf"(\w+) ({NUMBER}), ({NUMBER} (?:%|times)(?: of)? its limit {NUMBER})")
COUNTS = {
    "compared": rf"({NUMBER}) of {NUMBER}(?: records?)? compared",
    "total": rf"{NUMBER} of ({NUMBER})(?: records?)? compared",
    "introduces": rf"({NUMBER}) (?:records? )?introduces? the error",
    "inherits": rf"({NUMBER}) inherits? it",
    "agrees": rf"({NUMBER}) agrees?\b",
    "unpaired": rf"({NUMBER}) unpaired",
    "undecided": rf"({NUMBER}) undecided",
    "over": rf"({NUMBER}) records? exceeds? (?:its|their) limits?",
}


class Block(torch.nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.norm, self.fc = torch.nn.LayerNorm(16, eps=eps), torch.nn.Linear(16, 16)

    def forward(self, x):
        return x + torch.nn.functional.gelu(self.fc(self.norm(x)))


def record(folder, *, trains, fault=""):
    torch.manual_seed(fault == "weights")
    model = torch.nn.Sequential(Block(1e-5), Block(1e-2 if fault == "eps" else 1e-5), torch.nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2) if trains else None
    with precflow.capture(model, folder, optimizer=optimizer, detail="tensors", step=[0, 1] if trains else [0]) as recording:
        for _ in range(2 if trains else 1):
            loss = model(torch.linspace(-1, 1, 128).sin().reshape(8, 16)).square().mean()
            if optimizer:
                optimizer.zero_grad()
                loss.backward()
                if fault == "gradient":
                    model[1].fc.weight.grad.mul_(1.5)
                optimizer.step()
                recording.step()
    return read_dump(folder)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sides")
    references = {trains: record(folder / f"reference {trains}", trains=trains) for trains in (True, False)}
    return {
        name: compare_dumps(references[trains], record(folder / name, trains=trains, fault=fault), command="precflow compare")
        for name, (trains, fault) in KINDS.items()
    }


@pytest.fixture(params=KINDS)
def told(request, compared):
    """Return a model and what each report says of it, as plain text."""
    model = compared[request.param]
    written = page.render(model)
    # The legend of the picture has its numbers behind the words.
    visible = re.sub(r'<(script|style)\b.*?</\1>|<section id="network">.*?</section>', "", written, flags=re.DOTALL)
    titles = " \n ".join(re.findall(r'title="([^"]*)"', visible))
    return model, {
        "page": " ".join(
            html.unescape(re.sub(r"<[^>]*>", " ", re.sub(r"<wbr>|</?strong>", "", f"{visible} {titles}"))).split()
        ),
        "markdown": html.unescape(re.sub(r"\\([\\`*_{}\[\]#|~!])", r"\1", markdown.render(model))),
        "junit": "\n".join(
            text for part in ET.fromstring(junit.render(model)).iter() for text in (*part.attrib.values(), part.text or "")
        ),
        "terminal": " ".join(terminal.render_summary(model, report_path="", exit_code=0).split()),
    }


def test_every_share_of_a_limit_is_that_of_a_record(told):
    """A factor stands with its metric and its limit, in the same digits everywhere."""
    model, texts = told
    uses = {wording.describe_use(row.judged).partition(", noise floor")[0] for row in model.rows}
    for kind, text in texts.items():
        found = {", ".join((f"{metric} {value}", use)) for metric, value, use in USE.findall(text)}
        assert found <= uses, kind
        shares = len(re.findall(r"\d (?:times|% of) its limit", text))
        assert shares == len(USE.findall(text)), kind


def test_every_count_is_the_same(told):
    model, texts = told
    for name, pattern in COUNTS.items():
        said = {kind: {found.strip() for found in re.findall(pattern, text)} for kind, text in texts.items()}
        assert len(set().union(*said.values())) <= 1, (name, said)
    assert f"{numbers.count(model.verdict.compared)} of {numbers.count(model.verdict.total)}" in texts["page"]


def test_the_start_the_parts_and_the_verdict_are_the_same(told):
    model, texts = told
    plain = json.loads(result_json.render(model))
    start = model.region.start if model.verdict.verdict == "misaligned" else ""
    assert plain["verdict"]["verdict"] == model.verdict.verdict
    for kind, text in texts.items():
        assert model.verdict.verdict in text.lower() or (kind, model.verdict.verdict) == ("junit", "aligned")
        assert start in text, kind
    differing = [check for check in plain["procedure"] if check["state"] == "differs"]
    guilty = [phase["name"] for phase in plain["phases"] if phase["state"] == "starts"]
    assert len(differing) <= 1
    assert not guilty or [check["phase"] for check in differing] == guilty
    for check in plain["procedure"]:
        words = wording.CHECK_WORDS[check["state"]]
        assert check["name"] in texts["page"]
        assert f"{check['name']} | {words}" in texts["markdown"]
    for phase in plain["phases"]:
        assert f"{wording.PHASE_SYMBOLS[phase['state']]} {phase['name']}{wording.PHASE_WORDS[phase['state']]}" in texts["page"]


def test_every_finding_is_told_alike(told):
    model, texts = told
    plain = json.loads(result_json.render(model))["findings"]
    for place, finding in enumerate(plain):
        facts = [finding["rule"], finding["title"], finding["where"], finding["fix"], finding["try_it"], finding["certainty"]]
        for kind in ("page", "markdown", "junit"):
            wanted = [fact for fact in facts if fact not in {"", finding["where"] if kind == "junit" else ""}]
            assert [fact for fact in wanted if fact not in texts[kind]] == [], kind
        if place == 0:
            assert finding["rule"] in texts["terminal"]
            assert finding["certainty"] in texts["terminal"]
        for part in ("page", "markdown"):
            text = texts[part][texts[part].index(finding["title"]) :]
            order = [text.index(fact) for fact in (finding["title"], finding["fix"], finding["try_it"]) if fact]
            assert order == sorted(order), part


def test_every_record_is_told_by_one_name(told):
    """What Markdown, JUnit and the terminal list of a record is what JSON has of it."""
    model, texts = told
    rows = {row["name"]: row for row in json.loads(result_json.render(model))["rows"]}
    assert len(rows) == len(model.rows)
    listed = re.findall(
        r"^\| `([^`]+)` \| (\w[\w ]*) \| (\w+) \| (\S+) \| (\S+) \| (\S+) \| ([^|]+?) \|$", texts["markdown"], re.MULTILINE
    )
    for name, status, role, metric, value, limit, factor in listed:
        row = rows[name]
        assert (wording.words(row["status"]), row["role"]) == (status, role)
        if metric != "-":
            told = (
                row["metric"],
                *(numbers.number(float(row[key])) for key in ("value", "limit")),
                numbers.factor(float(row["ratio"])),
            )
            assert (metric, value, limit, factor) == told
    assert listed or model.verdict.verdict != "misaligned"
    for name, status in re.findall(r"^([^:\n]+): (fail|nonfinite|undecided|unreadable), ", texts["junit"], re.MULTILINE):
        assert rows[name]["status"] == status
    for group in model.groups:
        assert group.record in {*rows, ""}
