"""Metrics of MLflow as it keeps them on disk: a file for each, named like it, with lines of `timestamp value step`.

They lie in `mlruns/EXPERIMENT/RUN/metrics/`; a metric such as `train/loss` in a folder of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from precflow.curves.columns import LACKING, Choice, Columns, read_columns
from precflow.curves.formats import Format
from precflow.curves.log import Log
from precflow.curves.series import Series
from precflow.curves.wanted import Wanted, find_column, fold
from precflow.errors import CurveError

_LINE = re.compile(r"\d{13} \S+ -?\d+\s*$")  # milliseconds since 1970, the number, the step
_METRICS = "metrics"
_NAMES = ("timestamp", "value", "step")


def _recognize(log: Log) -> bool:
    lines = log.start.splitlines()[:2]  # the head may end within a later one
    return bool(lines) and not log.is_binary and all(map(_LINE.match, lines))


def _read(logs: Sequence[Log], wanted: Wanted) -> Series:
    """Return the curve of a metric's file.

    Raises:
        CurveError: It is another metric's, or a line is cut.
    """
    log = logs[0]
    parts = log.path.parts
    if _METRICS in parts and not wanted.column:
        metric = "/".join(parts[len(parts) - parts[::-1].index(_METRICS) :])
        if not any(fold(name) in fold(metric) for name in wanted.names):
            raise CurveError(
                f"{log.place} holds the metric {metric} by its place, not {wanted.name}",
                next_step=f"give the file of {wanted.name}, or take it nevertheless: {wanted.setting('column', metric)}",
            )
    lines = [line.split() for line in log.read_text().splitlines() if line.strip()]
    cut = [line for line in lines if len(line) != len(_NAMES)]
    notes = [f"{len(cut)} lines are cut and left out"] if cut else []
    rows = [dict(zip(_NAMES, line, strict=False)) for line in lines if len(line) == len(_NAMES)]
    columns = Columns(_NAMES, lambda names: [[row.get(name, LACKING) for row in rows] for name in names])
    return read_columns(columns, Choice(("value",), "step"), wanted, log.place, notes)


def _find(folder: Path, wanted: Wanted) -> Sequence[Path]:
    """Return the file of a metric in the folder of a run, or in that of its metrics."""
    metrics = folder if folder.name == _METRICS else folder / _METRICS
    if not metrics.is_dir():
        return []
    files = {path.relative_to(metrics).as_posix(): path for path in sorted(metrics.rglob("*")) if path.is_file()}
    return [files[find_column(wanted, list(files), str(folder))]] if files else []


FORMAT = Format("MLflow's metrics on disk", 40, _recognize, _read, _find)
