"""kill -9 in a comparison at random moments, then the same again: nothing is lost, nothing is read twice that was kept.

python tests/comparison/killing.py 100          a table on stdout
"""

import multiprocessing
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from dump_builder import DumpBuilder

from precflow.comparison import batches
from precflow.comparison.compare import compare
from precflow.comparison.executors.threads import Threads
from precflow.dumps.formats import read_dump
from precflow.run.store import Store
from precflow.stages.artifacts import write_lines

RECORDS = 120
_BATCH = 4  # records
_FORK = multiprocessing.get_context("fork")  # what is imported is there: a moment is one of the work


def write_sides(folder):
    """Write two dumps of some records each, and return their folders."""
    sides = [DumpBuilder(folder / name, side=name) for name in ("reference", "target")]
    for number in range(RECORDS):
        values = np.random.default_rng(number).standard_normal((16, 77, 32)).astype(np.float32)
        for dump, factor in zip(sides, (1, 1.0001), strict=True):
            dump.call(f"layers.{number}", "linear", [values * np.float32(factor)])
    return [dump.write() for dump in sides]


def work(root, folders, read):
    """Compare as the stage does, in a store; ``read`` counts batches."""
    batches.READINGS = _BATCH
    run = Threads.run

    def counted(self, *args):
        for found in run(self, *args):
            yield found
            with read.get_lock():
                read.value += 1

    Threads.run = counted
    store = Store(root)
    with store.making("compare", "ab12", resumes=True) as attempt:
        measures = compare(*map(read_dump, folders), executor=Threads(2), kept=attempt.folder / "batches")
        shutil.rmtree(attempt.folder / "batches")
        for torn in attempt.folder.glob("measures.jsonl.*"):
            torn.unlink()
        write_lines(attempt.folder / "measures.jsonl", measures)
        store.seal(attempt, {"name": "compare", "key": "ab12", "declared": {}, "needs": {}, "note": ""})


def run(root, folders, after=None):
    """Run the work in a process of its own, killed after some seconds; return its seconds, exit code and batches read."""
    read = _FORK.Value("i", 0)
    began = time.monotonic()
    process = _FORK.Process(target=work, args=(root, folders, read))
    process.start()
    if after is not None:
        process.join(after)
        process.kill()
    process.join()
    return time.monotonic() - began, process.exitcode, read.value


def kill(moments, folder, seed=20261121):
    """Kill at random moments, go on, and return one row a moment; an ``AssertionError`` where anything was lost."""
    folders = write_sides(folder)
    length, code, total = run(folder / "whole", folders)
    assert (code, total) == (0, RECORDS // _BATCH)
    expected = (folder / "whole" / "compare-ab12" / "measures.jsonl").read_bytes()
    chance, rows = random.Random(seed), []
    for moment in range(moments):
        root = folder / f"killed-{moment}"
        after = chance.uniform(0, length)
        _, code, before = run(root, folders, after)
        assert code in {0, -signal.SIGKILL}
        kept = len(list((root / ".making").glob("*/batches/*.msgpack"))) if root.exists() else 0
        sealed = (root / "compare-ab12").exists()
        _, again, left = (0, 0, 0) if sealed else run(root, folders)
        assert again == 0
        assert (root / "compare-ab12" / "measures.jsonl").read_bytes() == expected
        assert sorted(path.name for path in (root / "compare-ab12").iterdir()) == ["measures.jsonl", "sealed.json"]
        assert sealed or left == total - kept, "what was kept is not read again, all else is"
        assert not [path for path in (root / ".making").iterdir() if path.is_dir()]
        rows.append({"after": after / length, "before": before, "kept": kept, "left": left, "sealed": sealed})
        shutil.rmtree(root)
    return rows


def main(moments):
    with tempfile.TemporaryDirectory() as folder:
        rows = kill(moments, Path(folder))
    total = RECORDS // _BATCH
    lines = ["| killed | moments | same result | batches kept, mean | read again of those kept |", "|---|---|---|---|---|"]
    for name, found in (
        ("before the first batch", [row for row in rows if not row["kept"] and not row["sealed"]]),
        ("between batches", [row for row in rows if 0 < row["kept"] < total]),
        ("after the last batch", [row for row in rows if row["kept"] == total]),
        ("after the seal", [row for row in rows if row["sealed"]]),
    ):
        mean = sum(row["kept"] for row in found) / max(len(found), 1)
        lines.append(f"| {name} | {len(found)} | {len(found)} | {mean:.1f} of {total} | 0 |")
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
