"""What a disk leaves of the speed: comparison of dumps that lie in no memory, and capture that writes to a disk.

    python benchmarks/disk.py            two dumps of together 4 GB, and 5 captured steps
    python benchmarks/disk.py --quick    1 GB and 3 steps: within 5 minutes on a disk of 100 MB/s
    python benchmarks/disk.py --json     one object on stdout, of ratios within this run
    python benchmarks/disk.py --folder /data     another disk than that of the working directory

Everything is held against plain work on the same disk, by turns in the same process: a comparison against reading the same
files from the first byte to the last, a captured step against the plain step and against writing the same bytes as one file.
Before a cold read the files are written out and taken from the page cache (``posix_fadvise``), and what is left there is
counted. A write is measured twice: until the system has taken the bytes, and until the disk has (``fsync``).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from capturing import work
from comparing import dumps, tables

from precflow.agent.request import CaptureSection

_PIECE = 4 << 20
_IN_MEMORY = 0.05  # share of files that may stay in the page cache
_ENCODER = work.Case("encoder", "tensors", "module", "", 1)


def files_of(folder: Path) -> list[Path]:
    """Return all files, the largest first, so that threads end together."""
    return sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: -path.stat().st_size)


def forget(folder: Path) -> float:
    """Take all files from the page cache; return the share of their bytes that stays there: all of them in a tmpfs."""
    for path in files_of(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())  # what is not written out cannot be taken
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    pages = [resident(path) for path in files_of(folder)]
    return sum(found for found, _ in pages) / max(1, sum(every for _, every in pages))


def resident(path: Path) -> tuple[int, int]:
    """Return how many pages of a file lie in memory, and how many it has."""
    size = path.stat().st_size
    if not size:
        return 0, 0
    pages = -(-size // mmap.PAGESIZE)
    states = (ctypes.c_ubyte * pages)()
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        address = ctypes.c_void_p(ctypes.addressof(first))
        failed = ctypes.CDLL(None, use_errno=True).mincore(address, ctypes.c_size_t(size), states)
        del first  # the map cannot be closed as long as something points into it
    if failed:
        raise OSError(ctypes.get_errno(), f"cannot tell which pages of {path} are in memory")
    return sum(state & 1 for state in states), pages


def read(folder: Path, threads: int) -> None:
    """Read every byte of every file, from the first to the last."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(_read_file, files_of(folder)))


