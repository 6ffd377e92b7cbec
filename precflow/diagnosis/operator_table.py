"""The table of ``operator_check``: how exact each operator of a device is, by operator, phase and element type.

Numbers come from three places: calls of the workload evaluated in float64 at the inputs that the target was given in the run,
the same calls run alone on the device with the reference's inputs, and functions of all 16-bit numbers. A table is kept as
``operators.json``; that of another version of device or software can be laid beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from precflow.diagnosis.introduced import IntroducedError

WORSE = 1.5
"""Factor from which on an error is called worse than that of an earlier table; kernels that are the same repeat bit by bit."""


_UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}  # half an ulp of 1


@dataclass(frozen=True)
class OperatorRow:
    """One operator of a device.

    Attributes:
        operator: Canonical name, with ``aten.`` before it at level operator; a class for a module.
        phase: ``forward`` or ``backward``; ``all numbers`` for a function of every 16-bit number.
        dtype: Element type of its output.
        calls: Outputs that were looked at; for a function of all numbers those that are finite.
        faults: Those that rounding does not explain; for a function of all numbers those that are misplaced.
        in_run: Largest relative error in the run, in roundings of the type (half an ulp); for a function of all numbers its
            largest error in ulp.
        alone: The same where the device ran the call alone, with the reference's inputs; ``None`` where it did not.
        reference: Largest relative error of the reference, in roundings of the type.
        worst: The call with the largest error; for a function of all numbers the number.
        why: Why it was not run alone, or not at all; ``""`` if it was.
        before: ``in_run`` in the earlier table; ``None`` without one.
    """

    operator: str
    phase: str
    dtype: str
    calls: int
    faults: int
    in_run: float
    alone: float | None = None
    reference: float | None = None
    worst: str = ""
    why: str = ""
    before: float | None = None

    @property
    def is_worse(self) -> bool:
        """Its error has grown since the earlier table."""
        return self.before is not None and self.in_run > WORSE * max(self.before, 0.5)


@dataclass(frozen=True)
class CalledOperator:
    """What a call is a call of: its name on screens, operator and phase, and the element types of its outputs by index."""

    name: str
    operator: str
    phase: str
    dtypes: Mapping[str, str]


def build_rows(
    found: Iterable[IntroducedError],
    called: Mapping[str, CalledOperator],
    replayed: Sequence[Mapping[str, Any]],
    unary: Sequence[Mapping[str, Any]],
) -> list[OperatorRow]:
    """Return the rows of a table, sorted by operator, phase and type.

    Args:
        found: What the evaluation in float64 found about each output.
        called: Name of a call -> its operator.
        replayed: Lines of action ``replay``.
        unary: Entries of action ``unary``.
    """
    alone = {(line["call"], line["index"]): line for line in replayed}
    groups: dict[tuple[str, str, str], list[IntroducedError]] = {}
    for output in found:
        call = called.get(output.call)
        if call is not None:
            groups.setdefault((call.operator, call.phase, call.dtypes.get(output.index, "")), []).append(output)
    rows = [_build_row(key, group, alone, called) for key, group in groups.items()]
    return sorted([*rows, *map(_build_function, unary)], key=lambda row: (row.operator, row.phase, row.dtype))


def _build_row(
    key: tuple[str, str, str],
    group: Sequence[IntroducedError],
    alone: Mapping[tuple[str, str], Mapping[str, Any]],
    called: Mapping[str, CalledOperator],
) -> OperatorRow:
    operator, phase, dtype = key
    unit = _UNITS.get(dtype, 1.0)
    lines = [alone.get((output.call, output.index), {}) for output in group]
    errors = [line["runs"].get("reference", {}).get("eta") for line in lines if line.get("runs")]
    worst = max(group, key=lambda output: output.eta_target)
    return OperatorRow(
        operator,
        phase,
        dtype,
        calls=len(group),
        faults=sum(output.is_fault for output in group),
        in_run=worst.eta_target / unit,
        alone=max((float(error) / unit for error in errors if error is not None), default=None),
        reference=max(output.eta_reference for output in group) / unit,
        worst=called[worst.call].name,
        why="" if errors else next((str(line["why"]) for line in lines if line.get("why")), "it was not run alone"),
    )


def _build_function(entry: Mapping[str, Any]) -> OperatorRow:
    return OperatorRow(
        str(entry["operator"]),
        "all numbers",
        str(entry["dtype"]),
        calls=int(entry["rounded"]),
        faults=int(entry["misplaced"]),
        in_run=float(entry["largest"]),
        worst="" if entry["why"] else f"{float(entry['at']):.6g}",
        why=str(entry["why"]),
    )


def lay_beside(rows: Sequence[OperatorRow], earlier: Sequence[OperatorRow]) -> list[OperatorRow]:
    """Return the rows with the errors of an earlier table beside theirs."""
    before = {(row.operator, row.phase, row.dtype): row.in_run for row in earlier}
    return [replace(row, before=before.get((row.operator, row.phase, row.dtype))) for row in rows]


def summarize(rows: Sequence[OperatorRow]) -> str:
    """Return one line on a table."""
    of_calls = [row for row in rows if row.phase != "all numbers"]
    wrong = sorted({row.operator for row in of_calls if row.faults})
    words = [f"{len(of_calls)} operators by phase and type"]
    words.append(
        f"{len(wrong)} introduce an error that rounding does not explain: {', '.join(wrong[:5])}"
        if wrong
        else "none introduces more than rounding"
    )
    worse = [row.operator for row in rows if row.is_worse]
    words += [f"{len(worse)} worse than before: {', '.join(worse[:5])}"] if worse else []
    return "; ".join(words)
