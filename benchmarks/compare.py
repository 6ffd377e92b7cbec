"""How fast a comparison is: beside a pass that only reads, beside the peer on the same tensors, and how much memory it takes.

    python benchmarks/compare.py            all, some 20 minutes and 35 GB of disk
    python benchmarks/compare.py --quick    within 5 minutes, without the dumps of 16 GB
    python benchmarks/compare.py --json     one object on stdout, of ratios within this run

Rounds are interleaved, and ratios are those of the best rounds, because whoever shares the machine only ever adds time; the
medians stand beside them. Compare ratios, not seconds of different runs. The
peer is msprobe (``mindstudio-probe``), in a virtual environment made for it, or in the one that ``--peer`` names.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from capturing.curves import curve
from comparing import dumps, kernels, peer, tables
from comparing.pairs import pair, warm

from precflow.comparison.compiled.engine import find_compiled_pass

_FEW = 100  # records that take no time worth speaking of beside the start
_HERE = Path(__file__).parent


def kernel(python: Path, folder: Path, *, quick: bool) -> dict[str, Any]:
    """Race the kernels on one pair of 256 MB float32 a side (128 MB when quick)."""
    size = 1 << (25 if quick else 26)
    reference, target = (side.reshape(-1, kernels.ROW) for side in pair(size))
    for name, side in (("reference", reference), ("target", target)):
        np.save(folder / f"{name}.npy", side)
    find_compiled_pass("float32", "float32")
    runners = {
        "read": lambda: kernels.read_only(reference, target),
        "fused": lambda: kernels.fused(reference, target),
        "checked": lambda: kernels.fused(reference, target, checked=True),
        "numpy": lambda: kernels.fused(reference, target, compiled=False),
        "naive": lambda: [kernels.naive(reference, target)],
        "peer": lambda: peer.six_metrics(python, folder),
    }
    fast = kernels.race({name: runners[name] for name in ("read", "fused", "checked")}, 15)
    slow = kernels.race({name: runners[name] for name in ("numpy", "naive", "peer", "fused")}, 2 if quick else 5)
    best = {name: values[0] for name, values in (slow | fast).items()}
    return {
        "seconds": best,
        "medians": {name: statistics.median(values) for name, values in (slow | fast).items()},
        "share": best["read"] / best["fused"],
        "ratios": {name: best[name] / best["fused"] for name in ("numpy", "naive", "peer")},
        "variants": kernels.variants(size, 3 if quick else 9),
        "threads": kernels.threads(size, 7),
    }


def starts(folder: Path) -> dict[str, float]:
    """Return the seconds of the first call in a process: that compiles, and that finds the kernel compiled."""
    code = (
        "import time, numpy as np\nfrom precflow.comparison.compiled.engine import find_compiled_pass\n"
        "start = time.perf_counter()\n"
        "find_compiled_pass('float32', 'float32')(np.ones(9, np.float32), np.ones(9, np.float32), 0, 9)\n"
        "print(time.perf_counter() - start)"
    )
    own_cache = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "-c", code]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True, env=own_cache).stdout for _ in range(4)]
    return {"first": float(runs[0]), "second": min(float(run) for run in runs[1:])}


def ours(folder: Path, table: Path) -> tuple[float, dict[str, Any]]:
    """Return the seconds of a whole process that compares and judges two dumps, and what it says about itself."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, _HERE / "comparing" / "ours.py", folder, table], check=True, capture_output=True, text=True
    )
    return time.perf_counter() - start, json.loads(done.stdout)


def end_to_end(python: Path, folder: Path, gigabytes: float, rounds: int) -> dict[str, Any]:
    """Compare two dumps of together ``gigabytes``, page-cached, by us and by the peer: in turn, where memory holds both."""
    ours_at, peers_at = folder / "ours", folder / "peers"
    seconds: dict[str, list[float]] = {"ours": [], "peer": []}
    said: dict[str, Any] = {}

    def compare_ours() -> None:
        warm(ours_at)
        spent, facts = ours(ours_at, folder / "table.csv")
        seconds["ours"].append(spent)
        said.update(facts)

    def compare_peers() -> None:
        warm(peers_at)
        seconds["peer"].append(peer.compare(python, peers_at, folder / f"peer-{gigabytes}-{len(seconds['peer'])}"))

    dumps.write_ours(ours_at, gigabytes)
    if 2 * gigabytes > _memory_gigabytes() / 2:
        for _ in range(max(rounds, 2)):
            compare_ours()
        shutil.rmtree(ours_at)
        peer.write_dumps(python, peers_at, gigabytes)
        for _ in range(rounds):
            compare_peers()
    else:
        peer.write_dumps(python, peers_at, gigabytes)
        for _ in range(rounds):
            compare_ours()
            compare_peers()
        shutil.rmtree(ours_at)
    shutil.rmtree(peers_at)
    best = {name: min(values) for name, values in seconds.items()}
    return {"gigabytes": gigabytes, **best, **said, "ratio": best["peer"] / best["ours"]}


def with_rates(sizes: list[dict[str, Any]], start: float) -> list[dict[str, Any]]:
    """Return the rows with the gigabytes a second between a size and the one before it; of a single size, beyond ``start``.

    What a process takes to start is in both sizes, and differs from run to run by more than a gigabyte takes.
    """
    before: dict[str, Any] = {"gigabytes": 0.0, "ours": start if len(sizes) == 1 else math.nan}
    found = []
    for row in sizes:
        rate = (row["gigabytes"] - before["gigabytes"]) / (row["ours"] - before["ours"])
        found.append({**row, "GB/s beyond the row before": None if math.isnan(rate) else rate})
        before = row
    return found


def _memory_gigabytes() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


