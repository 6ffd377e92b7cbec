"""Puts the counts of many cases into tables: by type and group, by family, by method, by control, and by size of the fault."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from . import cells
from .cells import Cells, share
from .faults import KINDS
from .score import Line, band, detected

METHODS = {
    "precflow": "precflow",
    "first_digest": "first tensor with other bits",
    "first_divergence": "first divergence by fixed limits",
    "assert_close": "`torch.testing.assert_close`",
    "torchlens_rule": "the rule of torchlens",
    "cosine_0.99": "cosine below 0.99",
    "cosine_0.999": "cosine below 0.999",
    "msprobe_compare": "msprobe: first row that compare flags",
    "msprobe_first_diff": "msprobe: its first difference",
}


def rows(head: Sequence[str], groups: Mapping[tuple[str, ...], Cells]) -> str:
    """Return a Markdown table with a row for each group and a column for each cell that a group has."""
    names = dict.fromkeys(name for of_group in groups.values() for name in of_group)
    lines = ["| " + " | ".join([*head, *names]) + " |", "|" + "---|" * len(head) + "--:|" * len(names)]
    table = ([*key, *(of_group.get(name, "-") for name in names)] for key, of_group in groups.items())
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in table)])


def columns(groups: Mapping[str, Cells]) -> str:
    """Return a Markdown table with a column for each group and a row for each cell that a group has."""
    names = dict.fromkeys(name for of_group in groups.values() for name in of_group)
    lines = ["| | " + " | ".join(groups) + " |", "|---|" + "--:|" * len(groups)]
    table = ([name, *(of_group.get(name, "-") for of_group in groups.values())] for name in names)
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in table)])


def whole(lines: Sequence[Line], known: frozenset[str]) -> str:
    """Return what all cases show, of all seeds at once.

    Args:
        lines: Finished cases with their scores.
        known: Rules that this version has.
    """
    faults = [line for line in lines if line["group"] != "control"]
    controls = [line for line in lines if line["group"] == "control"]
    by_group, by_control = _grouped(faults, "dtype", "group"), _grouped(controls, "dtype", "control")
    single = [line for line in faults if line["group"] == "single"]
    parts = [
        rows(("type", "faults"), {key: cells.of_faults(some, known) for key, some in by_group.items()}) if faults else "",
        of_families(single, known) if single else "",
        *(of_methods(dtype, faults, controls) for (dtype,) in _grouped(lines, "dtype")),
        compare_types(faults),
        rows(("type", "control"), {key: cells.of_controls(some) for key, some in by_control.items()}) if controls else "",
        _costs(lines),
        *_curve(faults),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _grouped(lines: Sequence[Line], *keys: str) -> dict[tuple[str, ...], list[Line]]:
    """Return the lines by the values of these keys, which a case that crashed may lack."""
    groups: dict[tuple[str, ...], list[Line]] = defaultdict(list)
    for line in lines:
        groups[tuple(line.get(key, "") for key in keys)].append(line)
    return dict(groups)


def of_families(lines: Sequence[Line], known: frozenset[str]) -> str:
    """Return a table of single faults by family and element type, without those families of which nothing acts."""
    shown = ("detected", "first suspect right", "cause first", "unknown", "wrong and sure")
    groups: dict[tuple[str, ...], list[Line]] = defaultdict(list)
    for line in lines:
        if "crash" in line or band(line) != "none":
            groups[KINDS[line["name"].split("-")[0]].family, line["dtype"]].append(line)
    counted = {key: cells.of_faults(some, known) for key, some in sorted(groups.items())}
    return rows(("family", "type"), {key: {name: of_group[name] for name in shown} for key, of_group in counted.items()})


def of_methods(dtype: str, faults: Sequence[Line], controls: Sequence[Line]) -> str:
    """Return the same counts for precflow and the simpler methods: a column in which the first digest wins proves nothing."""
    faults = [line for line in faults if line["dtype"] == dtype and "crash" not in line]
    controls = [line for line in controls if line["dtype"] == dtype and "crash" not in line]
    methods = dict.fromkeys(name for line in [*faults, *controls] for name in line["scores"])
    groups = {(METHODS[method],): cells.of_method(method, faults, controls) for method in methods}
    return rows((f"method, {dtype}",), groups) if groups else ""


def compare_types(lines: Sequence[Line]) -> str:
    """Say how many of the single faults that float32 finds are found in 16 bits.

    A fault is the same if kind and seed are; one that does nothing in 16 bits counts as not found.
    """
    found: dict[str, dict[tuple[str, int], bool]] = defaultdict(dict)
    for line in lines:
        if line["group"] == "single" and "crash" not in line:
            found[line["dtype"]][line["faults"][0]["kind"], line["seed"]] = detected(line)
    fine = found.pop("float32", {})
    pairs = {dtype: [is_found for key, is_found in of_type.items() if fine.get(key)] for dtype, of_type in found.items()}
    return "\n\n".join(f"{dtype}: found of those that float32 finds: {share(both)}" for dtype, both in pairs.items() if both)


def _costs(lines: Sequence[Line]) -> str:
    ran = [line for line in lines if "crash" not in line]
    if not ran:
        return ""
    seconds = statistics.mean(line["said"]["seconds"] for line in ran)
    megabytes = statistics.mean(line["bytes"] for line in ran) / 1e6
    floors = [line["floor_seconds"] for line in ran if line.get("floor_seconds") is not None]
    measured = f", {statistics.mean(floors):.2f} s for the floors of a reference" if floors else ""
    return f"On average {seconds:.2f} s for a diagnosis{measured} and {megabytes:.1f} MB for both dumps."


def _curve(lines: Sequence[Line]) -> list[str]:
    """Say which share of single faults is detected, by element type and decade of rho (of residue in 16 bits)."""
    decades: dict[str, dict[int, Counter[bool]]] = defaultdict(lambda: defaultdict(Counter))
    for line in lines:
        if line["group"] == "single" and "crash" not in line and line["faults"][0]["effects"] and band(line) != "none":
            key = "rho" if line["dtype"] == "float32" else "residue"
            size = max(effect[key] for effect in line["faults"][0]["effects"])
            decade = 9 if math.isinf(size) else math.floor(math.log10(max(size, 1e-2)))
            decades[line["dtype"]][decade][detected(line)] += 1
    said = []
    for dtype, of_type in decades.items():
        points = (f"1e{decade} {counts[True]}/{counts.total()}" for decade, counts in sorted(of_type.items()))
        said.append(f"Detected by {'rho' if dtype == 'float32' else 'residue'}, {dtype}: " + ", ".join(points))
    return said
