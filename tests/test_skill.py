"""The skill for coding agents: its commands compose and run. Those that take minutes are run by ``test_docs.py``."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from precflow import cli

ROOT = Path(__file__).parents[1]
SKILL = ROOT / "skills" / "precflow" / "SKILL.md"
TEXT = SKILL.read_text(encoding="utf-8")
LINES = [
    line.partition(" # exit")[0]
    for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
    for line in block.splitlines()
    if line.strip()
]
FINDING = {
    "rule": "PF214",
    "title": "t",
    "claim": "c",
    "certainty": "likely",
    "where": "w",
    "site": "",
    "why": "",
    "fix": "",
    "evidence": [],
    "against": [],
    "try_it": "",
    "confirm": "",
    "look": "",
    "sources": [],
    "change": "",
}


@pytest.fixture
def result(tmp_path, monkeypatch):
    """A run folder with a result, as the second step of the skill leaves it."""
    public = tmp_path / "runs" / "sd_text_encoder" / "public"
    public.mkdir(parents=True)
    content = {"verdict": {"verdict": "misaligned"}, "region": {"start": "a / layer_norm"}, "findings": [FINDING]}
    (public / "result.json").write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.chdir(tmp_path)


def test_it_has_the_head_that_agents_look_for():
    assert re.match(r"---\nname: precflow\ndescription: .{40,}\n---\n", TEXT)


@pytest.mark.parametrize("line", LINES)
def test_a_command_works(line, result, capfd):
    words = shlex.split(line)
    if words[0] == "python3":
        subprocess.run([sys.executable, *words[1:]], check=True, timeout=60)
    else:
        assert words[0] == "precflow"
        given = words[1:]
        if given[0].startswith("+"):  # a run takes minutes: see that it would start
            given = ["validate", *given]
        if given[0] == "plan":  # it asks the sides for their devices
            given = ["validate", *given[1:]]
        assert cli.main(given) == 0
    assert "".join(capfd.readouterr()).strip()


def test_what_it_says_of_findings_is_in_the_schema():
    schema = json.loads((ROOT / "docs" / "result.schema.json").read_text(encoding="utf-8"))
    finding = schema["$defs"]["finding"]["properties"]
    named = set(re.findall(r"`(\w+)`", TEXT.partition("Each finding has")[2].partition("What `certainty`")[0]))
    assert named <= set(finding)
    levels = finding["certainty"]["enum"]
    assert all(f"`{level}`" in TEXT for level in levels)
    assert set(FINDING) == set(finding)
