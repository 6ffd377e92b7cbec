"""Scores what was named in a case against what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .faults import KINDS, OF_BACKWARD

UNEXPLAINED = frozenset({"PF299", ""})  # rules that say that nothing explains the evidence
DESCRIBING = frozenset({"PF601", "PF602"})  # rules that say how a run looks, and claim no cause
_SURE = frozenset({"certain", "likely"})
_NO_EFFECT = {False: 8, True: 64}  # rho below which a fault does nothing here, by whether its operator multiplies matrices
_STRONG = {False: 16, True: 128}  # rho from which on every fault should be found
_NO_RESIDUE, _STRONG_RESIDUE = 3, 6  # the same of the rounding residue, in 16 bits
_BANDS = ("none", "weak", "strong")
Line = dict[str, Any]  # of the file of results


def band(line: Line) -> str:
    """Return ``none``, ``weak`` or ``strong``: what the faults of a case do at their operators, as the bench measured it.

    Several faults count by the weakest of those that do anything.
    """
    bands = [band_of(fault, line["dtype"]) for fault in line["faults"]]
    return min((one for one in bands if one != "none"), key=_BANDS.index, default="none")


def band_of(fault: Line, dtype: str) -> str:
    """Return the band of one fault; one that reaches several calls counts by the strongest."""
    if not fault["effects"]:  # weights and inputs are compared bit by bit
        return "strong" if KINDS[fault["kind"]].of in {"weights", "inputs"} else "none"
    return max((_band(effect, low=dtype != "float32") for effect in fault["effects"]), key=_BANDS.index)


def _band(effect: dict[str, Any], *, low: bool) -> str:
    rho, matmul = effect["rho"], effect["matmul"]
    strong = rho >= _STRONG[matmul] or (low and effect["residue"] >= _STRONG_RESIDUE)
    acts = rho >= _NO_EFFECT[matmul] or (low and effect["residue"] >= _NO_RESIDUE)
    return "strong" if strong else "weak" if acts else "none"


def is_true(named: Sequence[Any], fault: Line) -> bool:
    """Return whether a named call is one where this fault is.

    In the forward pass the operator counts, not only its module. A fault of a backward is at the module whose gradients are
    wrong, because dumps of modules and torch functions show no operators there; one of the optimizer is at any of its weights.
    """
    module, call, operator, ordinal, phase = named
    of = KINDS[fault["kind"]].of
    if of == "optimizer":
        return bool(phase == "optimizer")
    if of in OF_BACKWARD:
        return phase in {"backward", "gradient"} and any(module == one[0] for one in fault["calls"])
    return phase == "forward" and [module, call, operator, ordinal] in [list(one) for one in fault["calls"]]


def is_its_backward(named: Sequence[Any], fault: Line) -> bool:
    """Return whether a named backward is that of a wrong call of the forward, which computes its gradients wrongly too."""
    module, call, _, _, phase = named
    kind = KINDS[fault["kind"]]
    if kind.of != "forward" or kind.keeps_gradients:
        return False
    return phase in {"backward", "gradient"} and any([module, call] == list(one[:2]) for one in fault["calls"])


def is_locatable(fault: Line) -> bool:
    """Return whether a fault stands at a call: other inputs and other weights stand before all of them."""
    return KINDS[fault["kind"]].of not in {"weights", "inputs"}


def score(line: Line, named: Sequence[Any]) -> dict[str, Any]:
    """Return hit, precision and recall of the calls that one method names; faults that do nothing are not to be found.

    The backward of a call that is wrong in the forward is a true name, but it is the call itself that has to be found.
    """
    faults = [fault for fault in line["faults"] if is_locatable(fault) and band_of(fault, line["dtype"]) != "none"]
    true = [any(is_true(one, fault) or is_its_backward(one, fault) for fault in line["faults"]) for one in named]
    return {
        "hit": bool(named) and any(is_true(named[0], fault) for fault in line["faults"]),
        "module": bool(named) and any(named[0][0] == call[0] for fault in faults for call in fault["calls"]),
        "true": sum(true),
        "named": len(named),
        "recalled": sum(any(is_true(one, fault) for one in named) for fault in faults),
        "faults": len(faults),
        "members": _members(faults, named, low=line["dtype"] != "float32"),
        "located": bool(faults),
    }


def _members(faults: Sequence[Line], named: Sequence[Any], *, low: bool) -> float | None:
    """Return the share of a class's members that are named, ``None`` where no fault is a class.

    A member at which the fault does nothing (an operand that needs no more bits) is none.
    """
    classes = [fault for fault in faults if len(fault["calls"]) > 1]
    if not classes:
        return None
    shares = []
    for fault in classes:
        both = zip(fault["calls"], fault["effects"], strict=False)
        members = [call for call, effect in both if _band(effect, low=low) != "none"]
        shares.append(sum(list(call) in [list(one[:4]) for one in named] for call in members) / max(len(members), 1))
    return min(shares)


def judge_cause(line: Line, known: frozenset[str]) -> dict[str, Any]:
    """Return whether the right rule is first or among the first three, whether nothing is claimed, or something wrong.

    Args:
        line: The result of a case.
        known: Rules that this version has; a fault whose rules it lacks is of an unknown family.
    """
    expected = {rule for fault in line["faults"] for rule in KINDS[fault["kind"]].causes} & known
    findings = [tuple(finding[:2]) for finding in line["said"]["findings"] if finding[0] not in DESCRIBING]
    first = findings[0] if findings else ("", "")
    unknown = first[0] in UNEXPLAINED or first[1] == "unknown"
    return {
        "family_known": bool(expected),
        "first": first[0] in expected,
        "third": any(rule in expected for rule, _ in findings[:3]),
        "unknown": unknown,
        "wrong": not unknown and first[0] not in expected,
        "wrong_and_sure": not unknown and first[0] not in expected and first[1] in _SURE,
    }


def add_scores(lines: Sequence[Line]) -> None:
    """Score every method of every case; names are kept in the file of results, scores are not."""
    for line in lines:
        line["scores"] = {method: score(line, named) for method, named in line["named"].items()}


def detected(line: Line) -> bool:
    """Return whether anything was said to be wrong; other weights or inputs make no verdict but a certain finding."""
    said = line["said"]
    return said["verdict"] == "misaligned" or bool(said["named"]) or any(sure == "certain" for _, sure, _ in said["findings"])
