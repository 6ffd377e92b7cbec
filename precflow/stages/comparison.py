"""Reads what the stages of a run have made, as the one value that evidence and report are made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from precflow.diagnosis.comparison import Comparison
from precflow.stages import curves, introduced
from precflow.stages.alone import read_alone
from precflow.stages.chain import read_parts
from precflow.stages.compare import read_measures
from precflow.stages.determinism import Reproduction, read_reproduction
from precflow.stages.job import Job
from precflow.stages.mend import read_mends
from precflow.stages.second_pass.passes import latest, open_both
from precflow.stages.task_metrics import read_task_metrics


def read_comparison(job: Job, needs: Mapping[str, Path]) -> Comparison:
    """Return what is known of a run, with the results of second pass and evaluation where there were such.

    Args:
        job: The run.
        needs: Folders of stages by name: the dumps, ``compare``, ``judge``, ``localize``, and others as far as they are read.
    """
    reproduction = read_reproduction(latest(needs, "determinism")) if "determinism" in needs else Reproduction()
    judged, verdict, region = introduced.read_conclusion(needs)
    reference, target = open_both(needs, job)
    return Comparison(
        reference,
        target,
        job.config,
        region=region,
        measures=read_measures(latest(needs, "compare")),
        judged=judged,
        verdict=verdict,
        outcomes=curves.read_outcomes(needs),
        blockers=reproduction.blockers,
        incomplete=reproduction.incomplete,
        introduced=introduced.read_introduced(needs),
        steps=introduced.read_steps(needs),
        gradients=introduced.read_gradients(needs),
        explanations=introduced.read_explanations(needs),
        alone=read_alone(needs),
        parts=read_parts(needs),
        task_metrics=read_task_metrics(needs),
        mends=read_mends(needs),
    )
