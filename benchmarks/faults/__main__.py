"""Runs the benchmark of known faults.

    python -m benchmarks.faults --subset                    under two minutes: three hosts, some faults and controls, float32
    python -m benchmarks.faults                             everything that is installed, three seeds, three element types
    python -m benchmarks.faults --seeds 0-9 --dtypes bfloat16 --hosts minilm,decoder
    python -m benchmarks.faults --groups control --seeds 1-9 --one-type   each kind and seed once, in a type that is drawn
    python -m benchmarks.faults --case mask_dropped-decoder-float32-0     one case, with all that was said of it
    python -m benchmarks.faults --peer ...                  the same cases under msprobe, for the same table
    python -m benchmarks.faults --table                     only the tables of what is there
    python -m benchmarks.faults --table --write docs/benchmarks --fill docs/faults.md   and write them there

Each finished case is a line of ``results.jsonl`` in ``--folder``; a run that was stopped goes on where it was. ``table.md`` and
``table.json`` are written at the end. Without ``diffusers`` the hosts ``unet`` and ``dit`` are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import hashlib
import itertools
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from precflow.agent.contract import NOISE_FILE
from precflow.agent.session import environment

from . import baselines, cases, diagnosis, document, hosts, margins, peer, running, score, tables
from .cases import Case
from .faults import KINDS, kinds_of

_ROOT = Path(__file__).parents[2]
_LINES = ("precflow/judgement/lines.py", "conf/standard/calibrated.yaml")  # all that is drawn between rounding and a fault
SUBSET_HOSTS = ("text_encoder", "minilm", "decoder")
SUBSET_FAULTS = (
    *("tf32_all", "mask_off_by_one", "softmax_in_bfloat16", "layer_norm_epsilon", "gelu_of_other_form"),
    *("output_scaled", "backward_scaled", "one_weight_differs"),
)
SUBSET_CONTROLS = ("chunk8r+vec2", "k16_trunc", "float64", "k16+vec2+one_pass", "fused_norm_on_target")


def plan(options: argparse.Namespace) -> list[Case]:
    """Return the cases that were asked for."""
    there = hosts.available()
    chosen = [name for name in (options.hosts or (SUBSET_HOSTS if options.subset else list(there))) if name in there]
    dtypes = options.dtypes or (["float32"] if options.subset else list(cases.DTYPES))
    seeds = options.seeds or ([0] if options.subset else [0, 1, 2])
    kinds = kinds_of(options.faults or (SUBSET_FAULTS if options.subset else ()))
    names = options.controls or (SUBSET_CONTROLS if options.subset else tuple(cases.CONTROLS))
    groups: dict[str, Iterator[Case]] = {
        "single": cases.singles(kinds, chosen, dtypes, seeds),
        "several": itertools.chain(
            cases.several(2, chosen, dtypes, seeds),
            cases.several(3, chosen, dtypes, [] if options.subset else seeds),
        ),
        "control": cases.controls(names, chosen, dtypes, seeds),
    }
    asked = [case for name, group in groups.items() if name in options.groups for case in group]
    return cases.draw_one_each(asked) if options.one_type else asked


def run(case: Case, folder: Path, kept: Path) -> dict[str, Any]:
    """Run one case and return its line of results.

    Args:
        case: The case.
        folder: For dumps, of which those of the reference serve later cases.
        kept: For the noise floors of references, which serve later runs too.
    """
    reference, target = folder / "reference" / running.reference_name(case), folder / "target"
    floors = kept / "floors" / reference.name
    running.run_reference(case, reference)
    began = time.perf_counter()
    is_new = not (floors / NOISE_FILE).exists()
    if is_new:
        running.run_disturbed(case, folder / "disturbed")
        diagnosis.keep_floors(reference, folder / "disturbed", floors)
    measuring = time.perf_counter() - began
    ran = running.run_target(case, target)
    said = diagnosis.diagnose(reference, target, folder / "stages", floors)
    faults = [
        {
            "kind": fault.kind,
            "calls": [list(call) for call in fault.calls],
            "size": fault.size,
            "effects": [effects[call].plain() for call in (fault.calls or effects) if call in effects],
        }
        for fault, effects in zip(case.faults, ran.effects, strict=True)
    ]
    line: dict[str, Any] = {
        **{name: getattr(case, name) for name in ("name", "group", "host", "dtype", "chip", "seed", "backward")},
        "control": case.name.split("-")[1] if case.group == "control" else "",
        "faults": faults,
        "said": diagnosis.plain(said),
        "floor_seconds": measuring if is_new else None,
        "bytes": sum(path.stat().st_size for side in (reference, target) for path in side.rglob("*") if path.is_file()),
    }
    named = {"precflow": said.named, **baselines.name_all(reference, target)}
    return {**line, "named": {method: [list(one) for one in names] for method, names in named.items()}}


def run_safely(case: Case, folder: Path, kept: Path) -> dict[str, Any]:
    """Run one case as :func:`run` does; an error of the product is a result too."""
    try:
        return run(case, folder, kept)
    except Exception:  # noqa: BLE001  whatever it is, the next case goes on
        about = {name: getattr(case, name) for name in ("name", "group", "dtype", "seed")}
        return {**about, "crash": traceback.format_exc()}


def run_all(planned: Sequence[Case], folder: Path) -> list[dict[str, Any]]:
    """Run the cases that have no result yet, and return the results of all."""
    results = folder / "results.jsonl"
    done = {line["name"]: line for line in read(results) if "crash" not in line}
    ended = not results.exists() or results.read_text()[-1:] in {"", "\n"}
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    _spare_time()
    with tempfile.TemporaryDirectory(dir=memory) as place, results.open("a") as out:
        os.chdir(place)  # a run writes folders where it stands
        for number, case in enumerate(planned):
            if case.name in done:
                continue
            began = time.perf_counter()
            line = run_safely(case, Path(place), folder)
            done[case.name] = line
            out.write(f"{'' if ended else chr(10)}{json.dumps(line)}\n")
            ended = True
            out.flush()
            print(f"{number + 1}/{len(planned)} {summary(line)} {time.perf_counter() - began:.1f} s", file=sys.stderr)
        os.chdir(folder)
    return [done[case.name] for case in planned]


def run_peer(planned: Sequence[Case], folder: Path) -> None:
    """Run the cases under msprobe that have no line in ``peer.jsonl`` yet."""
    results = folder / "peer.jsonl"
    done = frozenset(line["name"] for line in read(results))
    with tempfile.TemporaryDirectory() as place, results.open("a") as out:
        for line in peer.run_all(planned, done, Path(place)):
            out.write(json.dumps(line) + "\n")
            out.flush()
            print(line, file=sys.stderr)


def add_peer(lines: Sequence[dict[str, Any]], folder: Path) -> None:
    """Add what msprobe named to the cases that it ran."""
    named = {line["name"]: line["named"] for line in read(folder / "peer.jsonl") if "named" in line}
    for line in lines:
        line["named"].update(named.get(line["name"], {}))


def _spare_time() -> None:
    """Do once what every capture and diagnosis of a process would do again: list packages, look through all objects."""
    environment.list_packages = functools.cache(environment.list_packages)
    gc.collect()
    gc.freeze()


def read(results: Path) -> list[dict[str, Any]]:
    """Return the finished lines; the last one may be cut where a run was stopped."""
    lines = []
    for text in results.read_text().splitlines() if results.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            lines.append(json.loads(text))
    return lines


def summary(line: dict[str, Any]) -> str:
    """Return a case in one line: what it is, and what was said of it."""
    if "crash" in line:
        return f"{line['name']} CRASH {line['crash'].splitlines()[-1]}"
    own = score.score(line, line["named"]["precflow"])
    effect = "" if line["group"] == "control" else f" {score.band(line)}"
    found = "found" if score.detected(line) else "silent"
    rules = ",".join(f"{rule}:{sure}" for rule, sure, _ in line["said"]["findings"][:3])
    return f"{line['name']}{effect} {found} true {own['true']} of {own['named']} named, {rules or 'no finding'}"


def rules_known() -> frozenset[str]:
    """Return the ids of the rules that this version ships."""
    return frozenset(path.name.split("_")[0] for path in (_ROOT / "conf" / "rule").glob("*.yaml"))


def write(lines: Sequence[dict[str, Any]], folder: Path) -> str:
    """Write ``table.md`` and ``table.json``, and return the tables."""
    frozen = ", ".join(f"{name} {hashlib.blake2b((_ROOT / name).read_bytes(), digest_size=8).hexdigest()}" for name in _LINES)
    good = [line for line in lines if "crash" not in line]
    add_peer(good, folder)
    score.add_scores(good)
    crashes = [line["name"] for line in lines if "crash" in line]
    text = tables.whole(lines, rules_known()) + f"\nFrozen lines: {frozen}. Crashes: {', '.join(crashes) or 'none'}.\n"
    for name, table in document.make(lines, rules_known()).items():
        text += f"\n{name.capitalize()}:\n\n{table}\n"
    (folder / "table.md").write_text(text)
    (folder / "table.json").write_text(json.dumps({"lines": frozen, "cases": lines}, indent=1) + "\n")
    return text


def _numbers(text: str) -> list[int]:
    """Read ``0-9``, ``0,3`` or ``1-5,8``."""
    numbers = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        numbers += range(int(first), int(last) + 1) if dash else [int(part)]
    return numbers


def _words(text: str) -> list[str]:
    return text.split(",")


def main() -> None:
    """Run what was asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subset", action="store_true", help="under two minutes, for continuous integration")
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmark_faults"), help="where results are kept")
    parser.add_argument("--seeds", type=_numbers, help="0-9, 0,3 or 1-5,8: other places, sizes and chips")
    for name, known in (("hosts", hosts.HOSTS), ("dtypes", cases.DTYPES), ("faults", KINDS), ("controls", cases.CONTROLS)):
        parser.add_argument(f"--{name}", type=_words, help=f"some of: {', '.join(known)}")
    parser.add_argument("--one-type", action="store_true", help="run each kind and seed in one element type, which is drawn")
    parser.add_argument("--groups", type=_words, default=["single", "several", "control"], help="single, several, control")
    parser.add_argument("--case", help="run one case by its name and print all of it")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write faults.md and faults.svg there too")
    parser.add_argument("--fill", type=Path, metavar="PAGE", help="replace the tables of this page, such as docs/faults.md")
    parser.add_argument("--peer", action="store_true", help="run the same cases under msprobe, which has to be installed here")
    parser.add_argument("--table", action="store_true", help="run nothing, make the tables of what is there")
    options = parser.parse_args()
    options.folder = options.folder.absolute()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.table:
        _print(read(options.folder / "results.jsonl"), options)
    elif options.peer:
        run_peer(plan(options), options.folder)
    elif options.case:
        _run_one(options)
    else:
        _print(run_all(plan(options), options.folder), options)


def _print(lines: Sequence[dict[str, Any]], options: argparse.Namespace) -> None:
    """Print the tables, and write them where it was asked for."""
    text = write(lines, options.folder)
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        (options.write / "faults.md").write_text(text)
        (options.write / "faults.svg").write_text(margins.draw(lines))
    print(text)
    if options.fill:
        options.fill.write_text(document.fill(options.fill.read_text(), document.make(lines, rules_known())))


def _run_one(options: argparse.Namespace) -> None:
    """Run one case and keep its dumps, to be looked at with the command line."""
    try:
        case = cases.by_name(options.case)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    folder = options.folder / "case" / case.name
    folder.mkdir(parents=True, exist_ok=True)
    line = run(case, folder, options.folder)
    print(json.dumps(line, indent=1))
    print(summary(line), file=sys.stderr)
    print(f"precflow +recipe=compare_dumps reference.dump={folder}/reference/* target.dump={folder}/target", file=sys.stderr)


if __name__ == "__main__":
    main()
