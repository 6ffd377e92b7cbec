"""How much was compared, how much of it could have failed, and what would decide the records that are undecided."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from precflow.agent.contract import OUTSIDE
from precflow.comparison.measure import Measure
from precflow.config.schema import RunConfig
from precflow.config.vocabulary import ESCALATING
from precflow.dumps.dtypes import real_part
from precflow.judgement.verdicts import BY_BITS, STATUSES, Judged

# A blind record was compared too: its numbers are known, but no limit that applies to it could have failed.
COMPARED = frozenset({"pass", "fail", "blind", "accepted", "dtype", "nonfinite", "near_tie"})
_MOSTLY = 0.5  # a phase is named as blind if more than this share of its compared records is
_REGION_STAGE = "region"  # chooses what the second pass looks into


@dataclass(frozen=True, slots=True)
class Tally:
    """Numbers of records.

    Attributes:
        counts: Status -> records, in the order of ``STATUSES``, without zeros.
        total: Records that should have been compared, those without a partner included.
        compared: Records that were.
        could_fail: Compared records that are not blind. Those that pass by their bits alone count only if no record is blind:
            they would vouch for blind ones that differ.
        covered: Records without a partner inside a module that was compared.
    """

    counts: Mapping[str, int]
    total: int
    compared: int
    could_fail: int
    covered: int = 0

    @property
    def coverage(self) -> float:
        """Compared and covered over total, 0 to 1; 0 if nothing was compared."""
        return (self.compared + self.covered) / self.total if self.compared else 0.0


def tally(judged: Sequence[Judged]) -> Tally:
    """Count statuses."""
    numbers = Counter(record.status for record in judged)
    counts = {status: numbers[status] for status in STATUSES if numbers[status]}
    compared = sum(count for status, count in counts.items() if status in COMPARED)
    total, covered = len(judged) - counts.get("not_judged", 0), counts.get("covered", 0)
    by_bits = sum(record.reason == BY_BITS for record in judged)
    blind = counts.get("blind", 0)
    able = compared - blind - by_bits
    return Tally(counts, total, compared, able if blind else able + by_bits, covered)


def count_estimated(measures: Sequence[Measure], judged: Sequence[Judged]) -> int:
    """Count the compared records that differ and were judged by estimates or bounds, not by their tensors."""
    return sum(bool(measure.ranges) and record.status in COMPARED for measure, record in zip(measures, judged, strict=True))


def share_sampled(measures: Sequence[Measure], judged: Sequence[Judged]) -> float:
    """Return the share of the elements of the compared records that was looked at.

    A record with equal content counts as looked at in full: its content id covers every element.
    """
    compared = [measure for measure, record in zip(measures, judged, strict=True) if record.status in COMPARED]
    sizes = [(math.prod(measure.reference_shape), 1.0 if measure.equal else measure.share) for measure in compared]
    total = sum(size for size, _ in sizes)
    return sum(size * share for size, share in sizes) / total if total else 1.0


def describe_blind_phases(measures: Sequence[Measure], judged: Sequence[Judged]) -> list[str]:
    """Name the phases whose compared records are mostly blind."""
    compared: Counter[str] = Counter()
    blind: Counter[str] = Counter()
    for measure, record in zip(measures, judged, strict=True):
        compared[measure.phase] += record.status in COMPARED
        blind[measure.phase] += record.status == "blind"
    return [
        f"{phase} is mostly blind: {blind[phase]} of {records_in_words(count)} could not have failed"
        for phase, count in compared.items()
        if blind[phase] > _MOSTLY * count
    ]


def describe_empty_ends(measures: Sequence[Measure], judged: Sequence[Judged]) -> list[str]:
    """Name the first output of a forward's last call that holds no ordinary number on either side.

    The last call is the model itself, if it was recorded. What it computed is unknown then, however well everything before
    agrees.
    """
    compared = [
        (measure, record)
        for measure, record in zip(measures, judged, strict=True)
        if record.status in COMPARED and measure.phase == "forward"
    ]
    last: dict[str, int] = {}
    for measure, _ in compared:
        when = _step_and_rank(measure)
        last[when] = max(measure.order, last.get(when, 0))
    ends = [
        measure.name
        for measure, record in compared
        if measure.order == last[_step_and_rank(measure)] and record.status == "blind" and not measure.ordinary_elements
    ]
    holds = "has no element, or only NaN, Inf and mask fill values, on both sides"
    return [f"nothing is known about the end, {ends[0]}: it {holds}"] if ends else []


def describe_other_types(measures: Sequence[Measure], reference_dtype: str, target_dtype: str) -> list[str]:
    """Name the sides that have no record in the floating point type that the side was to run in.

    A model that casts its inputs to float32 by itself, for example, was never looked at in the recipe's bfloat16.
    """
    sides = {
        "reference": (reference_dtype, {measure.reference_dtype for measure in measures if measure.judged}),
        "target": (target_dtype, {measure.target_dtype for measure in measures if measure.judged}),
    }
    return [
        f"the {side} was to run in {wanted}, and none of its records is: {', '.join(sorted(names - {''}))} only"
        for side, (wanted, names) in sides.items()
        if names - {""} and wanted not in map(real_part, names)
    ]


def describe_not_judged(measures: Sequence[Measure]) -> list[str]:
    """Warn of differences that are not judged: integers of an operator's own, and data movement at the end of the forward."""
    paired = (measure for measure in measures if not measure.join.startswith("unpaired"))
    integers = [measure for measure in paired if not (measure.judged or measure.exact or measure.movement or measure.equal)]
    forward = (measure for measure in measures if measure.phase == "forward")
    end = max(forward, key=lambda measure: measure.order, default=None)
    texts = []
    if integers:
        differ = "differ and are" if len(integers) > 1 else "differs and is"
        texts.append(f"{records_in_words(len(integers))} without fractions {differ} not judged, first {integers[0].name}")
    if end is not None and end.movement and not end.equal:
        advice = "" if end.module == OUTSIDE else ": capture.level=[module,api] records its module"
        texts.append(f"the last call, {end.name}, moves values and is not judged{advice}")
    return texts


