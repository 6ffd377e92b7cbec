"""The calls that can be evaluated in float64, and where their tensors lie: the work that the agent gets as ``calls.jsonl``.

A call is evaluated from the dumps alone: its inputs and outputs must have been stored by both sides. The agent reads no dumps;
each line tells it the file and the bytes of every tensor.
"""

from __future__ import annotations

import functools
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from precflow.agent.contract import API, BACKWARD, FORWARD, GRADIENT, MODULE, OPERATOR, OPTIMIZER, module_text
from precflow.comparison.fused.value_classes import widen
from precflow.diagnosis.evidence.expected import compute_expected
from precflow.diagnosis.gradients.functions import FunctionGradients
from precflow.diagnosis.gradients.linear import find_operands, is_product, write_equation
from precflow.diagnosis.introduced import Evaluated
from precflow.dumps.dtypes import FLOATS
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record
from precflow.errors import DumpError

LARGEST_WORK = 1 << 33
"""Bytes of tensors that one evaluation reads at most: 8 GiB, some minutes on two cores."""
_SAMPLE = 1 << 14  # values of an activation that tell its setting
_EXACT: Mapping[str, str] = {}
_BY_TANH: Mapping[str, str] = {"approximate": "'tanh'"}
# Class of a module -> the function that it is, and the settings that it can have.
_ACTIVATIONS: Mapping[str, tuple[str, tuple[Mapping[str, str], ...]]] = {
    **dict.fromkeys(("GELU", "GELUActivation"), ("gelu", (_EXACT, _BY_TANH))),
    **dict.fromkeys(("NewGELUActivation", "GELUTanh", "PytorchGELUTanh", "FastGELUActivation"), ("gelu", (_BY_TANH,))),
    **dict.fromkeys(("SiLU", "SiLUActivation"), ("silu", (_EXACT,))),
    **{name: (name.lower(), (_EXACT,)) for name in ("Sigmoid", "Tanh", "ReLU")},
}
_REPRODUCED = 2.0**-7  # relative error of a reference that computes what is assumed of it; TF32 has 2^-11, bfloat16 2^-9


@dataclass(frozen=True)
class PairedCall:
    """One call on both sides.

    Attributes:
        name: Text that names the call: module, operator and phase of its identity.
        reference: On the reference.
        target: On the target.
    """

    name: str
    reference: Call
    target: Call


def name_call(call: Call) -> str:
    """Return the identity of a call as text: that of its records without role and index.

    The name shown to users (``call.name``) is the same for all calls of an operator in one module call; this one is not.
    """
    operator = f"/{call.operator}.{call.ordinal}" if call.operator else ""
    # A module has a line of these phases for each of its parameters.
    parameter = f".{call.outputs[0].index}" if call.phase in {GRADIENT, OPTIMIZER} and call.outputs else ""
    return f"{module_text(call.module, call.call)}{operator}/{call.level}.{call.phase}{parameter}@{call.step}.{call.rank}"


def pair_calls(reference: Dump, target: Dump, phase: str = "") -> list[PairedCall]:
    """Return the calls that both sides made, in order of the reference; with a phase, only those of it."""
    others = {name_call(call): call for call in target.calls() if phase in {"", call.phase}}
    named = ((name_call(call), call) for call in reference.calls() if phase in {"", call.phase})
    return [PairedCall(name, call, others[name]) for name, call in named if name in others]


ModuleCall = tuple[str, int, str, int, int]
"""Module, number of its call, phase, step and rank."""


def find_other_implementations(reference: Iterable[Call], target: Iterable[Call]) -> set[ModuleCall]:
    """Return the module calls that the sides implement differently: some operator runs more often on one side.

    Calls of an operator are paired by their number within a module call. Where one side runs a fused attention and the other
    three operators in its place, the second transpose of one side need not be the second of the other, so that neither its
    arguments nor where its input comes from say anything. Movement alone (an extra ``clone``) makes no other implementation.
    """
    counts = [
        Counter((module_call_of(call), call.operator) for call in calls if call.operator and not call.movement)
        for calls in (reference, target)
    ]
    return {key[0] for key in counts[0].keys() | counts[1].keys() if counts[0][key] != counts[1][key]}


