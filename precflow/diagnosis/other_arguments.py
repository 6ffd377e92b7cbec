"""What explains a wrong call: that its target took another value of an argument than the call was given, for suspects alone.

An agent computes the call again in float64 at the target's own inputs, with one value of a table after the other
(:mod:`precflow.agent.replay.other_arguments`). A value explains the call if all outputs are then within the line of their
operator, by the same decision that found them wrong (:mod:`precflow.diagnosis.introduced`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precflow.agent.contract import FORWARD
from precflow.diagnosis.evaluation import describe_call, pair_calls
from precflow.diagnosis.introduced import MOVEMENT, Evaluated, SideNumbers, decide_introduced
from precflow.dumps.protocol import Dump

_FITS = 0.9  # share of the error that a value has to explain, as of other variants


@dataclass(frozen=True)
class OtherArgument:
    """The values of arguments that explain a call.

    Attributes:
        call: As :func:`precflow.diagnosis.evaluation.name_call` names it.
        values: Such as ``mode='nearest'``, the best first; several if they explain it equally well, none if nothing does.
        recorded: What the call was given in place of each argument, such as ``mode='bilinear'``.
        share: Share of the error's energy that the best one explains, 0 to 1.
        places: Elements at which it gives another number than the value that the call was given.
    """

    call: str
    values: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()
    share: float = 0.0
    places: int = 0


def write_suspects(path: Path, reference: Dump, target: Dump, wanted: AbstractSet[str]) -> int:
    """Write a line for each wanted call of an operator in the forward.

    Args:
        path: The file.
        reference: Evidence of the reference.
        target: Evidence of the target.
        wanted: Names of calls.

    Returns:
        The number of lines.
    """
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for pair in pair_calls(reference, target) if wanted else ():
            call = pair.reference
            if pair.name not in wanted or call.phase != FORWARD or not call.operator:
                continue
            line = describe_call(pair, reference, target)
            if line is not None:
                file.write(json.dumps({**line, "vary": True}, ensure_ascii=False) + "\n")
                count += 1
    return count


def choose_values(line: Mapping[str, Any]) -> OtherArgument | None:
    """Return what an agent's line says; ``None`` if nothing was tried.

    Args:
        line: As the agent wrote it.
    """
    if "others" not in line:
        return None
    fitting = [one for one in line["others"] if one["share"] > _FITS and all(map(_is_right, map(_read, one["outputs"])))]
    fitting.sort(key=lambda one: -one["share"])
    if not fitting:
        return OtherArgument(str(line["call"]))
    return OtherArgument(
        call=str(line["call"]),
        values=_name([(one["argument"], one["value"]) for one in fitting]),
        recorded=_name([(one["argument"], one["recorded"]) for one in fitting]),
        share=float(fitting[0]["share"]),
        places=int(fitting[0]["places"]),
    )


def _name(values: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{argument}={value}" for argument, value in values))


def _read(plain: Mapping[str, Any]) -> Evaluated:
    sides = {
        name: SideNumbers(**{key: value for key, value in numbers.items() if value is not None})
        for name, numbers in plain["sides"].items()
    }
    return Evaluated(**{**plain, "sides": sides})


def _is_right(output: Evaluated) -> bool:
    """Tell whether an output is right, with the value that its numbers were taken with."""
    if not output.evaluated:
        return False
    target = output.sides["target"]
    if output.kind == MOVEMENT or not target.unit:  # bits, and whole numbers
        return target.equal
    decided = decide_introduced(output)
    return decided is not None and not decided.is_fault
