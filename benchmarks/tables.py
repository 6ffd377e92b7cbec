"""How long the records of a run take to be read and to become a table of pandas, CSV, Parquet and event files.

    python benchmarks/tables.py             a table on stdout: ten thousand, a hundred thousand and a million records
    python benchmarks/tables.py --quick     up to 100 000 records
    python benchmarks/tables.py --json      one object on stdout
    python benchmarks/tables.py --write docs/benchmarks

The records are those of a training run: 48 layers, 11 records each, as many steps as it takes, with eleven metrics. Each size
runs in a process of its own, which reads ``measures.jsonl`` and ``judged.jsonl`` as ``precflow.read`` does. Seconds are of the
processor; megabytes are the peak, without what the interpreter and pandas take before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from precflow.comparison.measure import Measure
from precflow.judgement.verdicts import Judged
from precflow.stages.artifacts import write_lines

_SIZES = (10_000, 100_000, 1_000_000)
_LAYERS = 48
_OPERATORS = ("layer_norm", "linear", "linear", "linear", "matmul", "softmax", "matmul", "linear", "add", "gelu", "linear")
_STEPS_OF_TABLE = """
import json, sys, time
from pathlib import Path

import pandas as pd
from precflow.comparison.measure import Measure
from precflow.dumps.garbage import freezing_allowed
from precflow.judgement.verdicts import Judged, Verdict
from precflow.report import frames, tables, tensorboard
from precflow.report.highlights import list_metrics
from precflow.report.model import ReportModel, Row
from precflow.diagnosis.findings import Region
from precflow.stages.artifacts import read_lines

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM"))

def measured(name, work):
    began = time.process_time()
    result = work()
    found[name] = {"processor": time.process_time() - began, "megabytes": peak() - before}
    return result

found, folder = {}, Path(sys.argv[1])
import pyarrow
from tensorboard.compat.proto import event_pb2
from tensorboard.summary.writer import record_writer
before = peak()

def read():
    measures, judged = read_lines(folder / "measures.jsonl", Measure), read_lines(folder / "judged.jsonl", Judged)
    return tuple(Row(one, status, "agrees") for one, status in zip(measures, judged, strict=True))

with freezing_allowed():
    rows = measured("read", read)
head = ("r", "", 1, "", "", "", (), Verdict("aligned"), Region(), ())
model = ReportModel(*head, rows, {}, (), "", ("relative_l2",), 0.0, False)
measured("csv", lambda: tables.write(model, folder, ["csv"]))
table = measured("frame", lambda: frames.make_record_frame(rows, list_metrics(model)))
found["table"] = int(table.memory_usage(deep=True).sum()) / 1e6
measured("group", lambda: table.groupby(["phase", "operator"], observed=True).ratio.max())
del table
measured("parquet", lambda: tables.write(model, folder, ["parquet"]))
measured("tensorboard", lambda: tensorboard.write(model, folder))
found["csv_megabytes"] = (folder / "result.csv").stat().st_size / 1e6
print(json.dumps(found))
"""
_COLUMNS = ("read", "frame", "group", "csv", "parquet", "tensorboard")


def write(folder: Path, records: int) -> None:
    """Write the two files of a run with so many records."""
    write_lines(folder / "measures.jsonl", (Measure(**measure) for measure, _ in _make_records(records)))
    write_lines(folder / "judged.jsonl", (Judged(**status) for _, status in _make_records(records)))


def _make_records(records: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    names = (
        "cosine_similarity relative_l2 max_abs_error mean_abs_error max_rel_error mean_rel_error rmse kl_divergence"
        " max_rms_error allclose_share ulp_distance"
    ).split()
    for order in range(records):
        step, place = divmod(order, _LAYERS * len(_OPERATORS))
        layer, number = divmod(place, len(_OPERATORS))
        operator, ordinal = _OPERATORS[number], _OPERATORS[:number].count(_OPERATORS[number])
        module = f"encoder.layers.{layer}.block"
        record = f"{module}/{operator}.{ordinal}/forward.output.0@step{step}"
        error = 1e-7 * (1 + (order * 2654435761 % 1000) / 7)
        measure = {
            "record": record,
            "name": f"{module} / {operator}.{ordinal} step {step}",
            "module": module,
            "operator": operator,
            "level": "api",
            "phase": "forward",
            "order": order,
            "join": "paired",
            "reference_dtype": "float32",
            "target_dtype": "float32",
            "reference_shape": (8, 512, 1024),
            "target_shape": (8, 512, 1024),
            "metrics": {name: error * (1 + index) for index, name in enumerate(names)},
            "evidence": "sketch",
            "site": f"model.py:{100 + number} in forward",
            "pairing": "name",
        }
        judged = {"record": record, "status": "pass", "metric": "relative_l2", "value": error, "limit": 1.5e-5}
        yield measure, {**judged, "ratio": error / 1.5e-5, "standard": "calibrated"}


def measure(records: int) -> dict[str, Any]:
    """Return what each step takes of the processor and of memory, for so many records."""
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), records)
        done = subprocess.run([sys.executable, "-c", _STEPS_OF_TABLE, name], check=True, stdout=subprocess.PIPE, text=True)
    return {"records": records, **json.loads(done.stdout)}


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    head = (*(f"{name}, s" for name in _COLUMNS), "MB when read", "MB with the table", "MB of the table", "MB of result.csv")
    lines = [f"| records | {' | '.join(head)} |", "|" + "--:|" * (len(head) + 1)]
    for row in rows:
        seconds = [f"{row[name]['processor']:.2f}" for name in _COLUMNS]
        memory = [row["read"]["megabytes"], row["frame"]["megabytes"], row["table"], row["csv_megabytes"]]
        lines.append(f"| {row['records']:,} | {' | '.join([*seconds, *(f'{value:.0f}' for value in memory)])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--quick", action="store_true", help="up to 100 000 records")
    options.add_argument("--json", action="store_true", help="one object on stdout")
    options.add_argument("--write", type=Path, metavar="FOLDER", help="write tables.md there")
    chosen = options.parse_args()
    rows = [measure(records) for records in (_SIZES[:-1] if chosen.quick else _SIZES)]
    if chosen.write:
        (chosen.write / "tables.md").write_text(table(rows), encoding="utf-8")
    print(json.dumps({"rows": rows}) if chosen.json else table(rows))


if __name__ == "__main__":
    main()