def module_call_of(call: Call) -> ModuleCall:
    """Return the module call that an operator ran in."""
    return call.module, call.call, call.phase, call.step, call.rank


def find_doubtful_pairs(pairs: Iterable[PairedCall], others: Collection[ModuleCall]) -> set[str]:
    """Return the names of pairs whose arguments may be those of another call: float64 would compute something else.

    Args:
        pairs: Calls that were evaluated with the reference's arguments.
        others: Module calls that the sides implement differently.
    """
    return {
        pair.name
        for pair in pairs
        if module_call_of(pair.reference) in others
        and (pair.reference.movement or pair.reference.arguments != pair.target.arguments)
    }


def choose_level(calls: Iterable[Call]) -> dict[str, str]:
    """Return phase -> the level whose calls are evaluated: torch functions where they were recorded, else aten operators.

    Both levels show the same computation; evaluating it twice would name one fault twice. Inside the backward pass only aten
    operators are seen. Where no operator was recorded at all, modules such as ``LayerNorm`` are evaluated.
    """
    seen = {(call.phase, call.level) for call in calls}
    order = {FORWARD: (API, OPERATOR, MODULE), BACKWARD: (OPERATOR, API, MODULE)}
    return {
        phase: next(level for level in levels if (phase, level) in seen)
        for phase, levels in order.items()
        if any((phase, level) in seen for level in levels)
    }


@dataclass(frozen=True)
class WrittenCalls:
    """The calls that an evaluation gets, and how many it does not get.

    Attributes:
        pairs: The calls that were written.
        left_out: Calls that were too many to be read.
        not_whole: Calls of the levels that are evaluated of which a side did not keep all tensors, or not in one piece.
    """

    pairs: list[PairedCall]
    left_out: int = 0
    not_whole: int = 0


def write_calls(
    path: Path, reference: Dump, target: Dump, *, largest: int = LARGEST_WORK, only: Collection[str] | None = None
) -> WrittenCalls:
    """Write one line a call that both sides stored whole.

    Args:
        path: The file.
        reference: Evidence of the reference.
        target: Evidence of the target.
        largest: Bytes of tensors that are read at most; calls are taken in order of the reference.
        only: Names of the calls that are wanted; ``None`` for all.
    """
    pairs = pair_calls(reference, target)
    levels = choose_level(pair.reference for pair in pairs)
    # Where modules are all that is known of the backward pass, the gradients of a Linear layer are products all the same.
    # Who wants some calls alone runs them again on a target, where the formula of a gradient is not the call that ran.
    by_modules = levels.get(BACKWARD) == MODULE and only is None
    sides = [_group_by_module(dump.calls()) if by_modules else {} for dump in (reference, target)]
    functions = (
        [FunctionGradients(dump.calls(), name_call, functools.partial(locate, dump)) for dump in (reference, target)]
        if by_modules and levels.get(FORWARD) == API
        else []
    )
    written: list[PairedCall] = []
    left_out, not_whole, room = 0, 0, largest
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for pair in pairs:
            if functions and pair.reference.phase in {BACKWARD, GRADIENT} and not pair.reference.operator:
                described = describe_gradients(pair, functions)
                size = 0 if described is None else _count_bytes(described)
                left_out += size > room
                if described is not None and size <= room:
                    room -= size
                    file.write(json.dumps(described, ensure_ascii=False) + "\n")
                    written.append(pair)
                if described is not None and pair.reference.phase == GRADIENT:  # of several uses, and so of no one product
                    continue
            multiplied = by_modules and is_product(pair.reference)
            if not multiplied and (levels.get(pair.reference.phase) != pair.reference.level or not pair.reference.outputs):
                continue
            if only is not None and pair.name not in only:
                continue
            line = _describe_product(pair, reference, target, sides) if multiplied else describe_call(pair, reference, target)
            if line is None:
                not_whole += 1
                continue
            size = _count_bytes(line)
            if size > room:  # smaller ones that come later may still fit
                left_out += 1
                continue
            room -= size
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            written.append(pair)
    return WrittenCalls(written, left_out, not_whole)


