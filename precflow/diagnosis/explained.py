"""What explains a wrong call: a computation with one thing changed that gives what the target gave, for suspects alone.

An agent computes the call again in float64 at the target's own inputs, with one change after the other
(:mod:`precflow.agent.hypotheses.engine`). What goes on between two recorded gradients is on no side, so that the backward of a
module is computed again too, with a change in one of its functions.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precflow.agent.contract import BACKWARD, FORWARD, GRADIENT
from precflow.comparison.detail.quantiles import ErrorQuantiles
from precflow.diagnosis.evaluation import (
    choose_level,
    describe_call,
    describe_gradients,
    describe_products,
    locate,
    name_call,
    pair_calls,
)
from precflow.diagnosis.gradients.functions import FunctionGradients
from precflow.diagnosis.gradients.linear import is_product
from precflow.diagnosis.introduced import MOVEMENT, Evaluated, SideNumbers, decide_introduced
from precflow.dumps.protocol import Dump

FITS = 0.9
"""Share of the error's energy that a computation has to explain."""


@dataclass(frozen=True)
class Alternative:
    """One computation that explains at least half of a call's error.

    Attributes:
        tells: Which evidence it is: ``variant``, ``operands``, ``argument`` or ``backward``.
        name: What is done otherwise, such as ``gelu_tanh``.
        says: What the operator does, of a change that no rule has a text for; ``""`` of others.
        value: More of that: the value of an argument, ``by 2``; ``""`` for nothing.
        argument: The argument that has another value; ``""`` for another change.
        recorded: What the call was given for it.
        share: Share of the error's energy that it explains, 0 to 1.
        left: The error that it leaves, in units of the reference's own; ``None`` where that is not known.
        places: Elements for which it gives another number than the right computation.
        fits: It gives what the target gave: to the line of the operator where outputs were measured with it, else as far as its
            share is no chance.
        function: Number of the function that is changed, in a backward; -1 otherwise.
        operator: Name of that function.
        factor: Of a backward that is scaled; 1 for others.
    """

    tells: str
    name: str
    says: str = ""
    value: str = ""
    argument: str = ""
    recorded: str = ""
    share: float = 0.0
    left: float | None = None
    places: int = 0
    fits: bool = False
    function: int = -1
    operator: str = ""
    factor: float = 1.0


@dataclass(frozen=True)
class Residuals:
    """How large the errors of one output are on both sides, each against float64 at its own inputs.

    Attributes:
        call: The call, as :func:`precflow.diagnosis.evaluation.name_call` names it.
        index: Of the output.
        quantiles: Sizes of errors.
    """

    call: str
    index: str
    quantiles: ErrorQuantiles


@dataclass(frozen=True)
class Explanation:
    """What was tried with a call, and what came of it.

    Attributes:
        calls: Calls whose outputs these are, as :func:`precflow.diagnosis.evaluation.name_call` names them.
        tried: The evidence that was looked for, see :attr:`Alternative.tells`.
        left_out: Hypotheses that the call was too large for.
        found: Computations that explain most of its error, the best first.
        residuals: The errors of its outputs.
    """

    calls: tuple[str, ...]
    tried: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    found: tuple[Alternative, ...] = ()
    residuals: tuple[Residuals, ...] = ()

    def choose(self, tells: str) -> Alternative:
        """Return the best computation that fits; without one the best of all, which may have a share of 0."""
        told = self.list_told(tells)
        return next((one for one in told if one.fits), told[0] if told else Alternative(tells, ""))

    def list_told(self, tells: str) -> list[Alternative]:
        """Return the computations that are this evidence, the best first."""
        return [one for one in self.found if one.tells == tells]


def write_suspects(path: Path, reference: Dump, target: Dump, calls: AbstractSet[str], gradients: AbstractSet[str]) -> int:
    """Write a line for each call that is to be explained; return how many there are.

    Args:
        path: The file.
        reference: Evidence of the reference.
        target: Evidence of the target.
        calls: Names of the wanted calls of the forward.
        gradients: Names of the wanted gradients of modules; the backward that gives one is computed whole.
    """
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for line in (*_describe_calls(reference, target, calls), *_describe_backward(reference, target, gradients)):
            file.write(json.dumps({**line, "explain": True}, ensure_ascii=False) + "\n")
            count += 1
    return count


