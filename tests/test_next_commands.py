"""The command that each finding proposes next can be typed as it stands."""

import re
import shlex

import pytest
import torch

import precflow
from precflow import cli, resources
from precflow.diagnosis.advice.rule_files import load_rules
from precflow.diagnosis.advice.rules import advise

RULES = load_rules([resources.directory("conf") / "rule"])
# Another text for what a template fills in; a place is filled in as a rule about a suspect has it.
LOOKS = sorted(
    {re.sub(r"\{\{.*?\}\}", lambda found: "TARGET" if re.search("TARGET|side", found[0]) else "3", rule.look) for rule in RULES}
)
NO_DUMPS = "+recipe=[script,training_alignment]"


@pytest.fixture(autouse=True)
def _clean(clean):
    """Take the machine's own settings away."""


@pytest.fixture
def dumps(tmp_path, monkeypatch):
    """Record one step of a training on two sides, and work in their folder."""
    monkeypatch.chdir(tmp_path)
    for side, eps in (("reference", 1e-5), ("target", 1e-2)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.LayerNorm(16, eps=eps), torch.nn.Linear(16, 4))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        with precflow.capture(model, tmp_path / side, optimizer=optimizer, detail="tensors"):
            model(torch.linspace(-0.1, 0.1, 128).sin().reshape(8, 16)).square().mean().backward()
            optimizer.step()


def run_command(command):
    first, *words = shlex.split(command)
    assert first == "precflow"
    return cli.main(words)


def test_each_rule_leads_on():
    """A rule about the whole run has no record to show in full unless its place is one."""
    ends = [one.id for one in RULES if not (one.try_it or one.look or one.about != "run" or one.where.startswith("{{"))]
    assert ends == []


@pytest.mark.parametrize("look", LOOKS)
def test_what_shows_more_of_a_finding_can_be_typed(dumps, tmp_path, look, capsys):
    (tmp_path / "TRAIN.py").write_text("")
    words = (look or "compare REFERENCE TARGET --record WHERE").replace("REFERENCE", "reference").replace("TARGET", "target")
    words = words.replace("WHERE", shlex.quote("1.weight (optimizer)"))
    plans = NO_DUMPS in words  # what it would run is seen without running it
    assert run_command(f"precflow {'plan ' * plans}{words}") in {0, 1, 3}, capsys.readouterr().err


def test_the_commands_of_a_comparison_can_be_typed(dumps, capsys):
    assert cli.main(["compare", "reference", "target"]) == 1
    result = precflow.read("comparison/result.json")
    assert result.findings
    for finding in result.findings:
        assert run_command(finding.try_it) in {0, 1, 3}, (finding.try_it, capsys.readouterr().err)


def test_a_finding_names_the_record_of_its_suspect():
    suspect = {"name": "a / chunk (step 1)", "record": "a / chunk, output 1 (step 1)", "operator": "chunk"}
    (finding,) = advise({"suspects": [suspect]}, [rule for rule in RULES if rule.id == "PF299"])
    assert finding.look == "compare REFERENCE TARGET --record 'a / chunk, output 1 (step 1)'"