def describe_partly_judged(measures: Sequence[Measure], judged: Sequence[Judged]) -> list[str]:
    """Warn of records that were judged by a part of their elements."""
    partly = [
        measure
        for measure, record in zip(measures, judged, strict=True)
        if record.status in COMPARED and measure.share < 1 and not measure.equal
    ]
    if not partly:
        return []
    least = min(partly, key=lambda measure: measure.share)
    counted = f"{records_in_words(len(partly))} {'were' if len(partly) > 1 else 'was'}"
    text = f"{counted} judged by a part of the elements, least {least.name}: {least.share:.3g} of them"
    # Content ids cover the whole tensor: if they differ and the part has no error, the difference is in the other elements.
    elsewhere = [
        measure for measure in partly if measure.metrics.get("max_abs_error") == 0 and "max_abs_error" not in measure.ranges
    ]
    if elsewhere:
        differ = "differ" if len(elsewhere) > 1 else "differs"
        text += f"; {len(elsewhere)} of them {differ} in other elements only, first {elsewhere[0].name}"
    return [text]


def records_in_words(count: int) -> str:
    """Return a number of records in words.

    >>> records_in_words(1), records_in_words(2)
    ('1 record', '2 records')
    """
    return f"{count} record{'s' * (count != 1)}"


def suggest_remedy(undecided: Sequence[Measure], config: RunConfig, *, second_pass: bool) -> str:
    """Say what would decide the undecided records, so that nobody is told to do what was done already.

    Args:
        undecided: Records that no limit could decide. If their tensors were read, nothing more can be kept of them.
        config: The recipe. A dump that it was given cannot be recorded again by the same recipe.
        second_pass: The tensors of the suspect calls have been fetched already.

    Returns:
        The remedy in words; ``""`` if keeping more would not help.
    """
    if all(measure.evidence == "tensors" for measure in undecided):
        return ""
    capture = config.capture
    if config.reference.dump or config.target.dump:
        return "their tensors would: record both sides again with capture=tensors"
    if capture.detail != ESCALATING:
        again = "capture=tensors" if capture.keep_last else "capture=escalating"  # escalating excludes keep_last
        return f"their tensors would: {again}"
    if config.stages and _REGION_STAGE not in config.stages:
        return f"the second pass would fetch their tensors, and stages leaves {_REGION_STAGE} out"
    if not second_pass:
        return f"the second pass fetches their tensors{' as far as capture.budget has room' if capture.budget else ''}"
    no_room = "the second pass had no room for their tensors: a larger capture.budget"
    not_fetched = "the second pass did not fetch their tensors: capture=tensors keeps those of every record"
    return no_room if capture.budget else not_fetched


def _step_and_rank(measure: Measure) -> str:
    """Return step and rank of a record as its identity ends: ``1.0`` of ``fc/forward.output.0@1.0``."""
    return measure.record.rpartition("/")[2].partition("@")[2]
