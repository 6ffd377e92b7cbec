"""What task metrics add to a verdict: one beyond its limit is misaligned, and one that is within takes nothing back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from precflow.judgement.verdicts import Verdict
from precflow.task.outcome import (
    BEYOND,
    NO_LIMIT,
    NOT_COMPUTED,
    NOT_TOLD,
    WITHIN,
    TaskOutcome,
    describe_limit,
    describe_value,
    is_in_doubt,
)

TENSORS_ALONE = "tensors differ, the task does not: "


def hold_to_task(verdict: Verdict, outcomes: Sequence[TaskOutcome]) -> Verdict:
    """Return a verdict with what task metrics say.

    A metric beyond its limit makes it misaligned. One that has a limit and could not be computed, or that is worse than its
    limit by what may be chance, keeps it from being aligned. One whose samples are too few to tell is a warning: the verdict of
    the tensors is about these very samples. One within its limit makes nothing aligned.
    """
    if not outcomes:
        return verdict
    held = [one for one in outcomes if one.state != NO_LIMIT and one.limit is not None]
    failed = [
        f"{one.name} is beyond its limit: {describe_value(one)}, {describe_limit(one)}" for one in held if one.state == BEYOND
    ]
    open_ = [f"{one.name} is not known: {one.why}" for one in held if one.state == NOT_COMPUTED or is_in_doubt(one)]
    warnings = [
        f"cannot tell whether {one.name} ({describe_value(one)}) is within its limit: {one.why}"
        for one in held
        if one.state == NOT_TOLD and not is_in_doubt(one)
    ]
    warnings += [f"{one.name}: not computed: {one.why}" for one in outcomes if one.state == NOT_COMPUTED and one.limit is None]
    if verdict.verdict == "misaligned" and held and all(one.state == WITHIN for one in held):
        within = "is within its limit" if len(held) == 1 else "are within their limits"
        warnings.insert(0, f"{TENSORS_ALONE}{', '.join(one.name for one in held)} {within}")
    outcome = "misaligned" if failed else "inconclusive" if open_ and verdict.verdict == "aligned" else verdict.verdict
    return replace(
        verdict,
        verdict=outcome,
        reasons=(*failed, *verdict.reasons, *open_),
        warnings=(*verdict.warnings, *warnings),
    )
