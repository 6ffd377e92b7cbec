"""What is counted in a group of cases: each count or share under the name that all tables give it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from .score import Line, band, detected, judge_cause

Cells = dict[str, str]


def share(true: Iterable[bool]) -> str:
    """Return how many are true, as in ``3/4``."""
    values = list(true)
    return f"{sum(values)}/{len(values)}" if values else "-"


def of_faults(lines: Sequence[Line], known: frozenset[str]) -> Cells:
    """Return what is counted in cases with faults.

    A case that crashed is a strong fault that nobody found: leaving it out would raise every share.

    Args:
        lines: Finished cases with their scores.
        known: Rules that this version has.
    """
    ran = [line for line in lines if "crash" not in line]
    lost = [False] * (len(lines) - len(ran))
    acting = [line for line in ran if band(line) != "none"]
    found = [line for line in acting if detected(line)]
    located = [line["scores"]["precflow"] for line in acting if line["scores"]["precflow"]["located"]]
    scores = [line["scores"]["precflow"] for line in found if line["scores"]["precflow"]["located"]]
    causes = [judge_cause(line, known) for line in found]
    of_known = [cause for cause in causes if cause["family_known"]]
    return {
        **({"crashed": str(len(lost))} if lost else {}),
        "faults that do something (that do nothing)": f"{len(acting) + len(lost)} ({len(ran) - len(acting)})",
        "detected": share([*map(detected, acting), *lost]),
        "of them strong": share([*(detected(line) for line in acting if band(line) == "strong"), *lost]),
        "of them weak": share(detected(line) for line in acting if band(line) == "weak"),
        "first suspect right": share(one["hit"] for one in scores),
        "right module": share(one["module"] for one in scores),
        "named calls that are true": f"{sum(one['true'] for one in scores)}/{sum(one['named'] for one in scores)}",
        "names for a fault, median": f"{statistics.median(one['named'] for one in scores):g}" if scores else "-",
        "recall": f"{sum(one['recalled'] for one in located)}/{sum(one['faults'] for one in located)}",
        "classes named whole": share(one["members"] >= 0.9 for one in located if one["members"] is not None),
        "cause first": share(cause["first"] for cause in of_known),
        "cause among the first three": share(cause["third"] for cause in of_known),
        "unknown": str(sum(cause["unknown"] for cause in causes)),
        "right to say unknown": share(cause["unknown"] for cause in causes if not cause["family_known"]),
        "wrong, but not sure": str(sum(cause["wrong"] and not cause["wrong_and_sure"] for cause in causes)),
        "wrong and sure": str(sum(cause["wrong_and_sure"] for cause in causes)),
        **(_costs(ran) if ran else {}),
    }


def _costs(lines: Sequence[Line]) -> Cells:
    blind = statistics.mean(line["said"]["blind"] for line in lines)
    return {
        "blind, of the compared records of faulty runs": f"{100 * blind:.1f} %",
        "seconds for a diagnosis": f"{statistics.mean(line['said']['seconds'] for line in lines):.1f}",
        "MB for both dumps": f"{statistics.mean(line['bytes'] for line in lines) / 1e6:.0f}",
    }


def of_controls(lines: Sequence[Line]) -> Cells:
    """Return what is counted in cases without a fault; of those that crashed only their number."""
    said = [line["said"] for line in lines if "crash" not in line]
    crashed = len(lines) - len(said)
    cells = {"runs": str(len(lines)), **({"crashed": str(crashed)} if crashed else {})}
    if not said:
        return cells
    return {
        **cells,
        "alarms": share(detected(line) for line in lines if "crash" not in line),
        "inconclusive": str(sum(one["verdict"] == "inconclusive" for one in said)),
        "largest share of a limit": f"{max(one['ratio'] for one in said):.2f}",
        "largest share of a line": f"{max(one['introduced'] for one in said):.2f}",
        "blind": f"{100 * statistics.mean(one['blind'] for one in said):.0f} %",
    }


def of_method(method: str, faults: Sequence[Line], controls: Sequence[Line]) -> Cells:
    """Return the same counts for precflow and for a simpler method, of the cases that ran and in which a fault acts."""
    acting = [line for line in faults if "crash" not in line and band(line) != "none"]
    clean = [line for line in controls if "crash" not in line and method in line["scores"]]
    scores = [line["scores"][method] for line in acting if method in line["scores"]]
    located = [one for one in scores if one["located"]]
    own = method == "precflow"
    cells = {
        "detected": share(map(detected, acting) if own else (one["named"] > 0 for one in scores)),
        "first name right": share(one["hit"] for one in located),
        "precision": f"{sum(one['true'] for one in located)}/{sum(one['named'] for one in located)}",
        "recall": f"{sum(one['recalled'] for one in located)}/{sum(one['faults'] for one in located)}",
    }
    if controls:
        cells["alarms on controls"] = share(detected(line) if own else bool(line["scores"][method]["named"]) for line in clean)
    return cells
