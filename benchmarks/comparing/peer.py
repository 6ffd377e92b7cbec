"""The peer, msprobe, in an interpreter of its own: made here, or given."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import venv
from pathlib import Path

REQUIREMENT = "mindstudio-probe==26.2.0"
_HERE = Path(__file__).parent


def interpreter(given: str, folder: Path, *more: str) -> Path:
    """Return the Python that has the peer; without one given, make an environment with it and ``more`` below ``folder``."""
    if given:
        return Path(given)
    place = folder / "peer"
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", REQUIREMENT, "torch", *more], check=True)
    return python


def six_metrics(python: Path, pair: Path) -> float:
    """Return the seconds that the peer's six metric functions take on ``pair``: two ``.npy`` files, loaded beforehand."""
    done = subprocess.run([python, _HERE / "peer_metrics.py", pair], check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def write_dumps(python: Path, folder: Path, gigabytes: float) -> None:
    """Let the peer's interpreter write both sides in its own layout."""
    subprocess.run([python, _HERE / "dumps.py", folder, str(gigabytes)], check=True)


def compare(python: Path, folder: Path, output: Path) -> float:
    """Return the seconds of one run of its command line, which must have written a table.

    Raises:
        RuntimeError: It wrote none; its exit code says nothing about that.
    """
    sides = [
        "-tp",
        folder / "target" / "step0" / "rank0" / "dump.json",
        "-gp",
        folder / "reference" / "step0" / "rank0" / "dump.json",
    ]
    command = [python.parent / "msprobe", "compare", *sides, "-o", output]
    start = time.perf_counter()
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    seconds = time.perf_counter() - start
    if not any(output.glob("compare_result*")):
        print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
        raise RuntimeError("the peer wrote no table")
    return seconds