def records(folder: Path, counts: Sequence[int]) -> list[dict[str, Any]]:
    """Compare dumps of so many records of 64 elements, each in a process of its own."""
    found = []
    for count in counts:
        place = folder / f"records-{count}"
        dumps.write_records(place, count)
        spent = [ours(place, folder / "table.csv") for _ in range(3 if count < 10_000 else 1)]
        shutil.rmtree(place)
        seconds, said = min(spent, key=lambda one: one[0])
        found.append({"records": count, "seconds": seconds, **said})
    return found


def large_tensor(folder: Path, gigabytes: float) -> float:
    """Return the megabytes above the baseline for one mapped tensor of ``gigabytes`` a side."""
    size = int(gigabytes * 1e9 / 4)
    for name in ("reference", "target"):
        np.lib.format.open_memmap(folder / f"large-{name}.npy", "w+", np.float32, (size // 512, 512)).flush()
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\nfrom comparing import kernels\nfrom comparing.ours import high_water\n"
        "import numpy as np\nkernels.fused(np.ones(9, np.float32), np.ones(9, np.float32))\nbefore = high_water('VmHWM')\n"
        "kernels.fused(*(np.load(f'{sys.argv[2]}/large-{side}.npy', mmap_mode='r') for side in ('reference', 'target')))\n"
        "print((high_water('VmHWM') - before) / 1e6)"
    )
    done = subprocess.run([sys.executable, "-c", code, _HERE, folder], check=True, capture_output=True, text=True)
    return float(done.stdout)


def measure(python: Path, folder: Path, *, quick: bool) -> dict[str, Any]:
    """Return everything measured."""
    sizes = [2.0] if quick else [1.0, 2.0, 4.0, 16.0]
    start = starts(folder)
    curve_of_records = records(folder, (1, 100, 1_000) if quick else (1, 10, 100, 1_000, 10_000, 100_000))
    started = min(row["seconds"] for row in curve_of_records if row["records"] <= _FEW)
    return {
        "kernel": kernel(python, folder, quick=quick),
        "start": start,
        "records": curve_of_records,
        "end_to_end": with_rates([end_to_end(python, folder, size, 1 if size > 4 else 3) for size in sizes], started),
        "large_tensor_mb": large_tensor(folder, 1.0 if quick else 4.0),
    }


def headline(found: dict[str, Any]) -> dict[str, float | None]:
    """Return the ratios that are promised; ``None`` where this run left something out."""
    ratios = {run["gigabytes"]: run["ratio"] for run in found["end_to_end"]}
    memory = [run["megabytes"] for run in found["end_to_end"]]
    return {
        "kernel_share_of_read": found["kernel"]["share"],
        "kernel_vs_peer": found["kernel"]["ratios"]["peer"],
        "kernel_vs_naive": found["kernel"]["ratios"]["naive"],
        "end_to_end_vs_peer_2gb": ratios.get(2.0),
        "end_to_end_vs_peer_16gb": ratios.get(16.0),
        "peak_mb_above_baseline": max(found["large_tensor_mb"], *memory),
    }


def report(found: dict[str, Any]) -> str:
    """Return all tables as Markdown."""
    best, medians = found["kernel"]["seconds"], found["kernel"]["medians"]
    race = [
        {"pass": name, "seconds": value, "median": medians[name], "times fused": value / best["fused"]}
        for name, value in best.items()
    ]
    threads = [
        {"threads": count, "seconds": values[0], "median": statistics.median(values)}
        for count, values in found["kernel"]["threads"].items()
    ]
    parts = {
        "Promised": [{"ratio": name, "measured": value} for name, value in headline(found).items()],
        "One pair of float32 in memory": race,
        "Types and sizes of errors": found["kernel"]["variants"],
        "Threads": threads,
        "Two dumps, from the start of the process to the table": found["end_to_end"],
        "Many small records, from the start of the process to the table": found["records"],
        "Rest": [
            {
                "first call, seconds (compiles)": found["start"]["first"],
                "first call of another process": found["start"]["second"],
                "one large tensor, MB": found["large_tensor_mb"],
            }
        ],
    }
    return "\n".join(f"### {title}\n\n{tables.markdown(rows)}" for title, rows in parts.items())


def charts(found: dict[str, Any]) -> dict[str, str]:
    """Return name -> SVG."""
    sizes = found["end_to_end"]
    by_size = {side: [(run["gigabytes"], run[side]) for run in sizes] for side in ("ours", "peer")}
    by_count = {"ours": [(run["records"], run["seconds"]) for run in found["records"]]}
    title = "Seconds for one pair of float32 (shorter is better)"
    return {
        "compare": tables.bars(title, found["kernel"]["seconds"], "s"),
        "compare-size": curve("Two dumps, page-cached, with the start of the process", "GB", "seconds", by_size),
        "compare-records": curve("Two dumps of small records, with the start of the process", "records", "seconds", by_count),
    }


def main() -> None:
    """Measure, and print or write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the promised ratios as one object")
    parser.add_argument("--quick", action="store_true", help="finish within 5 minutes")
    parser.add_argument("--peer", default="", metavar="PYTHON", help="a Python that has mindstudio-probe 26.2.0 and torch")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write tables and curves there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = measure(peer.interpreter(given.peer, Path(place)), Path(place), quick=given.quick)
    if given.write:
        given.write.mkdir(parents=True, exist_ok=True)
        (given.write / "compare.md").write_text(report(found), encoding="utf-8")
        (given.write / "compare.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        for name, chart in charts(found).items():
            (given.write / f"{name}.svg").write_text(chart, encoding="utf-8")
    print(json.dumps(headline(found)) if given.json else report(found))


if __name__ == "__main__":
    main()
