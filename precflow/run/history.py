"""The history of a run folder: of each run its verdict, what had changed since the run before, and what got better or worse.

All that lies in the store, from which ``precflow prune`` deletes what no kept run needs. So a summary of each run, a few
kilobytes, is kept in ``history/`` of the run folder: it is made when somebody asks for the history, and before results are
deleted. A run whose results are gone without one has its line in ``run.json`` only.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from precflow.agent import intake
from precflow.errors import StoreError
from precflow.files import write_bytes
from precflow.judgement.verdicts import MISALIGNED_STATUSES
from precflow.report.groups import shorten
from precflow.run.find_runs import NamedRun, describe_outcome, find_run
from precflow.run.manifest import Manifest, RunEntry
from precflow.run.two_runs import (
    FactChange,
    RecordChange,
    RecordState,
    Results,
    compare_results,
    describe_state,
    is_emulated,
    list_findings,
    read_results,
    translate_findings,
)
from precflow.stages.curves import read_outcomes

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "history"
LAST = 20  # runs that are shown if nobody says how many
MOST_RECORDS = 100  # of a run: those that are furthest off, and those that the run before has kept
MOST_MODULES = 300
_MOST_CHANGED = 3  # records named of those that got better, and of those that got worse
_SCHEMA = 1


@dataclass(frozen=True)
class RecordPoint:
    """One record in one run.

    Attributes:
        name: Its name on screens.
        status: As in ``judgement.verdicts.STATUSES``.
        metric: What ``value`` is; ``""`` if nothing could be measured.
        value: The error; ``None`` where it is no number.
        ratio: Share of its limit; ``None`` where it has none, or it is no number.
    """

    name: str
    status: str
    metric: str
    value: float | None
    ratio: float | None


@dataclass(frozen=True)
class RecordMove:
    """One record that got better or worse since the run before: its name, and both errors; ``None`` is no number."""

    name: str
    metric: str
    before: float | None
    after: float | None


@dataclass(frozen=True)
class RunSummary:
    """What is kept of one run that came to a verdict.

    Attributes:
        number: Its number.
        started: When it began, as the history of the run folder says: a run of the same number in another folder is another.
        verdict: Its verdict.
        emulated: A side was emulated.
        start: Where the error starts; ``""`` for nowhere.
        findings: ``rule  title``, best first.
        counts: Status -> number of records.
        compared: Records that were compared.
        total: Records that should have been.
        worst: The record that uses most of its limit; ``None`` if no record has one.
        before: Number of the run that it is compared with, 0 for none.
        changes: What differs from that run in recipe and environment.
        notes: What else differs, and what could not be told.
        better: Number of records that got better since.
        worse: Number of records that got worse.
        same: Number of records that changed by less than rounding does.
        most_better: Those of the better ones that were worst before.
        most_worse: Those of the worse ones that are worst now.
        modules: Module of the first two levels -> largest relative_l2 of its records that is a number.
        records: Identity text -> the record.
        curves: Name -> largest absolute difference of the sides.
        translations: Text of a finding -> that text in Chinese.
        schema: Version of this form.
    """

    number: int
    started: str
    verdict: str
    emulated: bool
    start: str
    findings: tuple[str, ...]
    counts: Mapping[str, int]
    compared: int
    total: int
    worst: RecordPoint | None
    before: int = 0
    changes: tuple[FactChange, ...] = ()
    notes: tuple[str, ...] = ()
    better: int = 0
    worse: int = 0
    same: int = 0
    most_better: tuple[RecordMove, ...] = ()
    most_worse: tuple[RecordMove, ...] = ()
    modules: Mapping[str, float] = field(default_factory=dict)
    records: Mapping[str, RecordPoint] = field(default_factory=dict)
    curves: Mapping[str, float] = field(default_factory=dict)
    translations: Mapping[str, str] = field(default_factory=dict)
    schema: int = _SCHEMA

    @property
    def failed(self) -> int:
        """Records that are misaligned."""
        return sum(count for status, count in self.counts.items() if status in MISALIGNED_STATUSES)


_DECODER = msgspec.json.Decoder(RunSummary)


@dataclass(frozen=True)
class HistoryRow:
    """One run: what the run folder's history says, its outcome in words, and its summary, or why there is none."""

    entry: RunEntry
    outcome: str
    summary: RunSummary | None
    why: str = ""


