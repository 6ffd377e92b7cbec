"""The agent runs on Python 3.8: its files may use no newer syntax and no newer library."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import precflow

AGENT = Path(precflow.__file__).parent / "agent"
FILES = sorted(AGENT.rglob("*.py"))


def test_vermin_finds_nothing_newer():
    vermin = shutil.which("vermin", path=str(Path(sys.executable).parent))
    if vermin is None:
        pytest.skip("vermin is in extra lint")
    done = subprocess.run([vermin, "-t=3.8-", "--no-tips", "--no-parse-comments", str(AGENT)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(AGENT)))
def test_syntax_and_imports(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    of_precflow = {name for name in names if name.split(".")[0] == "precflow"}
    assert all(name == "precflow" or name.startswith("precflow.agent") for name in of_precflow)
    others = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - {"precflow", "torch", "torch_npu"}
    assert not others
