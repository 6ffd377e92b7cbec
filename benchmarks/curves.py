"""How long a million lines of a training log take: ``python -m benchmarks.curves [--lines N]``.

Every kind of log, beside the time in which Python reads the lines of the text log and does nothing with them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from precflow.curves.outcome import examine
from precflow.curves.reading import read_curve
from precflow.curves.wanted import Wanted

LINES = 1_000_000
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


def count_lines(path: Path) -> int:
    """Read all lines and count them."""
    with path.open(encoding="utf-8") as file:
        return sum(1 for _ in file)


def run(lines: int) -> dict[str, float]:
    """Return what was measured, in seconds."""
    with tempfile.TemporaryDirectory() as name:
        logs = write_logs(Path(name), lines)
        seconds = {"plain reading of lines": measure(lambda: count_lines(logs["text"]))}
        for kind, path in logs.items():
            seconds[kind] = measure(lambda path=path: read_curve(path, LOSS))  # type: ignore[misc]
        curve = read_curve(logs["json"], LOSS)
        seconds["joining and measuring"] = measure(lambda: examine("loss", curve, curve, limits={"max_abs_error": 1.0}))
    return seconds


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=LINES)
    lines = parser.parse_args(arguments).lines
    seconds = run(lines)
    print(f"{lines} steps")
    for what, taken in seconds.items():
        print(f"  {what:<24}{taken:8.2f} s   {taken / seconds['plain reading of lines']:6.1f} x plain reading")


if __name__ == "__main__":
    main()
