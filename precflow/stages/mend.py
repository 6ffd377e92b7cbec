"""Stage ``mend``: runs parts that are to blame in a wider type, unfused, or on the CPU, and tells what passes at which price.

Each part is first tried on the reference's inputs, then the smallest set is looked for inside it, and last all sets run freely:
the model's output is compared with the reference and held to the limits of the run, and every set is timed without capture, in
turn with the target as it is.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from precflow.agent.contract import FILLS, FORWARD, OUTPUT, ROOT_MODULE, UNCHANGED, WHATIF_FILE, parse_identity
from precflow.comparison.compare import compare
from precflow.comparison.measure import Measure
from precflow.comparison.user_metrics import DeclaredMetrics
from precflow.diagnosis.chain import FINE, TO_BLAME, find_worst, judge_parts, write_inputs
from precflow.diagnosis.mend import (
    FAILS,
    NOT_RUN,
    ON_CPU,
    PASSES,
    UNFUSED,
    Mend,
    Raised,
    describe_mends,
    describe_raised,
    join_ways,
    list_inside,
    list_sets,
    list_ways,
    narrow_part,
)
from precflow.diagnosis.price import ROUNDS, compare_times
from precflow.dumps.formats import read_dump
from precflow.dumps.protocol import Dump
from precflow.dumps.requests import dump_request
from precflow.errors import SideError
from precflow.judgement.floors import Floor
from precflow.judgement.verdicts import MISALIGNED_STATUSES, Judged
from precflow.stages import introduced, task_metrics
from precflow.stages.artifacts import read_lines, read_plain, write_lines
from precflow.stages.chain import FLOORS_FILE, INPUTS_FILE, is_planned, judge_forced, of_parts, read_parts
from precflow.stages.chain import NAME as CHAIN
from precflow.stages.compare import choose_executor, read_measures
from precflow.stages.dump import open_dump
from precflow.stages.job import Job, Stage, StageResult, ask_agent, is_chosen
from precflow.stages.judge import judge_pair
from precflow.stages.second_pass.passes import latest
from precflow.task.outcome import BEYOND, NOT_COMPUTED, TaskValue, shorten

NAME = "mend"
MENDS_FILE = "mends.jsonl"
_MEANT = "is still to blame"

_Set = tuple[Raised, ...]


def read_mends(needs: Mapping[str, Path]) -> list[Mend]:
    """Return what was tried on the parts to blame, the run as it is first; nothing without the stage."""
    return read_lines(needs[NAME] / MENDS_FILE, Mend) if NAME in needs else []


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    guilty = [part.name for part in read_parts(needs) if part.state == TO_BLAME]
    if not guilty:
        write_lines(folder / MENDS_FILE, [])
        return StageResult(note="nothing to mend: no part is to blame")
    runs = _Runs(job, folder, needs, read_measures(latest(needs, "compare")), open_dump(needs["dump.reference"]))
    mends = _find_mends(runs, guilty)
    write_lines(folder / MENDS_FILE, mends)
    return StageResult(note=describe_mends(mends), damaged=bool(runs.broke))


def _find_mends(runs: _Runs, guilty: Sequence[str]) -> list[Mend]:
    _, _, region = introduced.read_conclusion(runs.needs)
    suspects = [suspect.module for suspect in region.suspects]
    ways = list_ways(runs.job.config.target.dtype)
    whole: list[_Set] = [(Raised(way, (part,)),) for part in guilty for way in ways]
    # Building the model takes longer than running it: what is asked next is run in the same process.
    inside = [(Raised(way, tuple(group)),) for part in guilty for group in list_inside(part, suspects) for way in ways]
    runs.try_forced([*whole, *inside])
    mending: dict[str, str] = {}
    for raised in whole:
        part = raised[0].modules[0]
        if not runs.try_forced([raised])[0][part]:
            mending.setdefault(part, raised[0].way)
    sets = {raised: _list_still(raised, guilty, runs) for raised in list_sets(guilty, ways)}
    found: list[_Set] = []  # smallest first
    if len(mending) == len(guilty):
        found = [_narrow(runs, mending, suspects), join_ways(mending)]
        sets |= {raised: {} for raised in found}  # that is how they were found
    mends = runs.try_free(sets)
    passing = [raised for raised in found if any(mend.raised == raised and mend.outcome == PASSES for mend in mends)]
    return [replace(mend, smallest=mend.raised in passing[:1]) for mend in mends]


def _narrow(runs: _Runs, mending: Mapping[str, str], suspects: Sequence[str]) -> _Set:
    """Return the few modules inside each part that are enough for it on the reference's inputs."""
    modules = list(dict.fromkeys(measure.module for measure in runs.measures if measure.phase == FORWARD))
    found: dict[str, list[str]] = {}
    for part, way in mending.items():

        def mends(asked: list[list[str]], part: str = part, way: str = way) -> list[bool]:
            """Tell for each list of modules whether the part is right with them raised."""
            return [not wrong[part] for wrong in runs.try_forced([(Raised(way, tuple(names)),) for names in asked])]

        found.setdefault(way, []).extend(narrow_part(part, suspects, modules, mends))
    return tuple(Raised(way, tuple(dict.fromkeys(names))) for way, names in found.items())  # one part may lie in another


