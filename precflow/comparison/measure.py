"""What ``compare`` writes and ``judge`` reads: one measure for each pair of records, with every metric and no limit.

Two things happen to finished measures: those that rest on an altered file are marked unreadable, and those of a second pass
replace the estimates of the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from precflow.agent.contract import parse_identity
from precflow.dumps.protocol import Dump

NOTHING: Mapping[str, Any] = {}  # one for all: there may be a million measures, with up to four empty mappings each


def _nothing() -> Mapping[str, Any]:
    return NOTHING


@dataclass(frozen=True, slots=True)  # slots: there may be a million of them, and each would have a dict of 1.5 kB
class Measure:
    """One pair of output records (or one record that found no partner), measured.

    Attributes:
        record: Identity text.
        name: The name that screens show (``record_names.name_record``); no two records of a run have the same.
        module: Module path.
        operator: Canonical name, ``""`` for the module itself.
        level: ``module`` or ``api``.
        phase: ``forward``...
        order: Order of the call on the reference; on the target for ``unpaired_target``.
        join: ``paired``, ``unpaired_reference``, ``unpaired_target``, ``shape``, ``unreadable`` or ``sampled_out``.
        reason: Why it is not ``paired``; ``""`` otherwise.
        movement: Pure data movement: steers localization, is not judged.
        judged: Floating point output that counts for the verdict by its limits. Inputs and data movement only steer.
        exact: Integer or boolean output that counts for the verdict: it must be equal, or a near tie.
        reference_dtype: Element type on the reference, ``""`` where absent.
        target_dtype: Element type on the target, ``""`` where absent.
        reference_shape: Sizes on the reference.
        target_shape: Sizes on the target.
        equal: Both have a content id, and the same: the bits are the same.
        metrics: Metric name -> number; exact, or an estimate if ``ranges`` has the name too.
        evidence: The least that either side kept of it, one of ``contract.DETAILS``; ``""`` if nothing was measured.
        share: Share of its elements that was kept. Below 1 (slices, samples) the metrics are those of that part.
        ranges: Metric name -> (lowest, highest) value that the evidence allows, for metrics that are not known exactly.
        absent: Metric name -> why a metric that has a meaning here cannot be computed from what was kept.
        counts: Value classes: ``elements, ordinary, small, sentinel, nonfinite`` and what mismatched by place:
            ``sentinel_mismatch, other_fill, saturated_mismatch, nonfinite_mismatch``; ``measured_fills`` are those of
            ``sentinel`` whose differences are in the metrics.
        warnings: What a reader should know (equal NaN at equal places...).
        site: Where the call stands in the source, reference's.
        target_site: The same on the target.
        peak: Largest magnitude of the reference over its root mean square, fills left out; 0 if that is not known.
        row_peak: Largest norm of a row of the reference over the median of those that are not zero; 0 if that is not known.
        arguments: Non-tensor arguments that differ: name -> (reference, target).
        pairing: How the pair was made: ``name``, ``sequence`` (in order, where a side has several records of the name), or the
            rule, as ``pairing.rules[0]``; ``""`` without a partner.
    """

    record: str
    name: str
    module: str
    operator: str
    level: str
    phase: str
    order: int
    join: str
    reason: str = ""
    movement: bool = False
    judged: bool = True
    exact: bool = False
    reference_dtype: str = ""
    target_dtype: str = ""
    reference_shape: tuple[int, ...] = ()
    target_shape: tuple[int, ...] = ()
    equal: bool = False
    metrics: Mapping[str, float] = field(default_factory=_nothing)
    evidence: str = ""
    share: float = 1.0
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=_nothing)
    absent: Mapping[str, str] = field(default_factory=_nothing)
    counts: Mapping[str, int] = field(default_factory=_nothing)
    warnings: tuple[str, ...] = ()
    site: str = ""
    target_site: str = ""
    peak: float = 0.0
    row_peak: float = 0.0
    arguments: Mapping[str, tuple[str, str]] = field(default_factory=_nothing)
    pairing: str = ""

    @property
    def ordinary_elements(self) -> int:
        """Elements that are neither a mask's fill value, NaN nor infinite, on both sides."""
        counts = self.counts
        return counts.get("elements", 0) - counts.get("sentinel", 0) - counts.get("nonfinite", 0)


def fill(measure: Measure, **facts: Any) -> Measure:
    """Put what was found out into a measure, and return it.

    In place, although measures are frozen: the caller has made it just now, and nobody else has it yet. A copy of a measure
    takes longer than everything that is computed for it.
    """
    for name, value in facts.items():
        object.__setattr__(measure, name, value)
    return measure


def mark_altered_unreadable(measures: Sequence[Measure], reference: Dump, target: Dump) -> list[Measure]:
    """Return the measures; those that rest on an altered record file become ``unreadable``, with the reason.

    A flipped bit in a line may be a digit of a statistic, so such numbers prove nothing. Metrics of tensors stay, and so do
    equal bits: the content ids, which are checked, vouch for both.

    Args:
        measures: Of the two dumps.
        reference: Dump of the reference.
        target: Dump of the target.
    """
    sides = (("reference", reference), ("target", target))
    altered = {rank_and_step: f"{side}: {problem}" for side, dump in sides for rank_and_step, problem in dump.altered.items()}
    return [_mark_unreadable(measure, altered) for measure in measures] if altered else list(measures)


def _mark_unreadable(measure: Measure, altered: Mapping[tuple[int, int], str]) -> Measure:
    if measure.join not in {"paired", "shape"} or measure.equal or measure.evidence == "tensors":
        return measure
    identity = parse_identity(measure.record)
    reason = altered.get((identity.rank, identity.step))
    if reason is None:
        return measure
    return replace(
        measure, join="unreadable", reason=reason, evidence="", metrics={}, ranges={}, absent={}, counts={}, warnings=()
    )


def merge_passes(first: Sequence[Measure], second: Sequence[Measure]) -> list[Measure]:
    """Return the first pass's measures in their order, each replaced by the second pass's if that has metrics.

    A record that the second pass could not read, or has on one side only, keeps its estimate. Order, call sites and arguments
    stay those of the first pass, because the second one records, and numbers, only a part of the calls.
    """
    better = {measure.record: measure for measure in second if measure.join == "paired" and measure.metrics}
    return [
        replace(
            better[measure.record],
            order=measure.order,
            site=measure.site,
            target_site=measure.target_site,
            arguments=measure.arguments,
        )
        if measure.record in better
        else measure
        for measure in first
    ]
