"""Everything that a report says, as one typed value. Page, Markdown, JSON, JUnit and terminal only render it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from precflow.comparison.detail.record import RecordDetail
from precflow.curves.outcome import CurveOutcome
from precflow.diagnosis.chain import Part
from precflow.diagnosis.findings import Finding, Outcome, Region
from precflow.diagnosis.golden import GoldenRow
from precflow.diagnosis.mend import Mend
from precflow.diagnosis.operator_table import OperatorRow
from precflow.diagnosis.training.gradients import GradientRow
from precflow.diagnosis.training.phases import PhaseState
from precflow.diagnosis.training.procedure import Check
from precflow.environment.known_issues import MetIssue
from precflow.environment.program import SourceDifference
from precflow.judgement.verdicts import Verdict
from precflow.report.row import Row
from precflow.task.outcome import TaskOutcome

__all__ = ["RESULT_SCHEMA", "GroupRow", "ReportModel", "Row", "SideView", "StageView"]

RESULT_SCHEMA = 1


@dataclass(frozen=True)
class SideView:
    """One side as the report shows it.

    Attributes:
        side: ``reference`` or ``target``.
        title: One line: device, versions, dtype.
        emulated: The device is emulated.
        device: Device name.
        dtype: Floating point type.
        facts: Flat facts, dotted name -> text.
        ranks: Number of processes that it ran as.
    """

    side: str
    title: str
    emulated: bool
    device: str
    dtype: str
    facts: Mapping[str, str] = field(default_factory=dict)
    ranks: int = 1


@dataclass(frozen=True)
class StageView:
    """One stage instance in the report: ``name``, ``state`` (kept, run, failed, skipped), ``seconds``, ``note``."""

    name: str
    state: str
    seconds: float
    note: str = ""


@dataclass(frozen=True)
class GroupRow:
    """The records of one module, operator, type or phase, counted.

    Attributes:
        by: What they have in common: ``module``, ``operator``, ``type`` or ``phase``.
        name: Its name. A module's has two levels, such as ``encoder.layers.0``; two types are ``float32 -> float16``.
        records: How many were judged.
        failed: Of them, those that are misaligned.
        in_doubt: Of them, those without a partner, unreadable or undecided.
        worst: Largest share of its limit that one uses, infinity where no number says how far a record is off; ``None`` if
            none has a limit.
        median: Median of these shares; ``None`` if none has a limit.
        record: Name of the record with the largest.
        metric: The metric of that share; ``""`` where no number says it.
    """

    by: str
    name: str
    records: int
    failed: int
    in_doubt: int
    worst: float | None
    median: float | None
    record: str
    metric: str = ""


@dataclass(frozen=True)
class ReportModel:
    """Everything a report says.

    Attributes:
        recipe: Name.
        title: Title of the recipe.
        run: Number of the run in its folder.
        finished: ISO date and time, UTC, to the minute.
        precflow: Version.
        command: The command line as the user may type it again.
        sides: Reference and target.
        verdict: Outcome.
        region: Where it starts.
        findings: Advice, best first.
        rows: Every record, in order of the graph; of a bounded model those that matter most.
        differences: Environment differences: fact -> (reference, target).
        stages: What ran.
        recipe_yaml: The composed recipe, without site and secrets.
        columns: Metrics shown first.
        seconds: Length of the run.
        emulated: Any side is emulated.
        emulation: Name of the emulated fault, ``""`` for none.
        details: The records that are furthest over their limits, in full.
        rows_left_out: Records that are not among the rows.
        whatifs: What the what-ifs have shown, the one that removes most first.
        parts: Parts of the model that were run on the reference's inputs, and which of them are to blame.
        task_metrics: What is said about each task metric, with pictures and texts.
        mends: What was tried on the parts to blame, and at which price; the run as it is first.
        operators: How exact each operator of the target is, where that was asked for.
        phases: The parts of a training step and which of them is guilty; empty for a run that trains nothing.
        procedure: The checks of a training migration, in order; empty for a run that trains nothing.
        golden: Records against a golden run, where one was made, in order of the graph.
        gradients: Norm and direction of the gradients, those of the most different parameters; empty if none were kept.
        curves: What is said about the curves of a training run, in order of the recipe.
        groups: All records by module, operator, type and phase; empty if nothing was compared.
        known_issues: What is publicly known of the versions of both sides, first what is about a finding.
        language: Language of page and Markdown: ``en``, ``zh``, or ``both``. The model itself is English.
        sources: Imported sources of model and script that differ between the sides, line by line.
        roles_left_out: Role -> those of them that were judged; every count of records includes them.
    """

    recipe: str
    title: str
    run: int
    finished: str
    precflow: str
    command: str
    sides: tuple[SideView, ...]
    verdict: Verdict
    region: Region
    findings: tuple[Finding, ...]
    rows: tuple[Row, ...]
    differences: Mapping[str, tuple[str, str]]
    stages: tuple[StageView, ...]
    recipe_yaml: str
    columns: tuple[str, ...]
    seconds: float
    emulated: bool
    emulation: str = ""
    details: tuple[RecordDetail, ...] = ()
    whatifs: tuple[Outcome, ...] = ()
    operators: tuple[OperatorRow, ...] = ()
    parts: tuple[Part, ...] = ()
    task_metrics: tuple[TaskOutcome, ...] = ()
    mends: tuple[Mend, ...] = ()
    curves: tuple[CurveOutcome, ...] = ()
    phases: tuple[PhaseState, ...] = ()
    procedure: tuple[Check, ...] = ()
    gradients: tuple[GradientRow, ...] = ()
    golden: tuple[GoldenRow, ...] = ()
    groups: tuple[GroupRow, ...] = ()
    rows_left_out: int = 0
    known_issues: tuple[MetIssue, ...] = ()
    language: str = "en"
    sources: tuple[SourceDifference, ...] = ()
    roles_left_out: Mapping[str, int] = field(default_factory=dict)
