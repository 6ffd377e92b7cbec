"""Compare two dumps, judge them by the default limits, write the table, and print the process's memory: timed from outside."""

from __future__ import annotations

import csv
import datetime
import json
import sys
from pathlib import Path

from precflow.comparison.compare import compare
from precflow.comparison.compiled.engine import find_compiled_pass
from precflow.config.schema import RunConfig
from precflow.dumps.digest import WORTH_COMPILING
from precflow.dumps.formats import read_dump
from precflow.judgement.judge import Circumstances, judge


def high_water(name: str) -> int:
    """Return a line of ``/proc/self/status`` in bytes: ``VmHWM`` is the peak, ``VmRSS`` what is held now."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def main(folder: Path, table: Path) -> None:
    """Compare ``folder``/reference with ``folder``/target."""
    sides = [read_dump(folder / name) for name in ("reference", "target")]
    records = sum(len(side.calls()) for side in sides)
    if records < 10_000 or sum(path.stat().st_size for path in folder.rglob("*.safetensors")) > WORTH_COMPILING:
        find_compiled_pass("float32", "float32")  # loaded anyway; memory is counted from here
    baseline = high_water("VmHWM")
    measures = compare(*sides)
    judged, verdict = judge(
        measures, RunConfig(), dtypes=("float32", "float32"), known=Circumstances(datetime.date(2026, 1, 1))
    )
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["record", "join", "status", *measures[0].metrics], extrasaction="ignore")
        writer.writeheader()
        rows = zip(measures, judged, strict=True)
        writer.writerows(
            {"record": one.record, "join": one.join, "status": status.status, **one.metrics} for one, status in rows
        )
    paired = sum(measure.join == "paired" and bool(measure.metrics) for measure in measures)
    memory = (high_water("VmHWM") - baseline) / 1e6
    print(json.dumps({"measures": paired, "verdict": verdict.verdict, "megabytes": memory}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
