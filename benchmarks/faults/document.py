"""The tables of ``docs/faults.md``, which this writes into the page, so that nobody copies a number.

A table of the page stands behind a comment with its name, such as ``<!-- table: seed 0 -->``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from . import cells, margins, tables
from .cases import DTYPES
from .cells import Cells
from .score import Line

_TABLE = re.compile(r"(<!-- table: (.+?) -->\n\n)((?:\|.*\n)+)")
_OF_SEED = (
    *("crashed", "faults that do something (that do nothing)", "detected", "of them strong", "first suspect right"),
    *("named calls that are true", "names for a fault, median", "classes named whole", "cause first"),
    *("cause among the first three", "unknown", "wrong, but not sure", "wrong and sure"),
    *("blind, of the compared records of faulty runs", "seconds for a diagnosis", "MB for both dumps"),
)
_OF_CONTROLS = ("crashed", "alarms", "inconclusive", "largest share of a limit", "largest share of a line")
_MEASURED_EARLIER = "| msprobe"  # rows that stay where a run has none: msprobe runs by itself, and seldom


def make(lines: Sequence[Line], known: frozenset[str]) -> dict[str, str]:
    """Return the tables that these cases give, by name.

    Families and methods are compared in seed 0, the one seed in which all models, types and methods run.

    Args:
        lines: Finished cases with their scores.
        known: Rules that this version has.
    """
    single = [line for line in lines if line["group"] == "single"]
    several = [line for line in lines if line["group"] not in {"single", "control"}]
    controls = [line for line in lines if line["group"] == "control"]
    first, first_controls = ([line for line in some if line["seed"] == 0] for some in (single, controls))
    made = {f"seed {seed}": _of_seed(seed, single, controls, known) for seed in sorted({line["seed"] for line in single})}
    made["limits moved"] = margins.move_lines(lines)
    made["families"] = tables.of_families(first, known) if first else ""
    for dtype in DTYPES:
        made[f"several at once, {dtype}"] = tables.of_methods(dtype, several, [])
        made[f"methods, {dtype}"] = tables.of_methods(dtype, first, first_controls) if first else ""
    made["controls"] = _of_controls(controls) if controls else ""
    return {name: table for name, table in made.items() if table}


def _of_seed(seed: int, single: Sequence[Line], controls: Sequence[Line], known: frozenset[str]) -> str:
    """Return one column an element type; controls stand with the first seed, in which each of them runs in each type."""
    columns: dict[str, Cells] = {}
    for dtype in DTYPES:
        faults = [line for line in single if (line["dtype"], line["seed"]) == (dtype, seed)]
        correct = [line for line in controls if (line["dtype"], line["seed"]) == (dtype, seed)]
        if faults:
            of_controls = cells.of_controls(correct) if correct and seed == 0 else {}
            columns[dtype if seed == 0 else f"{dtype}, seed {seed}"] = {
                **_chosen(_OF_SEED, cells.of_faults(faults, known)),
                **{f"controls: {name}": cell for name, cell in _chosen(_OF_CONTROLS, of_controls).items()},
            }
    return tables.columns(columns)


def _of_controls(controls: Sequence[Line]) -> str:
    of_types = {(dtype,): [line for line in controls if line["dtype"] == dtype] for dtype in DTYPES}
    return tables.rows(
        ("type",),
        {key: _chosen(("runs", *_OF_CONTROLS), cells.of_controls(some)) for key, some in of_types.items() if some},
    )


def _chosen(names: Sequence[str], of_group: Cells) -> Cells:
    return {name: of_group[name] for name in names if name in of_group}


def fill(page: str, made: dict[str, str]) -> str:
    """Return a page with its tables replaced by those of the same name.

    Raises:
        ValueError: The page has no place for some of the tables.
    """
    places = {name for _, name, _ in _TABLE.findall(page)}
    if missing := [name for name in made if name not in places]:
        wanted = "\n".join(f"<!-- table: {name} -->" for name in missing)
        raise ValueError(f"the page has no place for these tables; add a line for each, an empty line and '|':\n{wanted}")

    def replace(found: re.Match[str]) -> str:
        mark, name, old = found.groups()
        if name not in made:
            return mark + old
        kept = [row for row in old.splitlines() if row.startswith(_MEASURED_EARLIER)] if "| msprobe" not in made[name] else []
        return mark + "\n".join([made[name], *kept]) + "\n"

    return _TABLE.sub(replace, page)
