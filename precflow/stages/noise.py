"""Stage ``noise.reference``: how far rounding alone carries, measured on the reference, for every record.

The agent of the reference records its workload again with disturbances as small as rounding, in the target's element type. The
largest difference of each record is its noise floor. The floors are all that the store keeps: they are small, travel to the
machine of the target with the reference's dump, and do not depend on any limit.

A script is run again from its beginning to the last recorded step, once for each disturbance. That takes time, so it is done
where fixed limits are known to be wrong: if the reference computed in 16 bits anywhere, or if its optimizer divides by the
gradient's size. Adam makes whole steps of gradients that are rounding alone, such as those of the keys' part of an attention's
joint bias, though the gradient of the whole bias agrees.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from precflow import keys
from precflow.agent.contract import FILLS, HEADER_FILE, NOISE_FILE, NOISES, OPTIMIZER
from precflow.comparison.compare import compare
from precflow.comparison.executors.choose import choose
from precflow.comparison.fused.summary import SUMMARY_VERSION
from precflow.comparison.measure import Measure
from precflow.comparison.user_metrics import DeclaredMetrics
from precflow.config.schema import RunConfig
from precflow.config.sections import standards
from precflow.diagnosis.choices import find_dependent
from precflow.dumps.dtypes import coarsest, float_facts
from precflow.dumps.formats import read_dump
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call
from precflow.dumps.requests import describe_noise, gives_choices, noise_request
from precflow.judgement import lines
from precflow.judgement.floors import Floor, gather_floors
from precflow.stages import dump
from precflow.stages.artifacts import read_lines, read_once, read_plain, write_lines, write_value
from precflow.stages.dump import open_dump
from precflow.stages.job import Job, Stage, StageResult, ask_agent, is_chosen

KIND = "noise"
NAME = f"{KIND}.reference"
FLOORS_FILE = "floors.jsonl"
_TICK = 0.2  # seconds between two looks whether a disturbed run is complete
_FOLLOWING = frozenset({"'SGD'"})  # optimizers whose step is as accurate as their gradient; all others divide by its size


def is_planned(config: RunConfig) -> bool:
    """Tell whether a run measures the noise floor: a standard asks for it, and the reference's workload is run, not given."""
    return is_chosen(config, KIND) and not config.reference.dump and standards.are_measured(config.tolerance.standards)


def read_floors(needs: Mapping[str, Path]) -> Mapping[str, Floor]:
    """Return identity text -> floor; empty if the floors could not be measured, or no stage was to measure them."""
    return read_once(_read_floors, needs[NAME] / FLOORS_FILE) if NAME in needs else {}


def _read_floors(path: Path) -> Mapping[str, Floor]:
    return {floor.record: floor for floor in read_lines(path, Floor)}


def explain_missing(folder: Path) -> str:
    """Return why no floors were measured, ``""`` if they were."""
    facts = read_plain(folder / NOISE_FILE)
    failed = f"the disturbed runs of the reference failed ({facts['problem']})" if facts["problem"] else ""
    return str(facts.get("needless", "")) or failed


def _dtype(job: Job) -> str:
    """Return the element type of the target; a dump that is given says in which one it was made."""
    given = job.config.target.dump
    of_dump = read_dump(Path(given).expanduser(), allow_unsealed=True).header.dtype if given else ""
    return of_dump or job.config.target.dtype


def _declare(side: str, job: Job) -> Mapping[str, Any]:
    del side  # always the reference
    plain = describe_noise(job.config, _dtype(job))
    return {**plain, "workload": dump.declare_workload(plain["workload"]), "summary": SUMMARY_VERSION}


def _make(side: str, job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    request = noise_request(
        job.config,
        folder,
        dtype=_dtype(job),
        ci=job.ci,
        declared_key=keys.digest(_declare(side, job)),
        code=job.user_code,
    )
    reference = open_dump(needs["dump.reference"])
    measured: Mapping[str, list[Measure]] = {}
    if job.config.workload.script:
        _run_script(job, request, folder, reference)
    else:
        with dump.hand_over_choices(folder, needs["dump.reference"] if gives_choices(job.config) else None) as choices:
            measured = _run_model(job, {**request, **choices}, folder, reference)
    facts = read_plain(folder / NOISE_FILE)
    if why := facts.get("needless") or facts["problem"]:
        write_lines(folder / FLOORS_FILE, [])
        return StageResult(note=f"not measured: {why}")
    floors = reduce_to_floors(job, reference, folder, facts["noises"], measured)
    write_lines(folder / FLOORS_FILE, floors)
    sizes = sorted(floor.metrics["relative_l2"] for floor in floors if "relative_l2" in floor.metrics)
    middle = f", half of them below {sizes[len(sizes) // 2]:.2g} (relative_l2)" if sizes else ""
    return StageResult(note=f"floors of {len(floors)} records{middle}")


def _run_model(job: Job, request: Mapping[str, Any], folder: Path, reference: Dump) -> Mapping[str, list[Measure]]:
    """Let the agent make the disturbed runs, and compare each but the last while it makes the next one.

    Returns:
        The measures of the runs that were compared meanwhile, by disturbance; their dumps are removed. ``{}`` if the workload
        does not run in this way.
    """
    ended, abandoned = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="noise") as beside:
        comparing = beside.submit(_compare_complete, job, reference, folder, ended, abandoned)
        try:
            ask_agent(job, "reference", request, folder)
        except BaseException:
            abandoned.set()  # a comparison of large dumps takes minutes, and whoever presses Ctrl-C does not wait for it
            raise
        finally:
            ended.set()
    return {} if read_plain(folder / NOISE_FILE)["problem"] else comparing.result()