def _count_bytes(line: Mapping[str, Any]) -> int:
    return sum(one["bytes"] for side in line["sides"].values() for one in (*side["inputs"], *side["outputs"]))


def locate(dump: Dump, record: Record) -> Mapping[str, Any] | None:
    """Return where a tensor lies; ``None`` if it is not stored."""
    return next(locate_all(dump, [record], moved=False))


def describe_gradients(pair: PairedCall, functions: Sequence[FunctionGradients]) -> Mapping[str, Any] | None:
    """Return the line of gradients of a module or a weight.

    ``None`` where nothing gives them, or the sides called other functions.
    """
    described = [side.describe(call) for side, call in zip(functions, (pair.reference, pair.target), strict=True)]
    reference, target = described
    if reference is None or target is None or reference.shape != target.shape:
        return None
    return {
        "call": pair.name,
        "level": pair.reference.level,
        "operator": "",
        "class": pair.reference.class_name,
        "phase": BACKWARD,
        "arguments": {},
        "gradients": reference.graph,
        "sides": {
            name: {"inputs": [{**one, "index": key} for key, one in side.inputs.items()], "outputs": side.outputs}
            for name, side in (("reference", reference), ("target", target))
        },
    }


def describe_call(pair: PairedCall, reference: Dump, target: Dump) -> Mapping[str, Any] | None:
    """Return the line of a call, or ``None`` if a side did not store all of its tensors or they are damaged."""
    if pair.reference.compiled or len(pair.reference.outputs) != len(pair.target.outputs):
        return None
    sides: dict[str, Any] = {}
    for name, dump, call in (("reference", reference, pair.reference), ("target", target, pair.target)):
        inputs, outputs = (list(locate_all(dump, records, moved=call.movement)) for records in (call.inputs, call.outputs))
        if None in inputs or None in outputs or not inputs:
            return None
        sides[name] = {"inputs": inputs, "outputs": outputs}
    call = pair.reference
    if call.level == MODULE and (function := _find_activation(pair, reference)) is not None:
        operator, arguments = function
        named = {name: [{**one, "index": "0"} for one in (*side["inputs"], *side["outputs"])] for name, side in sides.items()}
        sides = {name: {"inputs": records[:1], "outputs": records[1:]} for name, records in named.items()}
        return {
            "call": pair.name,
            "level": API,
            "operator": operator,
            "class": call.class_name,
            "phase": FORWARD,
            "arguments": arguments,
            "sides": sides,
        }
    return {
        "call": pair.name,
        "level": call.level,
        "operator": call.operator.removeprefix("aten.") if call.level == OPERATOR else call.operator,
        "class": call.class_name,
        "phase": call.phase,
        "arguments": dict(call.arguments),
        "sides": sides,
    }


def _find_activation(pair: PairedCall, reference: Dump) -> tuple[str, Mapping[str, str]] | None:
    """Return the function that a module of activations is, with the setting that gives what the reference recorded.

    Modules have no record of their settings. An activation has no weights and few settings, so that its own values tell.
    """
    call = pair.reference
    operator, settings = _ACTIVATIONS.get(call.class_name, ("", ()))
    if not operator or call.phase != FORWARD or any(len(one.inputs) != 1 for one in (call, pair.target)):
        return None
    (given,), (made, *rest) = call.inputs, call.outputs
    if rest or given.shape != made.shape or not {given.dtype, made.dtype} <= {*FLOATS}:
        return None
    try:
        x, y = (widen(np.ascontiguousarray(reference.tensor(one)).reshape(-1)[:_SAMPLE]) for one in (given, made))
    except DumpError:  # the comparison has already called the record unreadable
        return None
    size = float(np.linalg.norm(y))
    errors = []
    for arguments in settings:
        expected = compute_expected(operator, arguments, {"0": x})
        errors.append(np.inf if expected is None else float(np.linalg.norm(expected - y)))
    best = int(np.argmin(errors))
    return (operator, settings[best]) if errors[best] < _REPRODUCED * size else None


