"""Scores what was named against what is wrong, and puts the scores of many cases into one table."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
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


def _share(true: Iterable[bool]) -> str:
    values = list(true)
    return f"{sum(values)}/{len(values)}" if values else "-"


def table(lines: Sequence[Line], known: frozenset[str]) -> str:
    """Return all results as Markdown: by element type and group, by baseline, by family, misses, wrong names and alarms.

    A case that crashed is one more fault that nobody found: leaving it out would raise every share.
    """
    crashed = Counter((line["dtype"], line["group"]) for line in lines if "crash" in line)
    lines = [line for line in lines if "crash" not in line]
    acting = [line for line in lines if line["group"] != "control" and band(line) != "none"]
    idle = [line for line in lines if line["group"] != "control" and band(line) == "none"]
    clean = [line for line in lines if line["group"] == "control"]
    parts = [
        _faults_table(acting, known, crashed),
        f"Faults that do nothing here (rho under 8, of matrices under 64, residue under 3) and are not counted: {len(idle)}",
        _families_table(acting, known),
        _baselines_table(acting, clean),
        _across_types([*acting, *idle]),
        _controls_table(clean),
        _costs(lines),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _groups(lines: Sequence[Line]) -> dict[tuple[str, str], list[Line]]:
    groups: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in lines:
        groups[line["dtype"], line["group"]].append(line)
    return dict(groups)


def _faults_table(lines: Sequence[Line], known: frozenset[str], crashed: Counter[tuple[str, str]]) -> str:
    head = (
        "| type | faults | crashed | detected, strong | detected, weak | first suspect right | right module | precision "
        "| named, median | recall | members of classes | cause first | among three | unknown | wrong | wrong and sure "
        "| right to say unknown |"
    )
    rows = [head, "|---|---" + "|--:" * 15 + "|"]
    groups = _groups(lines)
    for dtype, group in dict.fromkeys([*groups, *(key for key in crashed if key[1] != "control")]):
        some, lost = groups.get((dtype, group), []), crashed[dtype, group]
        rows.append(f"| {dtype} | {group} | {lost} | " + " | ".join(_fault_cells(some, known, lost)) + " |")
    return "\n".join(rows)


def _fault_cells(some: Sequence[Line], known: frozenset[str], crashed: int) -> list[str]:
    found = [line for line in some if detected(line)]
    scores = [line["scores"]["precflow"] for line in found if line["scores"]["precflow"]["located"]]
    located = [line["scores"]["precflow"] for line in some if line["scores"]["precflow"]["located"]]
    causes = [judge_cause(line, known) for line in found]
    of_known = [cause for cause in causes if cause["family_known"]]
    members = [one["members"] for one in located if one["members"] is not None]
    named = sum(one["named"] for one in scores)
    return [
        _share([*(detected(line) for line in some if band(line) == "strong"), *[False] * crashed]),
        _share(detected(line) for line in some if band(line) == "weak"),
        _share(one["hit"] for one in scores),
        _share(one["module"] for one in scores),
        f"{sum(one['true'] for one in scores)}/{named}",
        f"{statistics.median([one['named'] for one in scores]):g}" if scores else "-",
        f"{sum(one['recalled'] for one in located)}/{sum(one['faults'] for one in located)}",
        _share(share >= 0.9 for share in members),
        _share(cause["first"] for cause in of_known),
        _share(cause["third"] for cause in of_known),
        str(sum(cause["unknown"] for cause in causes)),
        str(sum(cause["wrong"] for cause in causes)),
        str(sum(cause["wrong_and_sure"] for cause in causes)),
        _share(cause["unknown"] for cause in causes if not cause["family_known"]),
    ]


def _families_table(lines: Sequence[Line], known: frozenset[str]) -> str:
    single = [line for line in lines if line["group"] == "single"]
    rows = [
        "| family | type | detected | first suspect right | cause first | unknown | wrong and sure |",
        "|---|---|" + "--:|" * 5,
    ]
    groups: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in single:
        groups[KINDS[line["faults"][0]["kind"]].family, line["dtype"]].append(line)
    for (family, dtype), some in sorted(groups.items()):
        found = [line for line in some if detected(line)]
        causes = [judge_cause(line, known) for line in found]
        cells = [
            _share(map(detected, some)),
            _share(line["scores"]["precflow"]["hit"] for line in found if line["scores"]["precflow"]["located"]),
            _share(cause["first"] for cause in causes if cause["family_known"]),
            str(sum(cause["unknown"] for cause in causes)),
            str(sum(cause["wrong_and_sure"] for cause in causes)),
        ]
        rows.append(f"| {family} | {dtype} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _baselines_table(acting: Sequence[Line], clean: Sequence[Line]) -> str:
    """Return the same scores for precflow and the simpler methods: a column in which the first digest wins proves nothing."""
    rows = [
        "| type | method | detected | first name right | precision | recall | alarms on controls |",
        "|---|---|" + "--:|" * 5,
    ]
    for dtype in dict.fromkeys(line["dtype"] for line in [*acting, *clean]):
        of_type = [line for line in acting if line["dtype"] == dtype]
        controls = [line for line in clean if line["dtype"] == dtype]
        methods = dict.fromkeys(name for line in [*of_type, *controls] for name in line["scores"])
        rows += [f"| {dtype} | {method} | " + " | ".join(_method_cells(method, of_type, controls)) + " |" for method in methods]
    return "\n".join(rows)


def _method_cells(method: str, faults: Sequence[Line], controls: Sequence[Line]) -> list[str]:
    scores = [line["scores"][method] for line in faults if method in line["scores"]]
    located = [one for one in scores if one["located"]]
    own = method == "precflow"
    alarms = [detected(line) if own else bool(line["scores"][method]["named"]) for line in controls if method in line["scores"]]
    found = map(detected, faults) if own else (one["named"] > 0 for one in scores)
    return [
        _share(found),
        _share(one["hit"] for one in located),
        f"{sum(one['true'] for one in located)}/{sum(one['named'] for one in located)}",
        f"{sum(one['recalled'] for one in located)}/{sum(one['faults'] for one in located)}",
        _share(alarms),
    ]


def _across_types(lines: Sequence[Line]) -> str:
    """Say how many of the single faults that float32 finds are found in 16 bits, and how much of their dumps is blind.

    A fault is the same if kind and seed are; one that does nothing in 16 bits counts as not found.
    """
    found: dict[str, dict[tuple[str, int], bool]] = defaultdict(dict)
    for line in lines:
        if line["group"] == "single":
            found[line["dtype"]][line["faults"][0]["kind"], line["seed"]] = detected(line)
    fine, said = found.get("float32", {}), []
    for dtype, of_type in found.items():
        blind = statistics.mean(line["said"]["blind"] for line in lines if line["dtype"] == dtype)
        both = [is_found for key, is_found in of_type.items() if fine.get(key) and dtype != "float32"]
        again = f"found of those that float32 finds: {_share(both)}; " if both else ""
        said.append(f"{dtype}: {again}{100 * blind:.1f} % of the compared records of faulty runs are blind.")
    return "\n\n".join(said)


def _controls_table(lines: Sequence[Line]) -> str:
    rows = ["| type | control | runs | alarms | inconclusive | largest ratio to a limit | to a line | blind |"]
    rows.append("|---|---|" + "--:|" * 6)
    groups: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in lines:
        groups[line["dtype"], line["control"]].append(line)
    for (dtype, control), some in groups.items():
        said = [line["said"] for line in some]
        cells = [
            str(len(some)),
            str(sum(map(detected, some))),
            str(sum(one["verdict"] == "inconclusive" for one in said)),
            f"{max(one['ratio'] for one in said):.2g}",
            f"{max(one['introduced'] for one in said):.2g}",
            f"{100 * statistics.mean(one['blind'] for one in said):.0f} %",
        ]
        rows.append(f"| {dtype} | {control} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _costs(lines: Sequence[Line]) -> str:
    if not lines:
        return ""
    seconds = statistics.mean(line["said"]["seconds"] for line in lines)
    megabytes = statistics.mean(line["bytes"] for line in lines) / 1e6
    floors = [line["floor_seconds"] for line in lines if line.get("floor_seconds") is not None]
    measured = f", {statistics.mean(floors):.2f} s for the floors of a reference" if floors else ""
    return f"On average {seconds:.2f} s for a diagnosis{measured} and {megabytes:.1f} MB for both dumps."


def curve(lines: Sequence[Line]) -> dict[str, list[tuple[str, str]]]:
    """Return the share of single faults that are detected, by element type and decade of rho (of residue in 16 bits)."""
    decades: dict[str, dict[int, Counter[bool]]] = defaultdict(lambda: defaultdict(Counter))
    for line in lines:
        if line["group"] == "single" and line["faults"][0]["effects"] and band(line) != "none":
            key = "rho" if line["dtype"] == "float32" else "residue"
            size = max(effect[key] for effect in line["faults"][0]["effects"])
            decade = 9 if math.isinf(size) else math.floor(math.log10(max(size, 1e-2)))
            decades[line["dtype"]][decade][detected(line)] += 1
    return {
        dtype: [(f"1e{decade}", f"{counts[True]}/{counts.total()}") for decade, counts in sorted(of_type.items())]
        for dtype, of_type in decades.items()
    }
