"""Two runs of a recipe side by side: what changed in recipe and environment, and which records got better or worse.

Better and worse are about the numbers that were measured, not about limits: a record whose limit was widened has not improved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from precflow import keys
from precflow.comparison.measure import Measure
from precflow.curves.outcome import LOSS, CurveOutcome
from precflow.diagnosis.findings import collect_translations
from precflow.environment.differences import find_changes
from precflow.errors import DumpError, StoreError
from precflow.judgement.floors import MAIN_METRIC
from precflow.judgement.verdicts import Judged, Verdict
from precflow.language import CHINESE
from precflow.report.model import ReportModel
from precflow.run.find_runs import NamedRun, refuse_unjudged
from precflow.run.store import Sealed
from precflow.stages.compare import read_measures
from precflow.stages.curves import NAME as CURVES
from precflow.stages.curves import read_outcomes
from precflow.stages.dump import identify, is_given, open_dump
from precflow.stages.introduced import read_conclusion
from precflow.stages.report import read_model
from precflow.stages.second_pass.passes import latest

NOTABLE = 1.1  # a metric that changes by less than this factor counts as the same: rounding alone moves it so far
_NOT_MEASURED = frozenset({"shape", "nonfinite", "unreadable", "unpaired_reference", "unpaired_target"})
_NOT_COUNTED = frozenset({"not_judged", "sampled_out", "covered", "not_comparable"})
_EXACT = "exact"


@dataclass(frozen=True)
class FactChange:
    """One fact that differs between two runs; ``""`` stands for absent.

    Attributes:
        name: Dotted key of the recipe, or a fact of a side.
        before: In the earlier run.
        after: In the later run.
        side: The side that the fact is about; ``""`` for a key of the recipe, ``both`` if both sides changed alike.
    """

    name: str
    before: str
    after: str
    side: str = ""


@dataclass(frozen=True)
class RecordState:
    """What one run says about one record.

    Attributes:
        status: As in ``judgement.verdicts.STATUSES``.
        metric: What ``value`` is; ``exact`` for integers (0 equal, 1 not), ``""`` if nothing could be measured.
        value: The measured error.
        lowest: Least error that the evidence allows; below ``value`` for an estimate.
        highest: Greatest error that the evidence allows.
        ratio: Share of its limit that it used.
    """

    status: str
    metric: str
    value: float
    lowest: float
    highest: float
    ratio: float


@dataclass(frozen=True)
class RecordChange:
    """One record that got better or worse: its name on screens, and what each run says about it."""

    record: str
    name: str
    before: RecordState
    after: RecordState


@dataclass(frozen=True)
class CurveChange:
    """A curve of both runs: all that each of them says about it."""

    before: CurveOutcome
    after: CurveOutcome

    @property
    def name(self) -> str:
        """Name of the curve."""
        return self.after.name

    @property
    def verdicts(self) -> tuple[str, str]:
        """Verdict on the curve in each run."""
        return self.before.verdict, self.after.verdict

    @property
    def largest(self) -> tuple[float | None, float | None]:
        """Largest absolute difference of the sides in each run; ``None`` if the run compared no step of it."""
        before, after = (one.found.max_abs_error if one.found.compared else None for one in (self.before, self.after))
        return before, after


@dataclass(frozen=True)
class RunDifference:
    """What differs between two runs of a recipe.

    Attributes:
        before: Name of the earlier run.
        after: Name of the later run.
        recipe: Changed keys of the recipe.
        environment: Changed facts of the sides.
        notes: What could not be told, and changes that have no name.
        verdicts: Verdict of each run.
        emulated: Whether a side of each run was emulated, as far as its report says.
        statuses: Status -> number of records in each run, where the numbers differ.
        better: Records that are nearer to the reference, the one that was worst first.
        worse: Records that are farther from it, the one that is worst first.
        same: Records that changed by less than ``NOTABLE``.
        only_before: Records of the earlier run alone.
        only_after: Records of the later run alone.
        losses: Largest difference between the losses of the sides in each run; ``None`` if a run recorded no losses.
        curves: The curves that both runs have.
        findings_gone: ``rule  title`` of findings of the earlier run alone.
        findings_new: The same of the later run alone.
        translations: Findings of both in Chinese.
    """

    before: str
    after: str
    recipe: tuple[FactChange, ...]
    environment: tuple[FactChange, ...]
    notes: tuple[str, ...]
    verdicts: tuple[Verdict, Verdict]
    emulated: tuple[bool, bool]
    statuses: Mapping[str, tuple[int, int]]
    better: tuple[RecordChange, ...]
    worse: tuple[RecordChange, ...]
    same: int
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    losses: tuple[float, float] | None
    curves: tuple[CurveChange, ...]
    findings_gone: tuple[str, ...]
    findings_new: tuple[str, ...]
    translations: Mapping[str, str]


@dataclass(frozen=True)
class Results:
    """What a finished run left: its instances, conclusion, and report if it made one.

    Attributes:
        name: Name of the run.
        instances: Its stage instances by name.
        verdict: Its verdict.
        records: Identity text -> what was measured and how it was judged, of the records that count.
        report: Its report; ``None`` if it made none.
    """

    name: str
    instances: Mapping[str, Sealed]
    verdict: Verdict
    records: Mapping[str, tuple[Measure, Judged]]
    report: ReportModel | None

    @property
    def folders(self) -> dict[str, Path]:
        """The instances' folders by name."""
        return {name: sealed.folder for name, sealed in self.instances.items()}