def _list_still(raised: _Set, guilty: Sequence[str], runs: _Runs) -> dict[str, str]:
    """Return what is still wrong with parts on the reference's inputs: what is raised elsewhere does not reach them there."""
    ways = {part: one.way for one in raised for part in one.modules}
    wrong = {part: runs.try_forced([(Raised(ways[part], (part,)),)])[0][part] if part in ways else _MEANT for part in guilty}
    return {part: why for part, why in wrong.items() if why}


@dataclass
class _Runs:
    """Runs the target with modules raised.

    Attributes:
        job: This run.
        folder: Folder of the stage.
        needs: What it is made of.
        measures: Those of the run itself.
        reference: Dump of the reference.
        broke: Why an agent failed; ``""`` if none did.
        forced: What is known of sets on the reference's inputs, see :meth:`try_forced`.
    """

    job: Job
    folder: Path
    needs: Mapping[str, Path]
    measures: Sequence[Measure]
    reference: Dump
    broke: str = ""
    forced: dict[_Set, dict[str, str]] = field(default_factory=dict)

    def try_forced(self, sets: Sequence[_Set]) -> list[dict[str, str]]:
        """Return for each set what is wrong with each part on the reference's inputs, in words; ``""`` if nothing is."""
        new = [raised for raised in dict.fromkeys(sets) if raised not in self.forced]
        if new:
            self.forced |= dict(zip(new, self._run_forced(new), strict=True))
        return [self.forced[raised] for raised in sets]

    def _run_forced(self, sets: Sequence[_Set]) -> Iterator[dict[str, str]]:
        work = self._make_folder()
        parts, inputs = self.job.config.workload.parts, self.folder.resolve() / INPUTS_FILE
        problem = write_inputs(inputs, self.reference, parts)
        facts = {} if problem else self._ask(work, sets, inputs=inputs)
        inputs.unlink(missing_ok=True)  # it has paths of this machine
        floors = read_lines(self.needs[CHAIN] / FLOORS_FILE, Floor)
        for number in range(len(sets)):
            name = f"arm{number}"
            why = problem or self.broke or str(facts[name]["problem"])
            if why:
                yield dict.fromkeys(parts, why)
                continue
            forced = judge_forced(self.job, self.reference, read_dump(work / name), floors)
            yield {part.name: "" if part.state == FINE else part.why or _MEANT for part in judge_parts(parts, forced, forced)}
        shutil.rmtree(work)

    def try_free(self, sets: Mapping[_Set, Mapping[str, str]]) -> list[Mend]:
        """Return the run as it is, and one with each set raised: timed, and held to the limits of the run.

        Args:
            sets: Set -> what is wrong with parts on the reference's inputs even so.
        """
        work = self._make_folder()
        facts = self._ask(work, list(sets), rounds=ROUNDS)
        mends = []
        arms: list[tuple[str, _Set]] = [(UNCHANGED, ()), *((f"arm{number}", raised) for number, raised in enumerate(sets))]
        for name, raised in arms:
            title = describe_raised(raised) or "as it is"
            problem = self.broke or str(facts[name]["problem"])
            if problem:
                mends.append(Mend(title, raised, NOT_RUN, why=problem))
                continue
            target = read_dump(work / name)
            judged = self._judge_free(target)
            task = tuple(map(shorten, task_metrics.examine_dumps(self.job, self.reference, target)))
            why = _explain(judged, sets.get(raised, {}), task)
            ends = [one for one in judged if parse_identity(one.record).module == ROOT_MODULE]
            price = compare_times(facts[UNCHANGED]["seconds"], facts[name]["seconds"])
            mends.append(Mend(title, raised, FAILS if why else PASSES, find_worst(ends or judged), why, price, task=task))
        shutil.rmtree(work)
        return mends

    def _make_folder(self) -> Path:
        work = self.folder / "runs"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        return work

    def _ask(self, work: Path, sets: Sequence[_Set], *, inputs: Path | None = None, rounds: int = 0) -> Mapping[str, Any]:
        """Run the target once as it is and once with each set, and return the facts of each arm."""
        job = self.job
        request = dump_request(job.config, "target", work, ci=job.ci, declared_key="", code=job.user_code)
        arms: list[dict[str, Any]] = [{"name": UNCHANGED, "changes": []}]
        arms += [{"name": f"arm{number}", "changes": self._describe_changes(raised)} for number, raised in enumerate(sets)]
        try:
            asked = {**of_parts(request, job.config, inputs), "action": "whatif", "arms": arms, "rounds": rounds}
            ask_agent(job, "target", asked, work)
        except SideError as error:
            self.broke = error.message
            return {}
        facts: Mapping[str, Any] = read_plain(work / WHATIF_FILE)["arms"]
        return facts

    def _describe_changes(self, raised: Iterable[Raised]) -> list[dict[str, Any]]:
        changes: list[dict[str, Any]] = []
        for one in raised:
            if one.way == UNFUSED:
                records = [record for module in one.modules for record in self._list_calls(module)]
                changes.append({"kind": "operator", "value": "written_out", "records": records})
            else:
                to = {"device": "cpu"} if one.way == ON_CPU else {"dtype": one.way}
                changes.append({"kind": "part", "value": {"modules": list(one.modules), **to}, "records": []})
        return changes

    def _list_calls(self, module: str) -> list[str]:
        """Return one record of each call of a module."""
        calls: dict[int, str] = {}
        for measure in self.measures:
            if measure.module == module and not measure.operator and measure.phase == FORWARD:
                calls.setdefault(parse_identity(measure.record).call, measure.record)
        return list(calls.values())

    def _judge_free(self, target: Dump) -> list[Judged]:
        """Return what the model and its parts return in a run, with their statuses by the limits of the run."""
        job = self.job
        executor = choose_executor(job, DeclaredMetrics({}, job.trusted, job.import_paths))
        measures = compare(self.reference, target, executor=executor, constants=(*FILLS, *job.config.tolerance.fills))
        judged, _ = judge_pair(job, self.needs, self.reference, target, measures)
        wanted = {ROOT_MODULE, *job.config.workload.parts}
        return [
            one
            for measure, one in zip(measures, judged, strict=True)
            if parse_identity(measure.record).module in wanted
            and not measure.operator
            and (measure.judged or measure.exact)
            and parse_identity(measure.record).role == OUTPUT
        ]