def _compare_complete(
    job: Job, reference: Dump, folder: Path, ended: threading.Event, abandoned: threading.Event
) -> dict[str, list[Measure]]:
    """Compare disturbed runs as they become complete, until the last one is being made or the agent has ended.

    A run is complete when it is sealed and the folder of the next one is there: one that is made again is sealed twice.

    Raises:
        CancelledError: The run was ``abandoned`` meanwhile.
    """

    def check(*_: int) -> None:
        """Stop a comparison that nobody waits for any more."""
        if abandoned.is_set():
            raise CancelledError

    measured: dict[str, list[Measure]] = {}
    for name, following in pairwise(NOISES):
        while not ((folder / following).is_dir() and (folder / name / HEADER_FILE).is_file()):
            if ended.wait(_TICK):
                return measured
        measured[name] = _compare_disturbed(job, reference, folder / name, check)
    return measured


def _run_script(job: Job, request: Mapping[str, Any], folder: Path, reference: Dump) -> None:
    """Run a script once for each disturbance, and write what became of them as the agent does for other workloads."""
    facts: dict[str, Any] = {"problem": "", "noises": list(NOISES), "seconds": {}}
    if why := _explain_needless(reference.calls()):
        write_value(folder / NOISE_FILE, {**facts, "noises": [], "needless": why})
        return
    with files_put_back(job.config.workload.files, folder / "before"):
        for name in NOISES:
            job.say(f"running the script with other {name}")
            output = folder / name
            output.mkdir(exist_ok=True)
            ask_agent(job, "reference", {**request, "noise": name, "output": str(output.resolve())}, output)
            facts["problem"] = read_plain(output / NOISE_FILE)["problem"]
            if facts["problem"]:
                break
    if facts["problem"]:
        for name in NOISES:
            shutil.rmtree(folder / name, ignore_errors=True)
    write_value(folder / NOISE_FILE, facts)


def _explain_needless(calls: Iterable[Call]) -> str:
    """Return why fixed limits suffice for what a script recorded, in words; ``""`` if they do not."""
    types, optimizers = set[str](), set[str]()
    for call in calls:
        types |= {record.dtype for record in call.outputs}
        optimizers |= {call.arguments.get("optimizer", "")} if call.phase == OPTIMIZER else set()
    dtype = coarsest(types)
    if (dtype and float_facts(dtype).digits < lines.FINE_DIGITS) or optimizers - _FOLLOWING:
        return ""
    return f"the script computes in {dtype or 'no floating point type'} with no optimizer but SGD, where it is not measured"


@contextmanager
def files_put_back(patterns: Sequence[str], kept: Path) -> Iterator[None]:
    """Leave the logs that a script writes as they were before: those of a disturbed run are nobody's."""
    files = [path for pattern in patterns for path in Path().glob(pattern) if path.is_file()]
    kept.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(files):
        shutil.copy2(path, kept / str(number))
    try:
        yield
    finally:
        for number, path in enumerate(files):
            shutil.copy2(kept / str(number), path)
        shutil.rmtree(kept)


def reduce_to_floors(
    job: Job, reference: Dump, folder: Path, noises: Iterable[str], measured: Mapping[str, list[Measure]] | None = None
) -> list[Floor]:
    """Compare disturbed runs with the reference, without the user's own metrics, and return the floor of every record.

    Args:
        job: Says how dumps are compared.
        reference: The run without a disturbance.
        folder: Has a dump for each disturbance that is not in ``measured``, in a subfolder of its name, which is removed.
        noises: Names of the disturbances.
        measured: Measures of runs that were compared already, by disturbance.
    """
    found = dict(measured or {})
    for name in noises:
        if name not in found:
            job.say(f"comparing the run with other {name}")
            found[name] = _compare_disturbed(
                job, reference, folder / name, lambda done, total: job.advance(done, total, "tensors")
            )
    return gather_floors(reference, {name: found[name] for name in noises})


def _compare_disturbed(
    job: Job, reference: Dump, path: Path, advance: Callable[[int, int], None] = lambda *_: None
) -> list[Measure]:
    """Return the measures of a disturbed run, without the records that depend on another choice, and remove its dump."""
    executor = choose(job.config.executor, DeclaredMetrics({}, job.trusted, job.import_paths))
    disturbed = read_dump(path)
    constants = (*FILLS, *job.config.tolerance.fills)
    measures = compare(reference, disturbed, executor=executor, constants=constants, advance=advance)
    # Where the reference still chooses differently under noise, the floor would be as large as the values.
    rerouted = find_dependent(reference, disturbed, measures)
    shutil.rmtree(path)
    return [measure for measure in measures if measure.record not in rerouted]


STAGE = Stage(
    name="noise",
    place=40,
    reads=("environment", "dump"),
    declare=_declare,
    make=_make,
    parts=lambda config: ("reference",) if is_planned(config) else (),
    of_side=True,
    # 2: disturbed runs are given the choices of a plain one. 3: weights of a step share the largest change. 4: and its readers.
    # 5: and what goes back through it. 6: single numbers have three times the floor. 7: products of 16-bit types are of float32
    # 8: accumulators in float32 round towards zero. 9: choices that no record shows are not kept. 10: worst
    # rows of gradients, and of tensors with rows of zeros. 11: nor is the order inside quantile and msort. 12: convolutions by
    # transformed tiles
    version=12,
    locate=dump.locate,
)
