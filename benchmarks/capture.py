"""What capture costs: a captured step against the plain step, ours and the peer's around the same work in the same run.

    python benchmarks/capture.py            all, some 15 minutes
    python benchmarks/capture.py --quick    within 5 minutes
    python benchmarks/capture.py --json     one object on stdout, of ratios within this run
    python benchmarks/capture.py --write docs/benchmarks

The work is a CLIP text encoder of 63 M parameters (12 layers, 512 wide, batch of 4 x 77 tokens, float32, two threads), forward
and backward, and a model of many small operators. Each case runs in a process of its own, ours and the peer's by turns; inside
it plain and captured steps alternate, and its ratio is the median of the captured step against the plain ones before and after.
Ours, plain and captured, run with Python's garbage collector spared, as a dump runs its steps; the peer's run as they come.
Beside them a bare recorder shows what no recorder saves: hooks at modules that take three reductions of each new tensor, or
write its bytes into one file, and keep nothing. Dumps go to ``--folder`` (a tmpfs by default). The peer is msprobe
(``mindstudio-probe``), in a virtual environment made for it, or in the one that ``--peer`` names.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from capturing.curves import curve
from capturing.work import Case
from comparing import peer, tables

_HERE = Path(__file__).parent
_PEERS_DETAIL = {"statistics": "statistics", "tensors": "tensor"}
_STEP_CASES = (
    ("statistics_module", "statistics", "module"),
    ("statistics_module_api", "statistics", "module_api"),
    ("sketch_module", "sketch", "module"),
    ("tensors_module", "tensors", "module"),
)
_SHOWN = ("ratio", "ratio_of_best", "plain", "captured", "files", "bytes")


def run(python: Path, script: str, case: Case) -> dict[str, Any]:
    """Run one case in a process of its own and return what its last line says.

    Raises:
        RuntimeError: It failed; with the end of what it said.
    """
    place = Path(case.folder) / script
    place.mkdir(parents=True)
    words = json.dumps(case._replace(folder=str(place))._asdict())
    done = subprocess.run([python, _HERE / "capturing" / f"{script}.py", words], check=False, capture_output=True, text=True)
    shutil.rmtree(place)
    if done.returncode:
        raise RuntimeError(f"{script} {words} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def steps(python: Path, folder: Path, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield each case of the captured step, with the peer's figures where it has that detail."""
    for name, detail, level in _STEP_CASES:
        case = Case("encoder", detail, level, str(folder), rounds)
        own = run(Path(sys.executable), "ours", case)
        other = _PEERS_DETAIL.get(detail)
        theirs = run(python, "peer", case._replace(detail=other)) if other else {}
        yield {"case": name, "ours": own, "peer": theirs}


def least(folder: Path, rounds: int) -> dict[str, float]:
    """Return the captured step of the bare recorder against the plain one, by detail."""
    cases = {detail: Case("encoder", detail, "module", str(folder), rounds) for detail in ("statistics", "tensors")}
    return {detail: float(run(Path(sys.executable), "bare", case)["ratio"]) for detail, case in cases.items()}


def small_calls(python: Path, folder: Path, counts: tuple[int, ...], peers: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return the microseconds that a recorded call adds, by the number of calls in a step."""
    rows = []
    for calls in counts:
        case = Case("small", "statistics", "api", str(folder), 3, calls)
        own = run(Path(sys.executable), "ours", case)
        row = {"calls": calls, "ours": _added(own, calls), "peer": None}
        if calls in peers:
            row["peer"] = _added(run(python, "peer", case._replace(rounds=1)), calls)
        rows.append(row)
    return rows


def _added(result: dict[str, Any], calls: int) -> float:
    return float((result["captured"] - result["plain"]) / calls * 1e6)


def measure(python: Path, folder: Path, *, quick: bool) -> dict[str, Any]:
    """Return everything that is printed, ours and the peer's."""
    cases = {case["case"]: case for case in steps(python, folder, 3 if quick else 9)}
    counts = (1_000, 16_000) if quick else (1_000, 4_000, 16_000, 64_000)
    small = small_calls(python, folder, counts, (1_000,) if quick else (1_000, 4_000, 16_000))
    tensors = cases["tensors_module"]
    return {
        **{name: case["ours"]["ratio"] for name, case in cases.items()},
        "files_per_step": tensors["ours"]["files"],
        "bytes_vs_peer": tensors["ours"]["bytes"] / tensors["peer"]["bytes"],
        "microseconds_per_small_call": small[0]["ours"],
        "small_call_growth": small[-1]["ours"] / small[0]["ours"],
        "peer": {
            **{name: case["peer"]["ratio"] for name, case in cases.items() if case["peer"]},
            "files_per_step": tensors["peer"]["files"],
            "microseconds_per_small_call": small[0]["peer"],
        },
        "least": least(folder, 3 if quick else 9),
        "cases": cases,
        "small_calls": small,
    }


def report(found: dict[str, Any]) -> str:
    """Return all tables as Markdown."""
    promised = [{"what": name, "measured": value, "peer": found["peer"].get(name)} for name, value in headline(found).items()]
    cases = [
        {"case": name, "tool": tool, **{key: case[tool].get(key) for key in _SHOWN}}
        for name, case in found["cases"].items()
        for tool in ("ours", "peer")
        if case[tool]
    ]
    small = [
        {"calls in a step": row["calls"], "ours, us a call": row["ours"], "peer": row["peer"]} for row in found["small_calls"]
    ]
    bare = [{"kept": detail, "captured step / plain step": ratio} for detail, ratio in found["least"].items()]
    parts = {"Promised": promised, "A captured step against the plain one": cases, "A bare recorder, modules": bare}
    parts["Many small calls, statistics"] = small
    return "\n".join(f"### {title}\n\n{tables.markdown(rows)}" for title, rows in parts.items())


def headline(found: dict[str, Any]) -> dict[str, Any]:
    """Return the promised figures alone."""
    return {name: value for name, value in found.items() if name not in {"peer", "least", "cases", "small_calls"}}


def picture(found: dict[str, Any]) -> str:
    """Return the cost of a recorded call over the number of calls as SVG."""
    series = {
        tool: [(row["calls"], row[tool]) for row in found["small_calls"] if row[tool] is not None] for tool in ("ours", "peer")
    }
    return curve("What a recorded call adds to a step", "calls in a step", "microseconds a call", series)


def main() -> None:
    """Measure, and print or write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as one object")
    parser.add_argument("--quick", action="store_true", help="finish within 5 minutes")
    parser.add_argument("--peer", default="", metavar="PYTHON", help="a Python with mindstudio-probe 26.2.0 and transformers")
    parser.add_argument("--folder", default="/dev/shm" if Path("/dev/shm").is_dir() else None, help="where dumps go")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write capture.md, capture.json and capture.svg there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as place, tempfile.TemporaryDirectory() as environment:
        python = peer.interpreter(given.peer, Path(environment), "transformers")
        found = measure(python, Path(place), quick=given.quick)
    if given.write:
        given.write.mkdir(parents=True, exist_ok=True)
        (given.write / "capture.md").write_text(report(found), encoding="utf-8")
        (given.write / "capture.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        (given.write / "capture.svg").write_text(picture(found), encoding="utf-8")
    print(json.dumps({**headline(found), "peer": found["peer"], "least": found["least"]}) if given.json else report(found))


if __name__ == "__main__":
    main()
