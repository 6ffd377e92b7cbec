"""Stage ``compare``: measures every pair of records. It applies no limit, so no dump is read again when a limit changes."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from precflow.agent.contract import FILLS
from precflow.comparison.compare import compare
from precflow.comparison.executors.choose import Executor, choose
from precflow.comparison.executors.threads import Threads
from precflow.comparison.fused.summary import SUMMARY_VERSION
from precflow.comparison.measure import Measure, mark_altered_unreadable, merge_passes
from precflow.comparison.user_metrics import DeclaredMetrics
from precflow.config.schema import plain
from precflow.config.trust import TARGET
from precflow.dumps.views.paired import changes_tensors, see_through_rules
from precflow.environment import code_digests
from precflow.stages.artifacts import read_lines, read_once, write_lines
from precflow.stages.determinism import read_reproduction
from precflow.stages.dump import list_written, open_dump
from precflow.stages.job import Job, Stage, StageResult
from precflow.stages.second_pass.passes import second

MEASURES_FILE = "measures.jsonl"
_BATCHES = "batches"  # folder of finished batches of pairs, only there while the stage works


def read_measures(folder: Path) -> list[Measure]:
    """Return every measure, in order of the reference's graph."""
    return read_once(_read_measures, folder / MEASURES_FILE)


def _read_measures(path: Path) -> list[Measure]:
    return read_lines(path, Measure)


def _declare(job: Job) -> Mapping[str, Any]:
    metrics = plain(job.config.metrics)
    packages = {str(declared[TARGET]).partition(".")[0] for declared in metrics.values()}
    code = code_digests.digest_packages(packages, job.import_paths, locate_installed(packages), written=list_written(job))
    fills, pairing = plain(job.config.tolerance.fills), plain(job.config.pairing)
    # What a recipe does not set stays out, so that the key of a recipe without own metrics or fills is not changed by them.
    return {
        "summary": SUMMARY_VERSION,
        **({"fills": fills} if fills else {}),
        **({"pairing": pairing} if job.config.pairing.rules else {}),
        **({"metrics": metrics, "code": code} if metrics else {}),
    }


def locate_installed(packages: Iterable[str]) -> dict[str, list[str]]:
    """Return ``package -> files or folders`` of the packages that this interpreter has; they win over the user's folders."""
    specs = {name: PathFinder.find_spec(name) for name in packages}
    return {
        name: [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.origin else [])]
        for name, spec in specs.items()
        if spec
    }


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    if second("dump.reference") in needs:
        return _measure_anew(job, folder, needs)
    blocked = bool(read_reproduction(needs["determinism"]).blockers)
    sides = [needs[f"dump.{side}"] for side in ("reference", "target")]
    measures = [] if blocked else _compare(job, folder, sides, job.config.environment.same)
    write_lines(folder / MEASURES_FILE, measures)
    paired = sum(measure.join == "paired" for measure in measures)
    note = "no tensor was compared" if blocked else f"{paired} of {len(measures)} records paired"
    return StageResult(note=note, damaged=_has_unreadable(measures))


def _has_unreadable(measures: Iterable[Measure]) -> bool:
    return any(measure.join == "unreadable" for measure in measures)


def _compare(job: Job, folder: Path, sides: Sequence[Path], same: Sequence[str]) -> list[Measure]:
    """Compare two dumps. Batches that a killed run has finished are in the folder already and are not compared again.

    Args:
        job: The run.
        folder: Of this stage.
        sides: Folders of the two dumps.
        same: What has to be the same; a second pass asks for nothing, because the first has told where other data begin.
    """
    declared = DeclaredMetrics(plain(job.config.metrics), job.trusted, job.import_paths)
    rules = job.config.pairing.rules
    reference, target = see_through_rules(open_dump(sides[0]), open_dump(sides[1]), rules, same)
    executor = choose_executor(job, declared)
    measures = compare(
        reference,
        target,
        executor=executor,
        own=declared.load(),
        kept=folder / _BATCHES,
        constants=(*FILLS, *job.config.tolerance.fills),
        advance=lambda done, total: job.advance(done, total, "tensors"),
    )
    shutil.rmtree(folder / _BATCHES, ignore_errors=True)
    return mark_altered_unreadable(measures, reference, target)


def choose_executor(job: Job, declared: DeclaredMetrics) -> Executor:
    """Return who reads the tensors: threads of this process, wherever a pairing rule changes tensors.

    Workers on other machines open the dumps by their paths, and know nothing of tensors that a rule makes.
    """
    is_local = any(changes_tensors(rule) or rule.reference_slices for rule in job.config.pairing.rules)
    return Threads(job.config.executor.threads) if is_local else choose(job.config.executor, declared)


def _measure_anew(job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    """Measure the records of the second pass, and let them replace the estimates of the first pass."""
    first = read_measures(needs["compare"])
    blocked = bool(read_reproduction(needs[second("determinism")]).blockers)
    sides = [needs[second(f"dump.{side}")] for side in ("reference", "target")]
    measures = first if blocked else merge_passes(first, _compare(job, folder, sides, ()))
    write_lines(folder / MEASURES_FILE, measures)
    # A measure that was not replaced is still the same object.
    renewed = sum(measure is not before for measure, before in zip(measures, first, strict=True))
    note = "no tensor was compared" if blocked else f"{renewed} of {len(measures)} records measured anew"
    return StageResult(note=note, damaged=_has_unreadable(measures))


STAGE = Stage(name="compare", place=70, reads=("dump", "determinism"), declare=_declare, make=_make, repeats=True, resumes=True)
