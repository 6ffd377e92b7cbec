"""Gathers all named evidence of a run, with bounded work: headers, statuses, and the tensors of three suspects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from precflow.comparison.measure import Measure
from precflow.config.schema import RunConfig
from precflow.config.vocabulary import ESCALATING
from precflow.diagnosis.evidence import operator_families, overflow, run, skipped_steps, suspect
from precflow.diagnosis.evidence.run import UNPAIRED
from precflow.diagnosis.evidence.tensors import Readable, observe
from precflow.diagnosis.findings import Region
from precflow.judgement.verdicts import Judged

SUSPECTS = 3
"""Suspects whose tensors are read."""


def collect(  # noqa: PLR0913  # what advise has: two dumps and what each stage between made of them
    reference: Readable,
    target: Readable,
    *,
    region: Region,
    measures: Sequence[Measure],
    judged: Sequence[Judged],
    config: RunConfig,
    blockers: Sequence[str] = (),
    incomplete: Sequence[str] = (),
) -> dict[str, Any]:
    """Return evidence by the names of ``names.EVIDENCE``, and under ``suspects`` one mapping for each of the first three.

    What could not be had is absent, so that no rule takes it for a measured value.

    Args:
        reference: Dump of the reference.
        target: Dump of the target.
        region: Where the sides part.
        measures: All pairs; none where blockers stood in the way.
        judged: Their statuses.
        config: The recipe.
        blockers: What made a comparison meaningless; then no tensor is read.
        incomplete: What of a dump is damaged or was never sealed, in words.
    """
    statuses = {one.record: one for one in judged}
    looked_at = [] if blockers else observe(reference, target, region.suspects[:SUSPECTS])
    headers, same = (reference.header, target.header), config.environment.same
    same_dtype = reference.header.dtype == target.header.dtype
    sides = None if blockers else overflow.sides(reference, target, measures)
    steps = skipped_steps.NOTHING if sides is None else skipped_steps.find(*sides)
    unexplained = [one for one in judged if one.status not in UNPAIRED or not steps.explains(one.record)]
    return {
        "recipe": config.recipe,
        "keep_tensors": keep_tensors(config),
        **run.about(*headers, same=same, measures=measures, judged=unexplained, incomplete=incomplete),
        **_region(region),
        **({} if sides is None else {**overflow.about(*sides), **steps.evidence}),
        "suspects": [
            suspect.about(observed, statuses.get(observed.suspect.record, _MOVED), same_dtype=same_dtype)
            for observed in looked_at
        ],
    }


def keep_tensors(config: RunConfig) -> str:
    """Return the override with which another run keeps the tensors of its suspects: escalating where that can be."""
    capture = config.capture
    once = capture.keep_last or config.reference.dump or config.target.dump  # which a second pass excludes
    return "capture=tensors" if once or capture.detail == ESCALATING else "capture=escalating"


_MOVED = Judged(record="", status="not_judged")


def _region(region: Region) -> dict[str, Any]:
    kinds = {operator_families.family(one.operator) for one in region.suspects}
    return {
        "suspect_count": len(region.suspects),
        "suspects_all_matmul": kinds == {"matmul"},
        "unrepeatable_reference": _of_side(region.unrepeatable, "reference"),
        "unrepeatable_target": _of_side(region.unrepeatable, "target"),
    }


def _of_side(names: Sequence[str], side: str) -> list[str]:
    return [name.removeprefix(f"{side}: ") for name in names if name.startswith(f"{side}: ")]
