"""What explains wrong gradients of a module: the backward computed again with one change, for suspects alone.

A module's gradients go through several functions between two that were recorded. What rounds, scales or multiplies otherwise on
the way is on no side, and no comparison of recorded tensors shows it. So an agent computes the module's backward again with
one change at a time (:mod:`precflow.agent.replay.alternatives`), and here is chosen what that says.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precflow.agent.contract import BACKWARD
from precflow.diagnosis.evaluation import choose_level, describe_gradients, locate, name_call, pair_calls
from precflow.diagnosis.gradients.functions import FunctionGradients
from precflow.dumps.protocol import Dump

_FITS = 0.9  # share of the error that a change has to explain, as of other variants
_NEARLY = 0.5  # of what the best change leaves, relative to what it explains: places that are as good


@dataclass(frozen=True)
class GradientAlternative:
    """The change that explains the wrong gradients of a call best.

    Attributes:
        calls: Calls whose gradients these are, as :func:`precflow.diagnosis.evaluation.name_call` names them.
        change: ``bfloat16`` or ``float16`` (what leaves a function is rounded to it), ``operands_11``, ``operands_10`` or
            ``operands_7`` (explicit bits of what a product multiplies), ``scaled``, or ``form_`` and the name of another form
            of a function's backward; ``""`` if none fits.
        share: Share of the error's energy that it explains, 0 to 1.
        left: What it leaves, in units of the reference's own error.
        factor: Of ``scaled``, the factor; 1 for others.
        operators: Functions of whose gradients that may be said, in order of the forward.
        other_share: Largest share of another change.
    """

    calls: tuple[str, ...]
    change: str
    share: float
    left: float
    factor: float = 1.0
    operators: tuple[str, ...] = ()
    other_share: float = 0.0


def write_gradients(path: Path, reference: Dump, target: Dump, wanted: AbstractSet[str]) -> int:
    """Write a line for each module's backward that gives one of the wanted gradients; return how many there are.

    Args:
        path: The file.
        reference: Evidence of the reference.
        target: Evidence of the target.
        wanted: Names of calls.
    """
    if not wanted or choose_level(reference.calls()).get(BACKWARD) != "module":
        return 0
    sides = [FunctionGradients(dump.calls(), name_call, functools.partial(locate, dump)) for dump in (reference, target)]
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for pair in pair_calls(reference, target):
            if pair.reference.phase != BACKWARD or pair.reference.operator:
                continue
            line = describe_gradients(pair, sides)
            if line is None or wanted.isdisjoint(one["call"] for one in line["gradients"]["results"]):
                continue
            file.write(json.dumps({**line, "gradients": {**line["gradients"], "explain": True}}, ensure_ascii=False) + "\n")
            count += 1
    return count


def choose_alternative(line: Mapping[str, Any]) -> GradientAlternative | None:
    """Return what an agent's line says; ``None`` if nothing was tried.

    Args:
        line: As the agent wrote it.
    """
    found: Sequence[Mapping[str, Any]] = line.get("alternatives", ())
    calls = tuple(line.get("results", ()))
    if not found:
        return GradientAlternative(calls, "", 0.0, 0.0) if calls else None
    best = max(found, key=lambda one: one["share"])
    room = _NEARLY * (1.0 - best["share"])
    alike = [one for one in found if one["kind"] == best["kind"] and one["share"] >= best["share"] - room]
    others = [one["share"] for one in found if one["kind"] != best["kind"]]
    places = {one["function"]: str(one["operator"]) for one in alike}
    return GradientAlternative(
        calls=calls,
        change=str(best["kind"]) if best["share"] > _FITS else "",
        share=float(best["share"]),
        left=float(best["left"]),
        factor=float(best["factor"]),
        operators=tuple(dict.fromkeys(places[number] for number in sorted(places))),
        other_share=float(max(others, default=0.0)),
    )
