"""Failures of an agent: what the judge is told of them, and that every kind is a known one."""

import ast
from pathlib import Path

import precflow.agent
from precflow.agent.failures import KINDS, AgentError

SOURCES = sorted(Path(precflow.agent.__file__).parent.rglob("*.py"))


def raised_kinds():
    """Return file and kind of every ``AgentError("...", ...)`` in the agent."""
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "AgentError":
                first = node.args[0] if node.args else None
                found += [(path.name, first.value)] if isinstance(first, ast.Constant) else []
    return found


def test_a_failure_carries_what_the_judge_shows():
    error = AgentError("workload", "it fell", "pick it up", "Traceback ...")
    assert (error.kind, error.message, error.next_step, error.trace) == ("workload", "it fell", "pick it up", "Traceback ...")
    assert str(error) == "it fell\n   pick it up"


def test_next_step_and_traceback_may_be_missing():
    error = AgentError("budget", "too much")
    assert (error.next_step, error.trace, str(error)) == ("", "", "too much")


def test_every_kind_is_said_once():
    assert len(set(KINDS)) == len(KINDS)


def test_no_agent_raises_a_kind_that_the_judge_does_not_know():
    found = raised_kinds()
    assert len(found) > 20
    assert [(name, kind) for name, kind in found if kind not in KINDS] == []
