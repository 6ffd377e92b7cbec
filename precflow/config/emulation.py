"""Checks the rules of an emulated fault against the source of the effects, without importing it or torch.

The agent checks its rules once more. This check comes before the first side runs, and its messages get a file and a line.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from precflow.agent.contract import BACKWARD, FAULT_KEYS, FAULT_PHASES, REDRAW
from precflow.config.documents import DottedPath, PathProblems
from precflow.config.suggestions import did_you_mean

_SOURCE = Path(__file__).parents[1] / "agent" / "emulated" / "effects.py"
_MOST_RULES = 100
_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "str": ((str,), "text"),
    "bool": ((bool,), "true or false"),
}


@lru_cache(maxsize=1)
def effects() -> Mapping[str, Mapping[str, tuple[str, bool]]]:
    """Return effect -> parameter -> (annotation, whether it must be given)."""
    found = {}
    for node in ast.parse(_SOURCE.read_text(encoding="utf-8")).body:
        # An effect is a public function of the module that returns an Effect.
        made = isinstance(node, ast.FunctionDef) and isinstance(node.returns, ast.Name) and node.returns.id == "Effect"
        if isinstance(node, ast.FunctionDef) and made and not node.name.startswith("_"):
            needed = len(node.args.args) - len(node.args.defaults)
            found[node.name] = {
                one.arg: (ast.unparse(one.annotation) if one.annotation else "", number < needed)
                for number, one in enumerate(node.args.args)
            }
    return found


def find_problems(rules: Sequence[Mapping[str, Any]]) -> PathProblems:
    """Yield ``(path, message)`` for everything that is wrong in the rules of an emulated fault."""
    if len(rules) > _MOST_RULES:
        yield ("emulate", "rules"), f"has {len(rules)} rules; at most {_MOST_RULES}"
        return
    for number, rule in enumerate(rules):
        path = ("emulate", "rules", str(number))
        name = rule.get("rule")
        if name == REDRAW:
            if rule.keys() != {"rule", "parameter"} or not isinstance(rule["parameter"], str):
                yield path, f"{REDRAW} takes `parameter`, a pattern of names, and nothing else"
        elif name not in effects():
            known = (*effects(), REDRAW)
            yield (*path, "rule"), f"`{name}` is no effect; there are {', '.join(known)}.{did_you_mean(str(name), known)}"
        else:
            yield from _common(rule, path)
            yield from _parameters(rule, effects()[str(name)], path)


def _common(rule: Mapping[str, Any], path: DottedPath) -> PathProblems:
    operator, module, phase = rule.get("operator"), rule.get("module", ""), rule.get("phase", "")
    names = [operator] if isinstance(operator, str) else operator
    if not isinstance(names, list) or not names or not all(isinstance(one, str) and one for one in names):
        yield (*path, "operator"), "expected aten names or patterns, such as mm|addmm"
    if not isinstance(module, str):
        yield (*path, "module"), "expected a pattern of module names"
    if phase not in ("", *FAULT_PHASES):
        yield (*path, "phase"), f"`{phase}` is not one of {', '.join(FAULT_PHASES)}.{did_you_mean(str(phase), FAULT_PHASES)}"
    elif phase == BACKWARD and module:
        yield (*path, "module"), "no module is running in backward: leave it out"
    calls = rule.get("call", [])
    if not all(
        isinstance(one, int) and not isinstance(one, bool) and one >= 0
        for one in (calls if isinstance(calls, list) else [calls])
    ):
        yield (*path, "call"), "expected numbers of calls, from 0"


def _parameters(rule: Mapping[str, Any], known: Mapping[str, tuple[str, bool]], path: DottedPath) -> PathProblems:
    listed = ", ".join(known) or "none"
    for key, value in rule.items():
        if key in FAULT_KEYS:
            continue
        if key not in known:
            yield (*path, str(key)), f"is no parameter of {rule['rule']}, which has {listed}.{did_you_mean(str(key), known)}"
            continue
        # isinstance(True, int) is true in Python; here a bool is no number.
        kinds, words = _KINDS.get(known[key][0], ((object,), ""))
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds and words):
            yield (*path, key), f"expected {words}, got `{str(value)[:60]}`"
    for name, (_, needed) in known.items():
        if needed and name not in rule:
            yield path, f"lacks `{name}`, which {rule['rule']} needs"
