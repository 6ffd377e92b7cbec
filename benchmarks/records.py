"""How long a dump takes to be read: its records and the indexes of its shards, from a thousand records to a million.

    python benchmarks/records.py            a table on stdout, some two minutes
    python benchmarks/records.py --quick    up to 100 000 records
    python benchmarks/records.py --json     one object on stdout
    python benchmarks/records.py --write docs/benchmarks

Each size is read by three processes, one after the other, of which the fastest counts: seconds of the clock, beside them what
its threads took of the processor (checksums have one of their own), and its memory. Half of the records are stored tensors of
one element, each with a content of its own, so that the index grows with the records.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from capturing.curves import curve

from precflow.agent.contract import CHECKSUM, EMPTY_HEADER, checksum_of

_SIZES = (1_000, 4_000, 16_000, 64_000, 250_000, 1_000_000)
_A_CALL = 4  # records of one call
_READING = """
import json, sys, time
from pathlib import Path
from precflow.dumps.garbage import freezing_allowed
from precflow.dumps.formats import read_dump

def memory():  # not ru_maxrss, which begins with the peak of the process that started this one
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM"))

clock = time.perf_counter
before, began, spent = memory(), clock(), time.process_time()
with freezing_allowed():  # as a command does
    dump = read_dump(Path(sys.argv[1]))
    calls = dump.calls()
    read = clock()
    damage = dump.damage
    indexed, spent = clock(), time.process_time() - spent
    texts = [record.text for call in calls for record in call.outputs]
assert not damage and len(texts) == len(calls)
found = {"read": read - began, "index": indexed - read, "texts": clock() - indexed, "processor": spent}
print(json.dumps({**found, "megabytes": memory() - before}))
"""


def write(folder: Path, records: int) -> None:
    """Write a dump of so many records, by hand: lines as an agent writes them, and one shard."""
    place = folder / "rank0" / "step0"
    place.mkdir(parents=True)
    slots, lines = [], hashlib.blake2b(digest_size=16)
    with (place / "records-0.jsonl").open("wb") as file:
        for order in range(records // _A_CALL):
            data = (json.dumps(_line(order)) + "\n").encode()
            lines.update(data)
            file.write(data)
            slots += [f"{order * _A_CALL + number:032x}" for number in (0, 1)]
        size = file.tell()
    index = {key: {"dtype": "F32", "shape": [1], "data_offsets": [4 * at, 4 * at + 4]} for at, key in enumerate(slots)}
    text = json.dumps(index, separators=(",", ":")).encode()
    head = len(text).to_bytes(8, "little") + text
    (place / "tensors-0.safetensors").write_bytes(head + bytes(4 * len(slots)))
    files = {
        "rank0/step0/records-0.jsonl": {"bytes": size, "blake2b": lines.hexdigest()},
        "rank0/step0/tensors-0.safetensors": {
            "bytes": len(head) + 4 * len(slots),
            "index": hashlib.blake2b(head, digest_size=16).hexdigest(),
        },
    }
    header = {
        **EMPTY_HEADER,
        "side": "target",
        "dtype": "float32",
        "counts": {"calls": records // _A_CALL, "records": records, "tensors": len(slots), "bytes": 4 * len(slots)},
        "files": files,
    }
    header[CHECKSUM] = checksum_of(header)
    (folder / "dump.json").write_text(json.dumps(header))


def _line(order: int) -> dict[str, Any]:
    tensors = [_tensor(order, number) for number in range(_A_CALL)]
    module = f"encoder.layers.{order // 40 % 48}.self_attn"
    who = {"order": order, "level": "api", "module": module, "class": "CLIPAttention", "call": order // 1920}
    what = {"operator": "softmax", "ordinal": order % 40, "phase": "forward", "step": 0, "rank": 0, "site": 3}
    more = {"movement": False, "compiled": False, "arguments": {"dim": "-1", "dtype": "torch.float32"}}
    return {**who, **what, **more, "inputs": tensors[1:], "outputs": tensors[:1]}


def _tensor(order: int, number: int) -> dict[str, Any]:
    content = f"{order * _A_CALL + number:032x}"
    about = {"index": str(number), "dtype": "float32", "shape": [1], "content": content, "stored": number < 2}
    numbers = [-2.25 - order, 3.125, 0.0078125 * order, 913.0625, 0, 0, 0, 0, 17, 0, 0, 0]
    return {**about, "source": [max(0, order - 1), "0"], "weight": "", "statistics": numbers}


def measure(records: int) -> dict[str, float]:
    """Return seconds and megabytes of the fastest of three processes that read a dump of so many records."""
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), records)
        command = [sys.executable, "-c", _READING, name]
        runs = [json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(3)]
    return {"records": records, **min(runs, key=_seconds)}


def _seconds(run: dict[str, float]) -> float:
    return run["read"] + run["index"]


def table(rows: list[dict[str, float]]) -> str:
    """Return the rows as Markdown, per million records."""
    parts = ("read", "index", "texts", "processor")
    lines = [
        "| records | seconds | per million: lines | index | all texts | processor, without texts | MB per million |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        million = row["records"] / 1e6
        each = " | ".join(f"{row[part] / million:.2f}" for part in parts)
        lines.append(f"| {row['records']:,.0f} | {_seconds(row):.3f} | {each} | {row['megabytes'] / million:.0f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, and say it as asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    rows = [measure(records) for records in _SIZES if records <= 100_000 or not options.quick]
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        (options.write / "records.md").write_text(table(rows))
        series = {
            "lines and index": [(row["records"], _seconds(row)) for row in rows],
            "3 s per million": [(row["records"], 3e-6 * row["records"]) for row in rows],
        }
        (options.write / "records.svg").write_text(curve("Reading a dump", "records", "seconds", series))
    largest = rows[-1]
    million = largest["records"] / 1e6
    summary = {"seconds_per_million": _seconds(largest) / million, "rows": rows}
    print(json.dumps(summary) if options.json else table(rows), end="" if not options.json else "\n")


if __name__ == "__main__":
    main()