def _read_file(path: Path) -> None:
    buffer = bytearray(_PIECE)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def race(runs: Mapping[str, Callable[[], Any]], rounds: int, *, before: Callable[[str], Any]) -> dict[str, float]:
    """Run all by turns, ``before`` (not timed) each of them; return the seconds of the best round of each."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            before(name)
            start = time.perf_counter()
            run()
            found[name].append(time.perf_counter() - start)
    return {name: min(seconds) for name, seconds in found.items()}


def compared(folder: Path, gigabytes: float, rounds: int) -> dict[str, Any]:
    """Compare two dumps of together ``gigabytes`` cold and page-cached, beside reading their files by one and two threads.

    Returns:
        Seconds by name, ``bytes``, ``left`` (the largest share that stayed in memory), and ``share``: what the faster plain
        read takes of the time of a cold comparison.
    """
    from precflow.comparison.compare import compare  # noqa: PLC0415  a benchmark of capture alone needs none of it
    from precflow.comparison.compiled.engine import find_compiled_pass  # noqa: PLC0415  the same
    from precflow.dumps.formats import read_dump  # noqa: PLC0415  the same

    dumps.write_ours(folder, gigabytes)
    find_compiled_pass("float32", "float32")  # once a process, whatever it compares
    left: list[float] = []

    def both() -> None:
        compare(*(read_dump(folder / name) for name in ("reference", "target")))

    runs = {"read": lambda: read(folder, 1), "read by two": lambda: read(folder, 2), "compare": both, "compare cached": both}
    seconds = race(runs, rounds, before=lambda name: None if name == "compare cached" else left.append(forget(folder)))
    size = sum(path.stat().st_size for path in files_of(folder))
    share = min(seconds["read"], seconds["read by two"]) / seconds["compare"]
    return {**seconds, "bytes": size, "left": max(left), "share": share}


def captured(folder: Path, case: work.Case, rounds: int) -> dict[str, Any]:
    """Capture tensors of a step to the folder's disk, beside plain steps and plain writes of the same bytes.

    Returns:
        Seconds by name, ``bytes``, and what a plain write takes of the time that capture adds: ``share`` where the system has
        the bytes, ``share_synced`` where the disk has them.
    """
    from precflow.agent.capture.recorder import Recorder  # noqa: PLC0415  the same
    from precflow.agent.dump.writer import Writer  # noqa: PLC0415  the same
    from precflow.agent.session import garbage  # noqa: PLC0415  needs torch

    model, step = case.build()
    place, copy = folder / "dump", folder / "copy"

    def capture() -> list[Path]:
        place.mkdir(parents=True)
        writer = Writer(str(place))
        levels = ("api",) if case.level == "api" else ("module",)
        phases = ("forward", "backward") if case.subject == "encoder" else ("forward",)
        with Recorder(writer, CaptureSection(level=levels, phase=phases, detail=case.detail)).watch(model):
            step()
        writer.seal({})
        return files_of(place)

    def clean(_: str) -> None:
        shutil.rmtree(place, ignore_errors=True)
        copy.unlink(missing_ok=True)
        os.sync()  # what another turn has left to write or to free is not this one's to wait for

    with garbage.collect_rarely():  # as a dump does, for plain steps too
        step()
        capture()
        pieces = [path.read_bytes() for path in files_of(place)]
        runs = {
            "plain": step,
            "captured": capture,
            "captured, synced": lambda: sync(capture()),
            "write": lambda: write(copy, pieces),
            "write, synced": lambda: sync(write(copy, pieces)),
        }
        seconds = race(runs, rounds, before=clean)
    clean("")
    added = {name: max(seconds[name] - seconds["plain"], 1e-9) for name in ("captured", "captured, synced")}
    return {
        **seconds,
        "bytes": sum(map(len, pieces)),
        "share": seconds["write"] / added["captured"],
        "share_synced": seconds["write, synced"] / added["captured, synced"],
    }


def write(path: Path, pieces: Iterable[bytes]) -> list[Path]:
    """Write bytes as one file, and return it."""
    with path.open("wb", buffering=0) as file:
        for piece in pieces:
            file.write(piece)
    return [path]


def sync(paths: Iterable[Path]) -> None:
    """Wait until the disk has the files."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())


def measure(folder: Path, *, quick: bool) -> dict[str, Any]:
    """Return everything measured.

    Raises:
        SystemExit: The folder lies in memory.
    """
    cold = compared(folder / "dumps", 1.0 if quick else 4.0, 3)
    if cold["left"] > _IN_MEMORY:
        raise SystemExit(f"{cold['left']:.0%} of {folder} stays in memory: name a folder on a disk, --folder DIR")
    shutil.rmtree(folder / "dumps")
    return {"compare": cold, "capture": captured(folder, _ENCODER, 3 if quick else 5)}


def headline(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the ratios alone."""
    cold, capture = found["compare"], found["capture"]
    return {
        "cold_compare_share_of_read": cold["share"],
        "capture_share_of_write": capture["share"],
        "capture_share_of_synced_write": capture["share_synced"],
        "captured_step": capture["captured"] / capture["plain"],
        "captured_step_synced": capture["captured, synced"] / capture["plain"],
    }


def report(found: Mapping[str, Any]) -> str:
    """Return all tables as Markdown."""
    parts = {
        "Ratios": [{"ratio": name, "measured": value} for name, value in headline(found).items()],
        "Two dumps, from a disk": _rows(found["compare"]),
        "A captured step, to a disk": _rows(found["capture"]),
    }
    return "\n".join(f"### {title}\n\n{tables.markdown(rows)}" for title, rows in parts.items())


def _rows(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    timed = {name: value for name, value in found.items() if name not in {"bytes", "left", "share", "share_synced"}}
    rate = {name: None if name == "plain" else found["bytes"] / value / 1e9 for name, value in timed.items()}
    return [{"what": name, "seconds": value, "GB/s": rate[name]} for name, value in timed.items()]


def main() -> None:
    """Measure, and print or write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the ratios as one object")
    parser.add_argument("--quick", action="store_true", help="finish within 5 minutes")
    parser.add_argument("--folder", default=".", help="a folder on the disk in question")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write disk.md and disk.json there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as place:
        found = measure(Path(place), quick=given.quick)
    if given.write:
        given.write.mkdir(parents=True, exist_ok=True)
        (given.write / "disk.md").write_text(report(found), encoding="utf-8")
        (given.write / "disk.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write((json.dumps(headline(found)) if given.json else report(found)) + "\n")


if __name__ == "__main__":
    main()
