"""The agent runs on Python 3.8: its files may use no newer syntax and no other library; ``.ci/run`` looks for newer calls."""

import ast
import sys
from pathlib import Path

import pytest

import precflow

AGENT = Path(precflow.__file__).parent / "agent"
FILES = sorted(AGENT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(AGENT)))
def test_syntax_and_imports(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    of_precflow = {name for name in names if name.split(".")[0] == "precflow"}
    assert all(name in ("precflow", "precflow.version") or name.startswith("precflow.agent") for name in of_precflow)
    others = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - {"precflow", "torch", "torch_npu"}
    assert not others
