"""What is known of a run when its causes are looked for: two dumps, and what each stage has made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from precflow.comparison.measure import Measure
from precflow.config.schema import RunConfig
from precflow.curves.outcome import CurveOutcome
from precflow.diagnosis.alone import RunAlone
from precflow.diagnosis.chain import Part
from precflow.diagnosis.explained import Explanation
from precflow.diagnosis.findings import Region
from precflow.diagnosis.introduced import IntroducedError
from precflow.diagnosis.mend import Mend
from precflow.diagnosis.training.gradients import Gradients
from precflow.diagnosis.training.replay import ReplayedStep
from precflow.dumps.protocol import Dump
from precflow.judgement.verdicts import Judged, Verdict
from precflow.task.outcome import TaskOutcome


@dataclass(frozen=True)
class Comparison:
    """Two dumps, and what each stage between has made of them.

    Attributes:
        reference: Dump of the reference.
        target: Dump of the target.
        config: The recipe.
        region: Where the sides part.
        measures: All pairs; none if blockers stood in the way.
        judged: Their statuses.
        verdict: The verdict of the run; ``None`` if there is none yet.
        outcomes: What is said about each curve.
        blockers: What made a comparison meaningless; then no tensor is read.
        incomplete: What is damaged in a dump or was never sealed, in words.
        introduced: What float64 at the target's own inputs said about outputs.
        steps: The optimizer's steps, computed again.
        gradients: The gradients of both sides.
        explanations: What explains suspects: computed again with one thing changed.
        alone: Suspects that the target has run alone.
        parts: Parts of the model that were run on the reference's inputs.
        task_metrics: What is said about each task metric.
        mends: What was tried on those of them that are to blame.
    """

    reference: Dump
    target: Dump
    config: RunConfig
    region: Region = field(default_factory=Region)
    measures: Sequence[Measure] = ()
    judged: Sequence[Judged] = ()
    verdict: Verdict | None = None
    outcomes: Sequence[CurveOutcome] = ()
    blockers: Sequence[str] = ()
    incomplete: Sequence[str] = ()
    introduced: Sequence[IntroducedError] = ()
    steps: Sequence[ReplayedStep] = ()
    gradients: Gradients = field(default_factory=Gradients)
    explanations: Sequence[Explanation] = ()
    alone: Sequence[RunAlone] = ()
    parts: Sequence[Part] = ()
    task_metrics: Sequence[TaskOutcome] = ()
    mends: Sequence[Mend] = ()

    @property
    def same_dtype(self) -> bool:
        """Whether both sides compute in the same floating point type."""
        return self.reference.header.dtype == self.target.header.dtype

    def explain(self, call: str) -> Explanation | None:
        """Return what explains a call, by its name of ``diagnosis.evaluation``; ``None`` if nothing was tried.

        A module's gradients may come from several calls of the backward; the first one counts.
        """
        return next((one for one in self.explanations if call in one.calls), None)
