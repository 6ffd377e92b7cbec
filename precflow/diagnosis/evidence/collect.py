"""Collects all evidence of a run with bounded work: headers, statuses, and the tensors of the first three suspects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from precflow.comparison.measure import Measure
from precflow.config.schema import RunConfig
from precflow.config.vocabulary import ESCALATING
from precflow.diagnosis.evidence import operator_families, overflow, run, skipped_steps, suspect
from precflow.diagnosis.evidence.run import UNPAIRED
from precflow.diagnosis.evidence.tensors import Readable, call_identity, observe
from precflow.diagnosis.findings import Region, Suspect
from precflow.judgement.verdicts import Judged

_LISTED = 5
_EXACT = 2.0**-18  # relative error; with operands of 11 bits a product has 2^-14 to 2^-11
SUSPECTS = 3
"""Number of suspects whose tensors are read."""
_NOT_JUDGED = Judged(record="", status="not_judged")  # the status of data movement that changed values


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
    introduced: Mapping[str, suspect.Introduced] | None = None,
) -> dict[str, Any]:
    """Return evidence by the names of ``names.EVIDENCE``, and under ``suspects`` one mapping for each of the first three.

    Evidence that could not be measured is absent, so that no rule takes it for a measured value.

    Args:
        reference: Dump of the reference.
        target: Dump of the target.
        region: Where the sides part.
        measures: All pairs; none if blockers stood in the way.
        judged: Their statuses.
        config: The recipe.
        blockers: What made a comparison meaningless; then no tensor is read.
        incomplete: What is damaged in a dump or was never sealed, in words.
        introduced: Identity text of a record -> what float64 at the target's own inputs said about it.
    """
    statuses = {record.record: record for record in judged}
    families = {operator_families.find_family(suspect.operator) for suspect in region.suspects}
    observed = [] if blockers else observe(reference, target, region.suspects[:SUSPECTS])
    headers, same = (reference.header, target.header), config.environment.same
    same_dtype = reference.header.dtype == target.header.dtype
    traces = None if blockers else overflow.trace_sides(reference, target, measures)
    steps = skipped_steps.NOTHING if traces is None else skipped_steps.find_skipped_steps(*traces)
    # The records of a step that one side skipped are missing for a known reason, which is a finding of its own.
    unexplained = [record for record in judged if record.status not in UNPAIRED or not steps.explains(record.record)]
    return {
        "recipe": config.recipe,
        "keep_tensors": keep_tensors(config),
        **run.gather(*headers, same=same, measures=measures, judged=unexplained, incomplete=incomplete),
        "arguments_elsewhere": []
        if blockers
        else find_arguments_elsewhere(reference, target, region.suspects, same_dtype=same_dtype),
        "suspect_count": len(region.suspects),
        "suspects_all_matmul": families == {"matmul"},
        "unrepeatable_reference": _select_side(region.unrepeatable, "reference"),
        "unrepeatable_target": _select_side(region.unrepeatable, "target"),
        **({} if traces is None else {**overflow.gather(*traces), **steps.evidence}),
        "suspects": [
            suspect.gather(
                call,
                statuses.get(call.suspect.record, _NOT_JUDGED),
                same_dtype=same_dtype,
                introduced=(introduced or {}).get(call.suspect.record),
            )
            | _count_exact_products(call.suspect, measures)
            for call in observed
        ],
    }


def _count_exact_products(suspect: Suspect, measures: Sequence[Measure]) -> dict[str, int]:
    """Count products of the suspect's kind that came before it and agree: a switch such as TF32 would have changed them too."""
    if operator_families.find_family(suspect.operator) != "matmul":
        return {}
    convolves = suspect.operator.startswith("conv")
    count = 0
    for measure in measures:
        error = measure.metrics.get("relative_l2")
        is_product = (
            operator_families.find_family(measure.operator) == "matmul" and measure.operator.startswith("conv") == convolves
        )
        if is_product and measure.order < suspect.order and error is not None and error < _EXACT:
            count += 1
    return {"exact_products": count}


def find_arguments_elsewhere(
    reference: Readable, target: Readable, suspects: Sequence[Suspect], *, same_dtype: bool
) -> list[str]:
    """Return ``call: name: reference / target`` for calls that are no suspects and were made with another argument."""
    others = {call_identity(call): call for call in target.calls() if call.arguments}
    suspected = {one.record for one in suspects}
    found: list[str] = []
    for call in reference.calls():
        partner = others.get(call_identity(call))
        if partner is None or partner.arguments == call.arguments or any(one.text in suspected for one in call.outputs):
            continue
        found += [f"{call.name}: {text}" for text in suspect.find_different_arguments(call, partner, same_dtype=same_dtype)]
        if len(found) >= _LISTED:
            break
    return found[:_LISTED]


def keep_tensors(config: RunConfig) -> str:
    """Return the override with which another run keeps the tensors of its suspects: escalating if possible."""
    capture = config.capture
    once = capture.keep_last or config.reference.dump or config.target.dump  # neither allows a second pass
    return "capture=tensors" if once or capture.detail == ESCALATING else "capture=escalating"


def _select_side(names: Sequence[str], side: str) -> list[str]:
    """Return the names of one side; the region has ``side: name``, which ``result.json`` shows."""
    return [name.removeprefix(f"{side}: ") for name in names if name.startswith(f"{side}: ")]
