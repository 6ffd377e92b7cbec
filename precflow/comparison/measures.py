"""What ``compare`` writes and ``judge`` reads: one measure a pair of records, with every metric and no limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

JOINS = ("paired", "unpaired_reference", "unpaired_target", "shape", "unreadable", "sampled_out")


@dataclass(frozen=True)
class Measure:
    """One pair of output records (or one record that found no partner), measured.

    Attributes:
        record: Identity text.
        name: ``module / operator`` as screens show it.
        module: Module path.
        operator: Canonical name, ``""`` for the module itself.
        level: ``module`` or ``api``.
        phase: ``forward``...
        order: Order of the call on the reference; on the target for ``unpaired_target``.
        join: One of ``JOINS``.
        reason: Why it is not ``paired``; ``""`` otherwise.
        movement: Pure data movement: steers localization, is not judged.
        judged: Float output that counts for the verdict (see DESIGN: inputs, movement and integers only steer).
        reference_dtype: Element type on the reference, ``""`` where absent.
        target_dtype: Element type on the target, ``""`` where absent.
        reference_shape: Sizes on the reference.
        target_shape: Sizes on the target.
        equal: Both have a content id, and the same: the bits are the same.
        metrics: Metric name -> number, exact, or estimated where ``ranges`` names it too; what cannot be had is absent.
        evidence: The least that either side kept of it, one of ``kept.EVIDENCE``; ``""`` where nothing was measured.
        share: Share of its elements that was kept; below 1 for slices and samples, whose metrics are those of the part.
        ranges: Metric name -> (lowest, highest) value that the kept evidence allows, for metrics that are no exact numbers.
        absent: Metric name -> why it has a meaning and cannot be had from what was kept.
        counts: Value classes: ``elements, ordinary, small, sentinel, nonfinite`` and what mismatched by place:
            ``sentinel_mismatch, other_fill, saturated_mismatch, nonfinite_mismatch``; ``measured_fills`` are those of
            ``sentinel`` whose differences are in the metrics.
        warnings: What a reader should know (equal NaN at equal places...).
        site: Where the call stands in the source, reference's.
        target_site: The same on the target.
        arguments: Non-tensor arguments that differ: name -> (reference, target).
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
    reference_dtype: str = ""
    target_dtype: str = ""
    reference_shape: tuple[int, ...] = ()
    target_shape: tuple[int, ...] = ()
    equal: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    evidence: str = ""
    share: float = 1.0
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    site: str = ""
    target_site: str = ""
    arguments: Mapping[str, tuple[str, str]] = field(default_factory=dict)
