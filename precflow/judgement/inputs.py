"""The status of an input: the comparison measures and judges outputs only, and localization needs some inputs too."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from precflow.agent.contract import level_of, module_text
from precflow.comparison.estimated import estimates
from precflow.comparison.estimated.kept_evidence import EvidenceSource, common_constants
from precflow.comparison.formulas import measure_all
from precflow.comparison.fused.summarize import summarize
from precflow.comparison.measure import Measure
from precflow.comparison.pairing import compare_facts
from precflow.comparison.reading import count_classes, list_warnings
from precflow.config.schema import Tolerance
from precflow.dumps.dtypes import is_floating
from precflow.dumps.records import Record
from precflow.errors import DumpError
from precflow.judgement import standards
from precflow.judgement.accepted import AcceptedDifferences
from precflow.judgement.carried import NOTHING_CARRIED, CarriedTypes
from precflow.judgement.decision import Terms, decide
from precflow.judgement.floors import Floor
from precflow.judgement.verdicts import Judged

JudgeInput = Callable[[Record, Record], Judged]
"""Takes an input of the reference and the same one of the target, and returns its status."""


def make_input_judge(  # noqa: PLR0913  each is a fact of its own, and half of them go by name
    reference: EvidenceSource,
    target: EvidenceSource,
    tolerance: Tolerance,
    *,
    reference_dtype: str,
    target_dtype: str,
    folders: Sequence[Path] = (),
    find_floor: Callable[[Record], Floor | None] = lambda _: None,
    carried: CarriedTypes = NOTHING_CARRIED,
) -> JudgeInput:
    """Return a function that judges an input as if it were an output, by the limits of the run.

    Args:
        reference: What the reference kept.
        target: What the target kept.
        tolerance: The recipe's.
        reference_dtype: Floating point type of the reference's run.
        target_dtype: Floating point type of the target's run.
        folders: Folders with standards besides the shipped ones.
        find_floor: Returns the noise floor of an input of the reference, if there is one (see
            :func:`precflow.judgement.floors.find_floors_of_inputs`), for standards that measure their limits.
        carried: The coarsest types that values went through on the reference, for inputs without a floor.

    Raises:
        ConfigError: A standard is not known or not usable.
    """
    loaded = [standards.load(name, folders) for name in tolerance.standards]
    floors: dict[str, Floor] = {}
    before: dict[str, str] = {}
    terms = Terms(reference_dtype, target_dtype, loaded, tolerance, floors, before)
    measures_limits = any(standard.measured for standard in loaded)

    def judge_input(left: Record, right: Record) -> Judged:
        """Measure and judge one input; nothing is accepted, because accepted differences are those of outputs."""
        measure = measure_input(left, right, reference, target)
        floor = find_floor(left) if measures_limits else None
        if floor is not None:
            floors[measure.record] = floor
        before[measure.record] = carried.before(left)
        return decide(measure, terms, AcceptedDifferences((), datetime.date.max)).judged

    return judge_input


def measure_input(left: Record, right: Record, reference: EvidenceSource, target: EvidenceSource) -> Measure:
    """Measure two records by what was kept of them, as :func:`precflow.comparison.compare.compare` measures outputs.

    Args:
        left: Of the reference.
        right: Of the target.
        reference: What the reference kept.
        target: What the target kept.
    """
    identity = left.identity
    module = module_text(identity.module, identity.call)
    plain = Measure(
        record=left.text,
        name=f"{module} / {identity.operator}" if identity.operator else module,
        module=identity.module,
        operator=identity.operator,
        level=level_of(identity.operator),
        phase=identity.phase,
        order=left.order,
        judged=is_floating(left.dtype) or is_floating(right.dtype),
        **compare_facts(left, right),
    )
    if plain.join != "paired" or not plain.judged:
        return plain
    constants = common_constants(reference, target)
    if estimates.needs_estimate(plain, left, right):
        return estimates.estimate_pair(plain, left, right, reference, target, constants)
    try:
        summary = summarize(reference.tensor(left), target.tensor(right), constants=constants)
    except DumpError as error:
        return replace(plain, join="unreadable", reason=error.message)
    return replace(
        plain,
        evidence="tensors",
        metrics=measure_all(summary),
        counts=count_classes(summary),
        warnings=list_warnings(summary),
    )
