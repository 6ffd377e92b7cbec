"""The end of a run that judged nothing, such as ``stages=[environment]``: what was made, what it shows, and what comes next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precflow import numbers
from precflow.environment.differences import find_differences, find_reduced_switches
from precflow.environment.variables import find_misspelt
from precflow.report.terminal import Uncut, render_labelled

_SHOWN = 8  # differences


@dataclass(frozen=True)
class Unjudged:
    """A run without a verdict.

    Attributes:
        title: What it is called.
        stages: Instances that it made or found, in order.
        store: Where they are.
        facts: Side -> facts of its environment, of the sides that were looked at.
        same: What the recipe wants to be the same on both sides.
        next_step: The command that goes on.
    """

    title: str
    stages: Sequence[str]
    store: str
    facts: Mapping[str, Mapping[str, Any]]
    same: Sequence[str]
    next_step: str


def render(run: Unjudged, *, columns: int) -> list[str]:
    """Return the lines of the screen: what was made, how the sides differ, what to look at, and what is next."""
    lines = ["", f" {run.title}   nothing was judged", ""]
    lines += render_labelled("done", f"{', '.join(run.stages)} in {run.store}", columns, most=4)
    if len(run.facts) > 1:
        lines += _render_differences(run, columns)
    for side, facts in run.facts.items():
        for text in _list_warnings(facts):
            lines += render_labelled("warning", f"{side}: {text}", columns, most=3)
    return [
        *lines,
        "",
        *render_labelled("next", "the whole run, which keeps what was made", columns),
        Uncut(f"      {run.next_step}"),
    ]


def _render_differences(run: Unjudged, columns: int) -> list[str]:
    differences = find_differences(run.facts["reference"], run.facts["target"], same=run.same)
    if not differences:
        text = "torch, Python, packages, switches and variables of both sides, as far as both have them"
        return render_labelled("the same", text, columns)
    lines = []
    for number, (name, (here, there)) in enumerate(list(differences.items())[:_SHOWN]):
        lines += render_labelled("" if number else "different", f"{name}   {here} / {there}", columns, most=3)
    more = len(differences) - _SHOWN
    return [*lines, *(render_labelled("", f"and {numbers.plural(more, 'more difference')}", columns) if more > 0 else [])]


def _list_warnings(facts: Mapping[str, Any]) -> list[str]:
    """Return what of one side may change numbers, whatever the other one has."""
    reduced = find_reduced_switches(facts, convolution=False) + find_reduced_switches(facts, convolution=True)
    variables = facts.get("variables")
    misspelt = find_misspelt(variables) if isinstance(variables, Mapping) else []
    texts = [f"{switch}: products of float32 are rounded to fewer digits" for switch in reduced]
    return [*texts, *(variable.text for variable in misspelt)]
