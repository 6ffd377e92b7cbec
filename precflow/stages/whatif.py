"""Stages ``whatif.WORD``, one for each word of the key ``whatif``: run the target again with something changed.

Each is an instance of its own, so one more word tries only that one. An instance that was killed goes on behind the runs
that it has finished: each set of arms leaves a small file with what was measured, and its dumps are removed.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from precflow import keys, resources
from precflow.agent.contract import (
    FILLS,
    FORWARD,
    LEFT_OUT,
    ROOT_MODULE,
    UNCHANGED,
    UNCHECKED,
    WHATIF_FILE,
    module_text,
    parse_identity,
)
from precflow.agent.selection import literal_pattern
from precflow.comparison.compare import compare
from precflow.comparison.measure import Measure
from precflow.comparison.user_metrics import DeclaredMetrics
from precflow.config.schema import RunConfig, plain
from precflow.config.sections.whatifs import CHEAPEST, REFERENCE_CHOICE, SUSPECTS_ALONE
from precflow.diagnosis.advice import whatif_files
from precflow.diagnosis.advice.whatif import (
    NEXT_TO_NOTHING,
    OUTCOMES_FILE,
    ArmRun,
    Trial,
    choose_trials,
    conclude,
    describe,
    describe_changes,
)
from precflow.diagnosis.advice.whatif_files import WhatIf
from precflow.diagnosis.findings import CONFIRMED, FAILED, NOTHING, PARTLY, REFUTED, Outcome, Suspect
from precflow.diagnosis.narrowing import narrow
from precflow.diagnosis.price import ROUNDS, compare_times
from precflow.dumps.formats import read_dump
from precflow.dumps.requests import dump_request, gives_choices
from precflow.dumps.views.paired import see_through_rules
from precflow.errors import SideError
from precflow.stages import introduced, task_metrics
from precflow.stages.advise import collect_evidence, read_findings
from precflow.stages.artifacts import read_lines, read_plain, read_value, write_lines, write_value
from precflow.stages.compare import choose_executor, read_measures
from precflow.stages.dump import hand_over_choices, open_dump
from precflow.stages.job import Job, Stage, StageResult, ask_agent, tries_whatifs
from precflow.stages.judge import judge_pair
from precflow.stages.second_pass.passes import latest
from precflow.task.outcome import shorten

KIND = "whatif"
_MOST_PARTS = 16  # parts of the suspects that are tried to find the fewest that are enough
_LOW = ("float16", "bfloat16")

Arms = Mapping[str, Sequence[Mapping[str, Any]]]  # name -> changes


def read_outcomes(needs: Mapping[str, Path]) -> list[Outcome]:
    """Return what all what-ifs have shown, the one that removes most first; what several words have tried, once."""
    folders = [folder for name, folder in needs.items() if name.startswith(f"{KIND}.")]
    ranked = _rank([outcome for folder in folders for outcome in read_lines(folder / OUTCOMES_FILE, Outcome)])
    best: dict[tuple[str, tuple[str, ...]], Outcome] = {}
    for outcome in ranked:
        best.setdefault((outcome.title, outcome.suspects), outcome)
    return list(best.values())


def load_whatifs(job: Job) -> list[WhatIf]:
    """Return all what-ifs, precflow's and the team's."""
    return whatif_files.load_whatifs([resources.directory("conf") / KIND, *job.team.get(KIND, ())])


def _rank(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return sorted(outcomes, key=lambda outcome: (outcome.outcome == FAILED, -outcome.removed, outcome.name))


def _declare(word: str, job: Job) -> Mapping[str, Any]:
    whatifs = [plain(whatif) for whatif in load_whatifs(job)] if word != CHEAPEST else []
    return {"word": word, "whatifs": whatifs, **task_metrics.declare(job)}


def _make(word: str, job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    _, _, region = introduced.read_conclusion(needs)
    runs = _Runs(job, folder, needs, region.suspects)
    if not region.suspects:
        outcomes, note = [], "nothing to try: there is no suspect"
    elif word == CHEAPEST:
        outcomes = [_find_cheapest(job, runs, region.suspects)]
        note = describe(outcomes[0])
    else:
        trials = choose_trials(
            word, load_whatifs(job), read_findings(needs["advise"]), region.suspects, collect_evidence(job, needs)
        )
        outcomes = _rank(_try(trials, runs))
        note = describe(outcomes[0]) if outcomes else f"nothing to try: this run has no finding that {word} confirms"
    write_lines(folder / OUTCOMES_FILE, outcomes)
    # An arm that did not run may do so next time: on a machine with more memory, for instance.
    return StageResult(note=note, damaged=bool(runs.broke))


@dataclass
class _Runs:
    """Runs the target with something changed, and compares each run with the reference.

    Attributes:
        job: This run.
        folder: Folder of the stage.
        needs: What it is made of.
        suspects: All suspects of the run.
        broke: Why an agent failed, whose arms have the problem; ``""`` if none did.
    """

    job: Job
    folder: Path
    needs: Mapping[str, Path]
    suspects: Sequence[Suspect]
    broke: str = ""

    @functools.cached_property
    def measures(self) -> list[Measure]:
        """The measures of the run itself."""
        return read_measures(latest(self.needs, "compare"))

    @functools.cached_property
    def ends(self) -> list[str]:
        """Identity texts of what the model returns; where it is not recorded, the last record that is judged."""
        judged = [measure.record for measure in self.measures if measure.judged and measure.phase == FORWARD]
        returned = [record for record in judged if parse_identity(record)[0::2][:2] == (ROOT_MODULE, "")]
        return returned or judged[-1:]

    @functools.cached_property
    def choices(self) -> list[str]:
        """Identity texts of the choices that are near ties in the run: without them, what depends on them would fail."""
        exact = {measure.record for measure in self.measures if measure.exact}
        judged, _, _ = introduced.read_conclusion(self.needs)
        return [one.record for one in judged if one.status == "near_tie" and one.record in exact]

    def run(self, arms: Arms, *, everything: bool = False, rounds: int = 0) -> dict[str, ArmRun]:
        """Run arms in one process, after one without any change, and return what was measured of each.

        Args:
            arms: Name -> changes.
            everything: Record all that the run has recorded, and not only the suspects and what the model returns.
            rounds: Timed runs of each.
        """
        key = keys.digest([{name: list(changes) for name, changes in arms.items()}, everything, rounds])[:12]
        kept, work = self.folder / f"runs-{key}.json", self.folder / f"runs-{key}"
        names = [UNCHANGED, *arms]
        if not kept.exists():
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            try:
                reference = self.needs["dump.reference"] if gives_choices(self.job.config) else None
                with hand_over_choices(work, reference) as choices:
                    request = self._request(work, arms, everything=everything, rounds=rounds)
                    ask_agent(self.job, "target", {**request, **choices}, work)
            except SideError as error:
                self.broke = error.message
                return dict.fromkeys(names, ArmRun(problem=error.message))
            facts = read_plain(work / WHATIF_FILE)["arms"]
            measured = {name: self._measure(work / name, facts[name], everything=everything) for name in names}
            write_value(kept, measured)
            shutil.rmtree(work)
        return read_value(kept, dict[str, ArmRun])

    def _request(self, work: Path, arms: Arms, *, everything: bool, rounds: int) -> dict[str, Any]:
        job = self.job
        request = dump_request(
            job.config,
            "target",
            work,
            ci=job.ci,
            declared_key="",
            code=job.user_code,
        )
        capture = {**request["capture"], "weights": LEFT_OUT, "budget": 0}
        # Only recorded choices can be given, and in an arm others may differ than in the run.
        if not everything and not gives_choices(job.config):
            records = (*(suspect.record for suspect in self.suspects), *self.ends, *self.choices)
            modules = {module_text(parse_identity(record).module) for record in records}
            modules.update(task_metrics.list_read(job.config)[0])
            capture["scope"] = sorted(map(literal_pattern, modules))
        listed = [{"name": name, "changes": list(changes)} for name, changes in {UNCHANGED: [], **arms}.items()]
        return {
            **request,
            "action": "whatif",
            "capture": capture,
            "determinism": {**request["determinism"], "repeat": False, "observer": UNCHECKED},
            "arms": listed,
            "rounds": rounds,
        }

    def _measure(self, folder: Path, facts: Mapping[str, Any], *, everything: bool) -> ArmRun:
        """Compare the dump of an arm with the reference, and judge it by the limits of the run."""
        if facts["problem"]:
            return ArmRun(problem=str(facts["problem"]))
        job = self.job
        reference, target = see_through_rules(
            open_dump(self.needs["dump.reference"]), read_dump(folder), job.config.pairing.rules, job.config.environment.same
        )
        executor = choose_executor(job, DeclaredMetrics({}, job.trusted, job.import_paths))
        measures = compare(reference, target, executor=executor, constants=(*FILLS, *job.config.tolerance.fills))
        judged, _ = judge_pair(job, self.needs, reference, target, measures)
        errors = {measure.record: measure.metrics.get("relative_l2") for measure in measures}
        wanted = {*(suspect.record for suspect in self.suspects), *self.ends} if not everything else errors.keys()
        return ArmRun(
            errors={record: float(error) for record, error in errors.items() if error is not None and record in wanted},
            statuses={record.record: record.status for record in judged if record.record in wanted},
            seconds=tuple(map(float, facts["seconds"])),
            task=tuple(map(shorten, task_metrics.examine_dumps(job, reference, target))),
        )


# Trials


def _try(trials: Sequence[Trial], runs: _Runs) -> list[Outcome]:
    """Run all trials in one process; where several suspects were changed and it helped, find the fewest that are enough."""
    arguments = {measure.record: measure.arguments for measure in runs.measures}
    changes = {
        f"arm{number}": describe_changes(trial.whatif, [suspect.record for suspect in trial.suspects], arguments)
        for number, trial in enumerate(trials)
    }
    if not trials:
        return []
    measured = runs.run({name: listed for name, listed in changes.items() if listed})
    outcomes = []
    for trial, (name, listed) in zip(trials, changes.items(), strict=True):
        arm = measured[name] if listed else ArmRun(problem="none of its arguments differs from the reference's")
        outcome = conclude(trial, measured[UNCHANGED], arm, runs.ends)
        if outcome.outcome in {CONFIRMED, PARTLY} and len(outcome.suspects) > 1:
            outcome = replace(outcome, needed=_narrow(trial, arm, arguments, runs))
        outcomes.append(outcome)
    return outcomes


def _narrow(trial: Trial, whole: ArmRun, arguments: Mapping[str, Any], runs: _Runs) -> tuple[str, ...]:
    """Return the suspects that are enough for what the model returns, by halves; none if all of them are needed.

    Enough is a part that leaves no more failing there than all of them do, and an error that is at most a quarter larger.
    """
    names = {suspect.record: suspect.name for suspect in trial.suspects}
    failing, error = len(whole.failing(runs.ends)), whole.error(runs.ends)

    def mends(parts: list[list[str]]) -> list[bool]:
        """Tell for each part of the suspects whether changing it alone is enough; all parts run in one process."""
        listed = {f"arm{number}": describe_changes(trial.whatif, part, arguments) for number, part in enumerate(parts)}
        measured = runs.run({name: changes for name, changes in listed.items() if changes})
        arms = [measured.get(name, measured[UNCHANGED]) for name in listed]
        return [
            not arm.problem and len(arm.failing(runs.ends)) <= failing and arm.error(runs.ends) <= 1.25 * error for arm in arms
        ]

    fewest = narrow(list(names), mends, _MOST_PARTS)
    return tuple(names[record] for record in fewest) if len(fewest) < len(names) else ()


# The fewest parts in a wider type


def _find_cheapest(job: Job, runs: _Runs, suspects: Sequence[Suspect]) -> Outcome:
    """Find the fewest parts of the model that have to compute in a wider type for the run to pass, and what that costs.

    The suspects are tried first; where they are not enough, the operators of every module, module by module.
    """
    dtype = "float32" if job.config.target.dtype in _LOW else "float64"
    of_modules: dict[str, list[str]] = {}
    for measure in runs.measures:
        if measure.operator and measure.phase == FORWARD and not measure.movement:
            of_modules.setdefault(measure.record.split("/", maxsplit=1)[0], []).append(measure.record)
    outcome = Outcome(CHEAPEST, f"every operator in {dtype}", FAILED)
    for parts in ({suspect.name: [suspect.record] for suspect in suspects}, of_modules):
        outcome = _find_fewest(parts, dtype, runs)
        if outcome.outcome in {CONFIRMED, NOTHING}:
            break
    return outcome


def _find_fewest(parts: Mapping[str, Sequence[str]], dtype: str, runs: _Runs) -> Outcome:
    """Find the fewest of some parts (name -> records of its calls) that make the run pass in a wider type."""

    def measure(members: Sequence[Sequence[str]], rounds: int = 0) -> tuple[ArmRun, list[ArmRun]]:
        """Return the run as it is, and one for each group of parts with these in the wider type."""
        arms = {
            f"arm{number}": [{"kind": "dtype", "value": dtype, "records": [record for name in names for record in parts[name]]}]
            for number, names in enumerate(members)
        }
        measured = runs.run(arms, everything=True, rounds=rounds)
        return measured[UNCHANGED], [measured[name] for name in arms]

    without, (whole,) = measure([list(parts)])
    outcome = Outcome(CHEAPEST, f"{len(parts)} parts in {dtype}", FAILED, problem=without.problem or whole.problem)
    if outcome.problem:
        return outcome
    if without.passes:
        return replace(outcome, outcome=NOTHING)
    if not whole.passes:
        tried = _compare_ends(replace(outcome, outcome=PARTLY), without, whole, runs.ends)
        return replace(tried, outcome=REFUTED) if tried.removed <= NEXT_TO_NOTHING else tried
    fewest = narrow(list(parts), lambda members: [arm.passes for arm in measure(members)[1]])
    without, (timed,) = measure([fewest], rounds=ROUNDS)
    if runs.broke:  # parts that would have been enough may be among those that were not tried
        return replace(outcome, problem=runs.broke)
    shown = replace(outcome, title=f"{', '.join(fewest)} in {dtype}", outcome=CONFIRMED, suspects=tuple(fewest))
    if price := compare_times(without.seconds, timed.seconds):
        shown = replace(shown, price=price.ratio, spread=(price.least, price.most))
    return _compare_ends(shown, without, timed, runs.ends)


def _compare_ends(outcome: Outcome, without: ArmRun, arm: ArmRun, ends: Sequence[str]) -> Outcome:
    before, after = without.error(ends), arm.error(ends)
    removed = 1 - after / before if before > 0 else 0.0
    changed = replace(outcome, before=before, after=after, removed=removed, removed_at_end=removed)
    return replace(changed, task_before=without.task, task_after=arm.task)


def _list_words(config: RunConfig) -> list[str]:
    # The first is no run more, but the target's own run with other choices; the second is a stage of its own, before `advise`.
    words = [word for word in config.whatif if word not in {REFERENCE_CHOICE, SUSPECTS_ALONE}]
    return words if tries_whatifs(config) else []


STAGE = Stage(
    name="whatif",
    place=260,
    reads=(
        "environment.target",
        "dump",
        "noise",
        "determinism",
        "compare",
        "judge",
        "localize",
        "introduced",
        "chain",
        "advise",
    ),
    declare=_declare,
    make=_make,
    parts=_list_words,
    resumes=True,
)