@dataclass(frozen=True)
class History:
    """The runs of a run folder, oldest first.

    Attributes:
        name: The run folder, as it is typed.
        rows: The runs that were asked for.
        earlier: How many runs there are before these.
    """

    name: str
    rows: tuple[HistoryRow, ...]
    earlier: int = 0

    @property
    def summaries(self) -> list[RunSummary]:
        """Those that there are, oldest first."""
        return [row.summary for row in self.rows if row.summary is not None]

    def frame(self) -> pd.DataFrame:
        """Return a table with one row for each run, the oldest first; what is not known of a run is missing."""
        import pandas as pd  # noqa: PLC0415  takes half a second

        rows = []
        for row in self.rows:
            entry, kept = row.entry, row.summary
            known = (
                {
                    "emulated": kept.emulated,
                    "compared": kept.compared,
                    "failed": kept.failed,
                    "ratio": math.nan if kept.worst is None or kept.worst.ratio is None else kept.worst.ratio,
                    "worst": "" if kept.worst is None else kept.worst.name,
                    "start": kept.start,
                    "before": kept.before,
                    "better": kept.better,
                    "worse": kept.worse,
                    "same": kept.same,
                    "changed": "; ".join(map(describe_change, kept.changes)),
                    "findings": "; ".join(kept.findings),
                }
                if kept
                else {}
            )
            rows.append(
                {
                    "run": entry.number,
                    "started": entry.started,
                    "verdict": entry.verdict,
                    "exit_code": entry.exit_code,
                    "seconds": entry.seconds,
                    "command": entry.command,
                    **known,
                }
            )
        return pd.DataFrame(rows, index=pd.RangeIndex(len(rows)))

    def records(self) -> pd.DataFrame:
        """Return a table with one row for each kept record of each run: run, record, name, status, metric, value, ratio."""
        import pandas as pd  # noqa: PLC0415  takes half a second

        names = ("run", "record", "name", "status", "metric", "value", "ratio")
        rows = [
            (kept.number, record, point.name, point.status, point.metric, point.value, point.ratio)
            for kept in self.summaries
            for record, point in kept.records.items()
        ]
        return pd.DataFrame(rows, columns=list(names)).astype({"value": "float64", "ratio": "float64"})


def read_history(text: str, last: int = LAST) -> History:
    """Return the history of a run folder.

    Args:
        text: The run folder.
        last: How many runs, counted from the newest; 0 for all.

    Raises:
        StoreError: There is no such run folder, or its history is damaged.
    """
    folder = find_run(text).folder
    entries = Manifest(folder).entries()
    shown = entries[-last:] if last else entries
    found = _gather(folder, entries, {entry.number for entry in shown if entry.verdict})
    rows = [HistoryRow(entry, describe_outcome(entry, folder), *found.get(entry.number, (None, ""))) for entry in shown]
    return History(text.rpartition("@")[0] or text, tuple(rows), len(entries) - len(shown))


def keep_summaries(folder: Path) -> int:
    """Make the summaries that a run folder lacks, because results are about to be deleted; return how many were made."""
    entries = Manifest(folder).entries()
    lacking = {entry.number for entry in entries if entry.verdict and _load(folder, entry) is None}
    return sum(summary is not None for summary, _ in _gather(folder, entries, lacking).values())


def describe_change(change: FactChange) -> str:
    """Return a change in one line.

    >>> describe_change(FactChange("dtype", "float32", "", "target"))
    'target: dtype float32 -> (unset)'
    """
    side = f"{change.side}: " if change.side else ""
    return f"{side}{change.name} {change.before or '(unset)'} -> {change.after or '(unset)'}"


def _gather(folder: Path, entries: Sequence[RunEntry], wanted: set[int]) -> dict[int, tuple[RunSummary | None, str]]:
    """Return number -> summary, or why there is none, of the runs that are wanted."""
    found: dict[int, tuple[RunSummary | None, str]] = {}
    before: tuple[NamedRun, Results | None, RunSummary | None] | None = None
    for entry in entries:
        if not entry.verdict:
            continue
        run = NamedRun(f"{folder}@{entry.number}", folder, entry)
        summary, results, why = _load(folder, entry), None, ""
        if summary is None and entry.number in wanted:
            try:
                results = read_results(run)
                summary = _summarize(run, results, before)
                with contextlib.suppress(OSError):  # a folder that is only read has a history too
                    _locate(folder, entry).parent.mkdir(exist_ok=True)
                    write_bytes(_locate(folder, entry), msgspec.json.format(msgspec.json.encode(summary), indent=1))
            except StoreError as error:
                why = error.message
        if entry.number in wanted:
            found[entry.number] = summary, why
        before = run, results, summary
    return found