def name_outputs(evaluated: Iterable[Evaluated], pairs: Iterable[PairedCall]) -> list[Evaluated]:
    """Return what was evaluated with the indices that the records of gradients have: the names of parameters.

    A weight that other modules use too, or whose gradient a hook changes, has a gradient that is not this product alone. Where
    the reference's own is not, nothing is said of it.
    """
    named = {
        pair.name: pair.reference.outputs[0].index
        for pair in pairs
        if is_product(pair.reference)
        or (pair.reference.class_name in _ACTIVATIONS and (pair.reference.level, pair.reference.phase) == (MODULE, FORWARD))
    }
    return [
        replace(one, index=named.get(one.call, one.index))
        for one in evaluated
        if one.call not in named or not one.evaluated or (one.sides["reference"].eta or 0.0) < _REPRODUCED
    ]


_ModuleStep = tuple[str, int, int]
"""Module, step and rank."""


def _group_by_module(calls: Iterable[Call]) -> dict[_ModuleStep, list[Call]]:
    groups: dict[_ModuleStep, list[Call]] = defaultdict(list)
    for call in calls:
        groups[call.module, call.step, call.rank].append(call)
    return groups


def describe_products(reference: Dump, target: Dump, pairs: Sequence[PairedCall]) -> Iterator[Mapping[str, Any] | None]:
    """Yield the line of each gradient of a Linear layer as a product of matrices, ``None`` where a tensor was not kept.

    Args:
        reference: Evidence of the reference.
        target: Evidence of the target.
        pairs: Calls that are such gradients (:func:`precflow.diagnosis.gradients.linear.is_product`).
    """
    sides = [_group_by_module(dump.calls()) for dump in (reference, target)] if pairs else []
    return (_describe_product(pair, reference, target, sides) for pair in pairs)


def _describe_product(
    pair: PairedCall, reference: Dump, target: Dump, modules: Sequence[Mapping[_ModuleStep, list[Call]]]
) -> Mapping[str, Any] | None:
    """Return the line of a gradient of a Linear layer, as the call of a torch function that computes it.

    What a function returns has index ``0``; :func:`name_outputs` takes that back.
    """
    is_weight = pair.reference.phase == GRADIENT
    first = 1 if is_weight else 0  # of einsum's tensors
    sides: dict[str, Any] = {}
    equation = ""
    for name, dump, call, groups in zip(
        ("reference", "target"), (reference, target), (pair.reference, pair.target), modules, strict=True
    ):
        operands = find_operands(groups[call.module, call.step, call.rank], call) if is_product(call) else None
        if operands is None:
            return None
        equation = write_equation(operands[0])
        inputs, outputs = (list(locate_all(dump, records, moved=False)) for records in (operands, call.outputs))
        if None in inputs or None in outputs:
            return None
        named = [{**one, "index": str(first + place)} for place, one in enumerate(inputs) if one is not None]
        sides[name] = {"inputs": named, "outputs": [{**one, "index": "0"} for one in outputs if one is not None]}
    return {
        "call": pair.name,
        "level": API,
        "operator": "einsum" if is_weight else "matmul",
        "class": pair.reference.class_name,
        "phase": FORWARD,
        "arguments": {"0": repr(equation)} if is_weight else {},
        "sides": sides,
    }


def locate_all(dump: Dump, records: Sequence[Record], *, moved: bool) -> Iterator[Mapping[str, Any] | None]:
    """Yield where tensors lie, and ``None`` for one that is not stored; of movement the agent needs only content ids."""
    for record in records:
        try:
            found = dump.locate(record)
        except DumpError:  # the comparison has already called the record unreadable
            found = None
        if found is None and not (moved and record.content):
            yield None
            return
        yield {
            "index": record.index,
            "dtype": record.dtype,
            "shape": list(record.shape),
            "file": None if found is None else str(found.path),
            "begin": 0 if found is None else found.begin,
            "bytes": 0 if found is None else found.end - found.begin,
            "content": record.content if moved else "",
        }