def _describe_calls(reference: Dump, target: Dump, wanted: AbstractSet[str]) -> Iterator[Mapping[str, Any]]:
    pairs = [pair for pair in pair_calls(reference, target) if pair.name in wanted] if wanted else []
    products = describe_products(reference, target, [pair for pair in pairs if is_product(pair.reference)])
    forward = [pair for pair in pairs if pair.reference.phase == FORWARD]
    for line in (*(describe_call(pair, reference, target) for pair in forward), *products):
        if line is not None and line["operator"]:  # of modules, those of activations are functions
            yield line


def _describe_backward(reference: Dump, target: Dump, wanted: AbstractSet[str]) -> Iterator[Mapping[str, Any]]:
    if not wanted or choose_level(reference.calls()).get(BACKWARD) != "module":
        return
    sides = [FunctionGradients(dump.calls(), name_call, functools.partial(locate, dump)) for dump in (reference, target)]
    for pair in pair_calls(reference, target):
        if pair.reference.phase != BACKWARD or pair.reference.operator:
            continue
        line = describe_gradients(pair, sides)
        if line is not None and not wanted.isdisjoint(one["call"] for one in line["gradients"]["results"]):
            yield line


def list_gradients(reference: Dump, target: Dump, suspects: AbstractSet[str], wrong: AbstractSet[str]) -> set[str]:
    """Return the names of the gradients of modules that are under suspicion and introduce an error.

    Args:
        reference: Evidence of the reference.
        target: Evidence of the target.
        suspects: Records under suspicion.
        wrong: Names of calls that introduce an error.
    """
    return {
        pair.name
        for pair in (pair_calls(reference, target) if suspects and wrong else ())
        if pair.name in wrong and pair.reference.phase in {BACKWARD, GRADIENT} and not pair.reference.operator
        if any(record.text in suspects for record in pair.reference.outputs)
    }


def read_explanation(line: Mapping[str, Any]) -> Explanation | None:
    """Return what an agent's line says; ``None`` if the call could not be computed again.

    Args:
        line: As the agent wrote it.
    """
    if "found" not in line:
        return None
    found = tuple(_read_alternative(one) for one in line["found"])
    residuals = tuple(_read_residuals(one) for one in line["residuals"])
    return Explanation(tuple(line["results"]), tuple(line["tried"]), tuple(line["left_out"]), found, residuals)


def _read_residuals(line: Mapping[str, Any]) -> Residuals:
    shares, own, found = (tuple(map(float, line[name])) for name in ("shares", "own", "found"))
    return Residuals(line["call"], line["index"], ErrorQuantiles(shares, own, found, int(line["elements"]), measured=True))


def describe_left_out(explained: Sequence[Explanation]) -> list[str]:
    """Say with which calls not every hypothesis was tried because they are too large; nothing where there are none."""
    large = [one for one in explained if one.left_out]
    if not large:
        return []
    names = ", ".join(sorted({name for one in large for name in one.left_out}))
    more = f" and {len(large) - 1} more" if len(large) > 1 else ""
    return [f"too large to be computed again with every change: {large[0].calls[0]}{more} (not tried: {names})"]


def _read_alternative(plain: Mapping[str, Any]) -> Alternative:
    outputs = [_read_output(one) for one in plain["outputs"]]
    is_right = all(map(_is_right, outputs)) if outputs else plain["sure"] > FITS
    return Alternative(
        **{name: plain[name] for name in ("tells", "name", "says", "value", "argument", "recorded", "share", "left", "places")},
        fits=plain["share"] > FITS and is_right,
        **{name: plain[name] for name in ("function", "operator", "factor") if name in plain},
    )


def _read_output(plain: Mapping[str, Any]) -> Evaluated:
    sides = {
        name: SideNumbers(**{key: value for key, value in numbers.items() if value is not None})
        for name, numbers in plain["sides"].items()
    }
    return Evaluated(**{**plain, "sides": sides})


def _is_right(output: Evaluated) -> bool:
    """Tell whether an output is right, with the change that its numbers were taken with."""
    if not output.evaluated:
        return False
    target = output.sides["target"]
    if output.kind == MOVEMENT or not target.unit:  # bits, and whole numbers
        return target.equal
    decided = decide_introduced(output)
    return decided is not None and not decided.is_fault