def compare_runs(before: NamedRun, after: NamedRun) -> RunDifference:
    """Return what differs between two runs.

    Raises:
        StoreError: A run has no verdict, its results are not in the store any more, or the runs are of different recipes.
    """
    for run in (before, after):
        refuse_unjudged(run)
    return compare_results(before, after, read_results(before), read_results(after))


def compare_results(before: NamedRun, after: NamedRun, old: Results, new: Results) -> RunDifference:
    """Return what differs between two runs whose results were read.

    Raises:
        StoreError: The runs are of different recipes.
    """
    names = [results.report.recipe if results.report else run.folder.name for run, results in ((before, old), (after, new))]
    if names[0] != names[1]:
        raise StoreError(
            f"{before.name} is of recipe {names[0]}, and {after.name} of {names[1]}: their records are not the same things",
            next_step="name two runs of one recipe; precflow compare takes any two dumps",
        )
    better, worse, same = _sort_records(old.records, new.records)
    recipe, environment, notes = _find_causes(old, new)
    counts = (old.verdict.counts, new.verdict.counts)
    gone, come = list_findings(old.report), list_findings(new.report)
    largest = [_find_largest_difference(results) for results in (old, new)]
    curves = {outcome.name: outcome for outcome in read_outcomes(old.folders)}
    return RunDifference(
        before=before.name,
        after=after.name,
        recipe=recipe,
        environment=environment,
        notes=notes,
        verdicts=(old.verdict, new.verdict),
        emulated=(is_emulated(old), is_emulated(new)),
        statuses={
            status: (counts[0].get(status, 0), counts[1].get(status, 0))
            for status in dict.fromkeys([*counts[0], *counts[1]])
            if counts[0].get(status, 0) != counts[1].get(status, 0)
        },
        better=better,
        worse=worse,
        same=same,
        only_before=tuple(name for name in old.records if name not in new.records),
        only_after=tuple(name for name in new.records if name not in old.records),
        losses=None if largest[0] is None or largest[1] is None else (largest[0], largest[1]),
        curves=tuple(CurveChange(curves[one.name], one) for one in read_outcomes(new.folders) if one.name in curves),
        findings_gone=tuple(text for text in gone if text not in come),
        findings_new=tuple(text for text in come if text not in gone),
        translations={**translate_findings(old.report), **translate_findings(new.report)},
    )


