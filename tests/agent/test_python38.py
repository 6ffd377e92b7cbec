"""The agent runs on Python 3.8: its files may use no newer syntax and no other library; ``.ci/run`` looks for newer calls."""

import ast
import sys
from pathlib import Path

import precflow

AGENT = Path(precflow.__file__).parent / "agent"
FILES = sorted(AGENT.rglob("*.py"))


def find_foreign_imports(path):
    """Yield what a file imports that is neither Python's, torch's nor the agent's; its syntax is that of Python 3.8."""
    tree = ast.parse(path.read_text(), str(path), feature_version=(3, 8))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    for name in names:
        package = name.split(".")[0]
        of_agent = name in {"precflow", "precflow.version"} or name.startswith("precflow.agent")
        if not of_agent and package not in {*sys.stdlib_module_names, "torch", "torch_npu"}:
            yield name


def test_syntax_and_imports():
    assert len(FILES) > 100
    assert [(path.name, name) for path in FILES for name in find_foreign_imports(path)] == []