def _summarize(
    run: NamedRun, results: Results, before: tuple[NamedRun, Results | None, RunSummary | None] | None
) -> RunSummary:
    states = {record: (measure.name, describe_state(measure, judged)) for record, (measure, judged) in results.records.items()}
    points = {record: _make_point(name, state) for record, (name, state) in states.items()}
    order = sorted(states, key=lambda record: _importance(states[record][1]), reverse=True)
    earlier = before[2].records if before and before[2] else {}
    kept = dict.fromkeys([*order[: MOST_RECORDS // 2], *(record for record in earlier if record in points)])
    modules: dict[str, float] = {}
    for record, (measure, _) in results.records.items():
        value = points[record].value
        if value is not None and states[record][1].metric != "exact":
            name = shorten(measure.module)
            modules[name] = max(value, modules.get(name, 0.0))
    largest = sorted(modules, key=lambda name: -modules[name])[:MOST_MODULES]
    outcomes = read_outcomes(results.folders)
    plain = RunSummary(
        number=run.entry.number,
        started=run.entry.started,
        verdict=results.verdict.verdict,
        emulated=is_emulated(results),
        start=results.report.region.start if results.report else "",
        findings=tuple(list_findings(results.report)),
        translations=translate_findings(results.report),
        counts=dict(results.verdict.counts),
        compared=results.verdict.compared,
        total=results.verdict.total,
        worst=next((points[record] for record in order if points[record].ratio or not points[record].metric), None),
        modules={name: modules[name] for name in modules if name in set(largest)},
        records={record: points[record] for record in list(kept)[:MOST_RECORDS]},
        curves={one.name: one.found.max_abs_error for one in outcomes if one.found.compared},
    )
    return plain if before is None else _compare(plain, run, results, before[0], before[1])


def _compare(plain: RunSummary, run: NamedRun, results: Results, before: NamedRun, old: Results | None) -> RunSummary:
    """Return a summary with what differs from the run before, if the results of that are still there."""
    try:
        difference = compare_results(before, run, old or read_results(before), results)
    except StoreError as error:
        return replace(plain, notes=(f"not compared with run {before.entry.number}: {error.message}",))
    return replace(
        plain,
        before=before.entry.number,
        changes=(*difference.recipe, *difference.environment),
        notes=difference.notes,
        better=len(difference.better),
        worse=len(difference.worse),
        same=difference.same,
        most_better=tuple(map(_make_move, difference.better[:_MOST_CHANGED])),
        most_worse=tuple(map(_make_move, difference.worse[:_MOST_CHANGED])),
    )


def _make_point(name: str, state: RecordState) -> RecordPoint:
    return RecordPoint(name, state.status, state.metric, *map(_finite, (state.value, state.ratio)))


def _make_move(change: RecordChange) -> RecordMove:
    metric = change.after.metric or change.before.metric
    return RecordMove(change.name, metric, _finite(change.before.value), _finite(change.after.value))


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _importance(state: RecordState) -> tuple[bool, bool, float, float]:
    """Return the key that sorts records: what is no number, then what uses most of its limit."""
    return state.status in MISALIGNED_STATUSES, not state.metric, state.ratio if state.ratio >= 0 else 0.0, state.value


def _locate(folder: Path, entry: RunEntry) -> Path:
    return folder / FOLDER / f"{entry.number}.json"


def _load(folder: Path, entry: RunEntry) -> RunSummary | None:
    """Return the summary that is kept of a run; ``None`` if there is none of this very run that can be read."""
    try:
        summary = _DECODER.decode(intake.read_bytes(_locate(folder, entry)))
    except (OSError, ValueError):  # msgspec's errors are ValueErrors
        return None
    known = (summary.schema, summary.number, summary.started, summary.verdict)
    return summary if known == (_SCHEMA, entry.number, entry.started, entry.verdict) else None
