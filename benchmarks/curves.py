"""How long a million lines of a training log take: ``python -m benchmarks.curves [--lines N]``.

Every kind of log, beside the time in which Python reads the lines of the text log and does nothing with them, and the memory
that reading it takes at most.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from precflow.curves.outcome import examine
from precflow.curves.reading import read_curve
from precflow.curves.wanted import Wanted

LINES = 1_000_000
PLAIN = "plain reading of lines"
LOSS = Wanted("loss")


def write_logs(folder: Path, lines: int) -> dict[str, Path]:
    """Write the same curve as each kind of log, and return kind -> file."""
    losses = (2 + 8 * np.exp(-np.arange(lines) / (lines / 5)) + 0.01 * np.random.default_rng(0).normal(size=lines)).tolist()
    logs = {
        kind: folder / name for kind, name in (("text", "a.log"), ("lines", "a.jsonl"), ("json", "a.json"), ("csv", "a.csv"))
    }
    with logs["text"].open("w", encoding="utf-8") as file:
        file.writelines(
            f" [2026-11-22 10:00:02] iteration {step:8d}/ {lines} | consumed samples: {step * 16:12d} |"
            f" elapsed time per iteration (ms): 1811.8 | learning rate: 4.0E-07 | global batch size: 128 |"
            f" lm loss: {loss:.6E} | loss scale: 1.0 |"
            " grad norm: 0.493 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
            for step, loss in enumerate(losses)
        )
    with logs["lines"].open("w", encoding="utf-8") as file:
        file.writelines(f'{{"step": {step}, "loss": {loss}, "lr": 1e-05}}\n' for step, loss in enumerate(losses))
    logs["json"].write_text(json.dumps({"step": list(range(lines)), "loss": losses}), encoding="utf-8")
    with logs["csv"].open("w", encoding="utf-8") as file:
        file.writelines(["step,loss,lr\n", *(f"{step},{loss},1e-05\n" for step, loss in enumerate(losses))])
    return logs


def measure(work: Callable[[], object]) -> float:
    """Return the seconds of the processor that a piece of work takes, the better of two; others may be at work too."""
    times = []
    for _ in range(2):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)


def measure_memory(work: Callable[[], object]) -> float:
    """Return the megabytes that a piece of work adds at most, in a process of its own."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()

    def run_and_tell() -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        work()
        results.put((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)

    process = context.Process(target=run_and_tell)
    process.start()
    peak: float = results.get()
    process.join()
    return peak


def count_lines(path: Path) -> int:
    """Read all lines and count them."""
    with path.open(encoding="utf-8") as file:
        return sum(1 for _ in file)


def run(lines: int) -> dict[str, tuple[float, float]]:
    """Return what was measured: seconds of the processor, and megabytes."""
    with tempfile.TemporaryDirectory() as name:
        logs = write_logs(Path(name), lines)
        works: dict[str, Callable[[], object]] = {PLAIN: lambda: count_lines(logs["text"])}
        works |= {kind: functools.partial(read_curve, path, LOSS) for kind, path in logs.items()}
        # The curve is read when it is wanted: what this process holds already would not show in the memory of the others.
        found = {what: (measure_memory(work), measure(work)) for what, work in works.items()}
        curve = read_curve(logs["csv"], LOSS)
        compare = functools.partial(examine, "loss", curve, curve, limits={"max_abs_error": 1.0})
        found["joining and measuring"] = (measure_memory(compare), measure(compare))
    return {what: (seconds, megabytes) for what, (megabytes, seconds) in found.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=LINES)
    lines = parser.parse_args(arguments).lines
    found = run(lines)
    print(f"{lines} steps")
    for what, (seconds, megabytes) in found.items():
        print(f"  {what:<24}{seconds:8.4f} s   {seconds / found[PLAIN][0]:6.1f} x plain reading   {megabytes:6.0f} MB")


if __name__ == "__main__":
    main()
