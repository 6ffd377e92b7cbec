"""CONTRIBUTING.md names files that exist and commands that can be run."""

import ast
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PATHS = sorted(set(re.findall(r"`((?:precflow|tests|conf|templates|docs|recipes|examples)/[^`\s]*|[A-Z]+\.md)`", TEXT)))
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines() if line]
PACKAGES = sorted(path.parent for path in (ROOT / "precflow").glob("**/__init__.py"))


def test_every_path_exists():
    assert len(PATHS) > 20
    assert [path for path in PATHS if not (ROOT / path).exists()] == []


def test_every_link_leads_somewhere():
    links = re.findall(r"\]\(([^)#]+)", TEXT)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_can_be_run(command):
    program, *words = shlex.split(command, comments=True)
    if program == "make":
        targets = re.findall(r"^([\w.$()/]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert set(words) <= {target.replace("$(READY)", ".venv/.ready") for target in targets}
    else:
        assert [program, *words[:2]] == [".venv/bin/python", "-m", "pytest"]
        named = [word for word in words[2:] if word.startswith("tests")]
        assert named
        assert [word for word in named if not (ROOT / word).exists()] == []


def test_the_house_has_every_package():
    rooms = [path for path in PACKAGES if path.parent == ROOT / "precflow"]
    assert [room.name for room in rooms if f"`precflow/{room.name}`" not in TEXT] == []
    agent = [path for path in PACKAGES if path.parent == ROOT / "precflow" / "agent"]
    assert [room.name for room in agent if f"`{room.name}`" not in TEXT] == []


def test_each_package_says_what_lives_there():
    files = [package / "__init__.py" for package in PACKAGES]
    assert [path for path in files if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))] == []


def test_names_in_answers_exist():
    named = re.findall(r"`(\w+)` in `(precflow/[^`]+\.py)`", TEXT)
    assert named
    for name, path in named:
        assert re.search(rf"^(?:def |class )?{name}\b", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), (name, path)