def _explain(judged: Sequence[Judged], still: Mapping[str, str], task: Sequence[TaskValue]) -> str:
    """Return why a run does not pass; ``""`` if it does."""
    if not judged:
        return "none of its outputs was judged"
    failing = [one for one in judged if one.status in MISALIGNED_STATUSES]
    undecided = [one for one in judged if one.status not in {"pass", *MISALIGNED_STATUSES}]
    modules = dict.fromkeys(parse_identity(one.record).module or "the model's output" for one in failing)
    reasons = [f"over its limit: {', '.join(modules)}"] if modules else []
    reasons += [f"{one.record} is {one.status}" for one in undecided[:1]]
    reasons += [f"{one.name} {one.shown} is beyond its limit" for one in task if one.state == BEYOND]
    reasons += [f"{one.name} was not computed ({one.why})" for one in task if one.state == NOT_COMPUTED]
    reasons += [f"{part} {why}" if why == _MEANT else f"{part}: {why}" for part, why in still.items()]
    return "; ".join(reasons)


STAGE = Stage(
    name="mend",
    place=235,
    reads=("environment", "dump", "noise", "determinism", "compare", "judge", "localize", "introduced", CHAIN),
    declare=task_metrics.declare,
    make=_make,
    parts=lambda config: ("",) if is_planned(config) and is_chosen(config, NAME) else (),
)