def read_results(run: NamedRun) -> Results:
    """Return what a run left.

    Raises:
        StoreError: It is not in the store any more, or was changed.
    """
    instances = run.find_instances()
    folders = {name: sealed.folder for name, sealed in instances.items()}
    judged, verdict, _ = read_conclusion(folders)
    measures = read_measures(latest(folders, "compare")) if judged else []  # a run that compares curves alone has none
    return Results(
        name=run.name,
        instances=instances,
        verdict=verdict,
        records={
            measure.record: (measure, status)
            for measure, status in zip(measures, judged, strict=True)
            if status.status not in _NOT_COUNTED
        },
        report=read_model(folders["report"]) if "report" in folders else None,
    )


def is_emulated(results: Results) -> bool:
    """Tell whether a side was emulated, as far as the report says."""
    return results.report is not None and results.report.emulated


def _find_causes(old: Results, new: Results) -> tuple[tuple[FactChange, ...], tuple[FactChange, ...], tuple[str, ...]]:
    """Return changes of the recipe, changes of the environment, and notes."""
    if old.report is None or new.report is None:
        without = " and ".join(results.name for results in (old, new) if results.report is None)
        return (), (), (f"{without} made no report, so what changed in recipe and environment is not known",)
    recipe = tuple(
        FactChange(key, _in_words(before), _in_words(after))
        for key, before, after in keys.changes(_parse(old.report), _parse(new.report))
    )
    named = {change.name for change in recipe}
    later = {side.side: side for side in new.report.sides}
    # The element type that a side ran in is a fact of its dump too: `target.dump` may name another one.
    paired = {
        side.side: ({**side.facts, "dtype": side.dtype}, {**later[side.side].facts, "dtype": later[side.side].dtype})
        for side in old.report.sides
        if side.side in later
    }
    changed = {
        side: {
            fact: values
            for fact, values in find_changes(facts[0], facts[1]).items()
            if f"{side}.{fact}" not in named  # such as target.variables.NAME, which the recipe sets
        }
        for side, facts in paired.items()
    }
    environment = []
    for side, facts in changed.items():
        others = [other for name, other in changed.items() if name != side]
        for fact, values in facts.items():
            alike = bool(others) and all(other.get(fact) == values for other in others)
            if not alike or side == next(iter(changed)):
                environment.append(FactChange(fact, *values, side="both" if alike else side))
    return recipe, tuple(environment), tuple(_describe_unnamed(old, new, changed))


