"""One column an element type, one table a seed: the tables of docs/faults.md, from the same lines as all others.

Rows that a seed has nothing for (controls, say) are left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from .score import band, detected, judge_cause

Line = dict[str, Any]


def tables(lines: Sequence[Line], known: frozenset[str]) -> str:
    """Return a Markdown table for each seed that has single faults, and one of the cases with several.

    Args:
        lines: Finished cases with their scores; those that crashed are counted in a row of their own.
        known: Rules that this version has.
    """
    singles = [line for line in lines if line["group"] == "single"]
    parts = []
    for seed in sorted({line["seed"] for line in singles}):
        controls = [line for line in lines if line["group"] == "control" and line["seed"] == seed]
        parts.append(_table(f"seed {seed}", [line for line in singles if line["seed"] == seed], controls, known))
    several = [line for line in lines if line["group"] not in {"single", "control"}]
    return "\n\n".join([*parts, *([_table("several at once", several, [], known)] if several else [])]) + "\n"


def _table(title: str, faults: Sequence[Line], controls: Sequence[Line], known: frozenset[str]) -> str:
    dtypes = [name for name in ("float32", "bfloat16", "float16") if any(line["dtype"] == name for line in faults)]
    columns = [
        _column([line for line in faults if line["dtype"] == name], [line for line in controls if line["dtype"] == name], known)
        for name in dtypes
    ]
    rows = [f"| {title} | " + " | ".join(dtypes) + " |", "|---|" + "--:|" * len(dtypes)]
    names = dict.fromkeys(name for column in columns for name in column)
    cells = (f"| {name} | " + " | ".join(column.get(name, "-") for column in columns) + " |" for name in names)
    return "\n".join([*rows, *cells])


def _column(faults: Sequence[Line], controls: Sequence[Line], known: frozenset[str]) -> dict[str, str]:
    crashed = sum("crash" in line for line in [*faults, *controls])
    faults, controls = ([line for line in some if "crash" not in line] for some in (faults, controls))
    if not faults:
        return {"crashed": str(crashed)}
    acting = [line for line in faults if band(line) != "none"]
    found = [line for line in acting if detected(line)]
    scores = [line["scores"]["precflow"] for line in found if line["scores"]["precflow"]["located"]]
    located = [line["scores"]["precflow"] for line in acting if line["scores"]["precflow"]["located"]]
    causes = [judge_cause(line, known) for line in found]
    of_known = [cause for cause in causes if cause["family_known"]]
    cells = {
        "crashed": str(crashed),
        "faults that do something (that do nothing)": f"{len(acting)} ({len(faults) - len(acting)})",
        "detected": _share(map(detected, acting)),
        "of them strong": _share(detected(line) for line in acting if band(line) == "strong"),
        "first suspect right": _share(one["hit"] for one in scores),
        "named calls that are true": f"{sum(one['true'] for one in scores)}/{sum(one['named'] for one in scores)}",
        "names for a fault, median": f"{statistics.median(one['named'] for one in scores):g}" if scores else "-",
        "recall": f"{sum(one['recalled'] for one in located)}/{sum(one['faults'] for one in located)}",
        "classes named whole": _share(one["members"] >= 0.9 for one in located if one["members"] is not None),
        "cause first": _share(cause["first"] for cause in of_known),
        "cause among the first three": _share(cause["third"] for cause in of_known),
        "unknown": str(sum(cause["unknown"] for cause in causes)),
        "wrong, but not sure": str(sum(cause["wrong"] and not cause["wrong_and_sure"] for cause in causes)),
        "wrong and sure": str(sum(cause["wrong_and_sure"] for cause in causes)),
        "blind, of the compared records": f"{100 * statistics.mean(line['said']['blind'] for line in faults):.1f} %",
        "seconds for a diagnosis": f"{statistics.mean(line['said']['seconds'] for line in faults):.1f}",
        "MB for both dumps": f"{statistics.mean(line['bytes'] for line in faults) / 1e6:.0f}",
    }
    if controls:
        said = [line["said"] for line in controls]
        cells |= {
            "controls: alarms": _share(map(detected, controls)),
            "controls: inconclusive": str(sum(one["verdict"] == "inconclusive" for one in said)),
            "controls: largest share of a limit": f"{max(one['ratio'] for one in said):.2f}",
            "controls: largest share of a line": f"{max(one['introduced'] for one in said):.2f}",
        }
    return cells


def _share(true: Iterable[bool]) -> str:
    values = list(true)
    return f"{sum(values)}/{len(values)}" if values else "-"
