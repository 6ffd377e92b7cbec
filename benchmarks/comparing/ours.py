"""Compare two dumps, write the table, and print the process's memory: the whole of our run, timed from outside."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

from precflow.comparison.compare import compare
from precflow.comparison.compiled.engine import compiled_range
from precflow.dumps.reader import Dump


def high_water(name: str) -> int:
    """Return a line of ``/proc/self/status`` in bytes: ``VmHWM`` is the peak, ``VmRSS`` what is held now."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def main(folder: Path, table: Path) -> None:
    """Compare ``folder``/reference with ``folder``/target."""
    compiled_range("float32", "float32")  # loaded anyway; memory is counted from here
    baseline = high_water("VmHWM")
    unsealed = not (folder / "reference" / "dump.json").exists()
    sides = [Dump.open(folder / name, allow_unsealed=unsealed) for name in ("reference", "target")]
    measures = compare(*sides)
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["record", "join", *measures[0].metrics], extrasaction="ignore")
        writer.writeheader()
        writer.writerows({"record": measure.record, "join": measure.join, **measure.metrics} for measure in measures)
    paired = sum(measure.join == "paired" and bool(measure.metrics) for measure in measures)
    print(json.dumps({"measures": paired, "megabytes": (high_water("VmHWM") - baseline) / 1e6}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