def _describe_unnamed(old: Results, new: Results, changed: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a note on each side whose dump or log is another one although no key and no fact of it changed."""
    notes = []
    logs = [results.instances[CURVES].declared.get("logs", {}) if CURVES in results.instances else {} for results in (old, new)]
    for side in ("reference", "target"):
        if logs[0].get(side) != logs[1].get(side):
            notes.append(f"{side}: its log is another one, or has changed")
        name = f"dump.{side}"
        if name not in old.instances or name not in new.instances:
            continue
        before, after = old.instances[name], new.instances[name]
        if before.seal == after.seal:
            continue
        if is_given(after.folder):
            notes.append(f"{side}: another dump was given, or it was recorded again")
            continue
        content = [key for key, *_ in keys.changes(before.declared, after.declared) if key.endswith("content")]
        content = [*(key.removesuffix(".content") for key in content), *find_changed_modules(before.folder, after.folder)]
        if content:
            notes.append(f"{side}: other content of {', '.join(content)}")
        elif before.declared == after.declared and before.key != after.key and not changed.get(side):
            notes.append(f"{side}: recorded again with the same settings: its code, interpreter or machine changed")
    return notes


def find_changed_modules(before: Path, after: Path) -> list[str]:
    """Return the files that a script imported from its folder and that differ between two dumps, without the script itself."""
    try:
        headers = [open_dump(folder).header for folder in (before, after)]
    except DumpError:
        return []
    modules = [header.script.get("modules", {}) for header in headers]
    scripts = {header.script.get("file", "") for header in headers}  # a key of the recipe names it
    return [name for name, *_ in keys.changes(*modules) if name not in scripts] if all(modules) else []


def _parse(report: ReportModel) -> Any:
    try:
        return yaml.safe_load(report.recipe_yaml) or {}
    except yaml.YAMLError as error:
        raise StoreError(f"the recipe in a report of {report.recipe} cannot be read: {error}") from error


def _in_words(value: Any) -> str:
    if value is None:
        return ""
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)


def _sort_records(
    old: Mapping[str, tuple[Measure, Judged]], new: Mapping[str, tuple[Measure, Judged]]
) -> tuple[tuple[RecordChange, ...], tuple[RecordChange, ...], int]:
    """Return what got better, what got worse, and how many stayed the same, of the records that both runs have."""
    better, worse, same = [], [], 0
    for record, (measure, judged) in new.items():
        if record not in old:
            continue
        before, after = describe_state(*old[record]), describe_state(measure, judged)
        change = RecordChange(record, measure.name, before, after)
        if is_worse(before, after):
            better.append(change)
        elif is_worse(after, before):
            worse.append(change)
        else:
            same += 1
    better.sort(key=lambda change: _badness(change.before), reverse=True)
    worse.sort(key=lambda change: _badness(change.after), reverse=True)
    return tuple(better), tuple(worse), same


def describe_state(measure: Measure, judged: Judged) -> RecordState:
    """Return what a run says about one record."""
    if measure.exact:
        value = 1.0 if judged.status == "fail" else 0.0
        return RecordState(judged.status, _EXACT, value, value, value, value)
    if judged.status in _NOT_MEASURED or MAIN_METRIC not in measure.metrics:
        value = 0.0 if measure.equal else float("inf")
        return RecordState(judged.status, MAIN_METRIC if measure.equal else "", value, value, value, judged.ratio)
    value = measure.metrics[MAIN_METRIC]
    lowest, highest = measure.ranges.get(MAIN_METRIC, (value, value))
    return RecordState(judged.status, MAIN_METRIC, value, lowest, highest, judged.ratio)


def is_worse(one: RecordState, other: RecordState) -> bool:
    """Tell whether a state is notably worse: nothing could be measured, or an error that is larger for certain.

    An estimate has a range, so two of them differ only if their ranges do not meet.
    """
    if not one.metric or not other.metric:
        return bool(other.metric) and not one.metric
    return one.lowest > other.highest and one.value > NOTABLE * other.value


def _badness(state: RecordState) -> tuple[bool, float, float]:
    return not state.metric, state.ratio, state.value


def _find_largest_difference(results: Results) -> float | None:
    curve = next((one for one in read_outcomes(results.folders) if one.name == LOSS), None)
    if curve is not None and curve.found.compared:
        return curve.found.max_abs_error
    losses = []
    for side in ("reference", "target"):
        sealed = results.instances.get(f"dump.{side}")
        try:
            dump = open_dump(sealed.folder) if sealed else None
        except DumpError:  # the user's own dump, which is not there any more
            return None
        # The user's own dump may have been recorded again in its place since that run.
        if dump is None or sealed is None or (dump.sealed and identify(dump.path) != sealed.seal):
            return None
        losses.append(dump.header.loss_of_step)
    return max((abs(loss - losses[1][step]) for step, loss in losses[0].items() if step in losses[1]), default=None)


def translate_findings(report: ReportModel | None) -> dict[str, str]:
    """Return each text of :func:`list_findings`, and the title in it, with what they are in Chinese."""
    said = {} if report is None else collect_translations(report.findings, CHINESE)
    titles = {one.title: (one.rule, said[one.title]) for one in (report.findings if report else ()) if one.title in said}
    return {
        text: line
        for title, (rule, chinese) in titles.items()
        for text, line in ((title, chinese), (f"{rule}  {title}", f"{rule}  {chinese}"))
    }


def list_findings(report: ReportModel | None) -> list[str]:
    """Return ``rule  title`` of the findings of a report, best first."""
    return [] if report is None else [f"{finding.rule}  {finding.title}" for finding in report.findings]


def plain_changes(changes: Sequence[FactChange]) -> list[dict[str, str]]:
    """Return changes as plain data for ``--json``."""
    return [{"name": change.name, "side": change.side, "before": change.before, "after": change.after} for change in changes]
