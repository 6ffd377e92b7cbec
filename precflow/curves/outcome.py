"""Everything that is said about one curve of a run, as one typed value: stages write it, reports show it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from precflow.config.sections.standard_sections import LossLimits
from precflow.curves.deviations import Deviations, find_scale_drops, measure
from precflow.curves.epochs import agree
from precflow.curves.growth import FEWEST, Growth, explain_growth
from precflow.curves.joining import Joined, join
from precflow.curves.limits import Held, check_whole, hold_to_limit, hold_to_standard
from precflow.curves.relation import Relation, find_relation
from precflow.curves.series import Series, Steps, Values

LOSS = "loss"  # name of the curve that capture itself sees
MOST_POINTS = 600  # of a curve in a report; a screen has no more columns
_BETTER = 0.1  # of the mean difference is left if the steps of one side are counted from another number
_SCALE = "scale"


class HeldStandard(NamedTuple):
    """A standard that a curve is held to: its name with its date, and its limits."""

    name: str
    limits: LossLimits


@dataclass(frozen=True)
class Point:
    """A step of a picture: both numbers, and their absolute difference."""

    step: int
    reference: float
    target: float
    difference: float


@dataclass(frozen=True)
class CurveOutcome:
    """What is said about one curve.

    Attributes:
        name: Name of the curve, such as ``loss``.
        verdict: ``aligned``, ``misaligned`` or ``inconclusive``.
        failed: What exceeds its limit.
        missing: What is missing for a verdict.
        notes: What else a reader should know.
        restarts: Those of the notes that say where a log goes back to an earlier step.
        standard: Name of the standard, ``""`` for none.
        limits: Plain limits by name.
        met: The standard and each plain limit by name -> it is met, whatever the others say. Nothing is met where the curves
            cannot be compared as a whole.
        sources: Side -> where the curve was read from.
        logged: Side -> number of steps that it has.
        found: How far the curves are apart.
        growth: How the difference grows; from where the curves are apart on, if they are so from one step to the next.
        relation: The constant factor or amount that explains the difference.
        resumed: Side whose log was resumed where the curves begin to be apart; ``""`` for neither.
        last_step: The last step that both have; -1 without any.
        shift: What to add to the target's steps so that the curves agree far better; 0 if nothing does.
        scale_drops: Side -> steps at which a loss scale was lowered; of a curve with ``scale`` in its name alone.
        fluctuation: The largest difference of a further run of the reference from the reference; 0 without one.
        repeats: Number of further runs of the reference.
        points: The picture; every step, or the least and the largest numbers of each stretch of steps.
    """

    name: str
    verdict: str
    failed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    restarts: tuple[str, ...] = ()
    standard: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
    met: Mapping[str, bool] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    logged: Mapping[str, int] = field(default_factory=dict)
    found: Deviations = field(default_factory=Deviations)
    growth: Growth = field(default_factory=Growth)
    relation: Relation = field(default_factory=Relation)
    resumed: str = ""
    last_step: int = -1
    shift: int = 0
    scale_drops: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    fluctuation: float = 0.0
    repeats: int = 0
    points: tuple[Point, ...] = ()


def examine(  # noqa: PLR0913  each is a fact of its own, and all but three go by name
    name: str,
    reference: Series,
    target: Series,
    *,
    steps: int = 0,
    limits: Mapping[str, float],
    standard: HeldStandard | None = None,
    repeats: Sequence[Series] = (),
) -> CurveOutcome:
    """Compare two curves and hold them to limits.

    Args:
        name: Name of the curve.
        reference: The reference's.
        target: The target's.
        steps: How many steps are compared, from the first that both have; fewer are inconclusive. 0 is all.
        limits: Plain limits by name.
        standard: What it is held to besides.
        repeats: The same curve of further runs of the reference.
    """
    reference, target, *repeats = agree([reference, target, *repeats])
    whole = join(reference, target)
    joined = _keep_first(whole, steps)
    found = measure(joined)
    others = [measure(join(reference, repeat)) for repeat in repeats]
    complete = check_whole(name, joined, found, steps=steps)
    each = {limit: hold_to_limit(name, limit, value, found) for limit, value in limits.items()}
    if standard is not None:
        by_standard = hold_to_standard(name, standard.limits, found, others)
        texts = (tuple(f"{standard.name}: {text}" for text in said) for said in vars(by_standard).values())
        each[standard.name] = Held(*texts)
    held = sum(each.values(), complete)
    shift = find_shift(reference, target)
    notes = [*joined.notes, *held.notes]
    if whole.started and not joined.started:  # the steps that were asked for are those from there on
        notes.append(f"compared from step {whole.started[1]} on, where the {whole.started[0]}'s {name} begins")
    if shift:
        notes.append(
            f"the curves agree far better with {shift:+d} added to the target's steps: do both count from the same number?"
        )
    if found.equal_until > found.first_step and not held.failed:
        apart = f"{100 * found.smooth_rel_error:.2g} % apart from step {found.apart_from} on"
        notes.append(
            f"the same numbers up to step {found.equal_until}, then {apart}: "
            f"capture.step=[{found.apart_from}] records that step"
        )
    finite = np.isfinite(joined.reference) & np.isfinite(joined.target)
    scales = {"reference": reference, "target": target} if _SCALE in name else {}
    return CurveOutcome(
        name=name,
        verdict="misaligned" if held.failed else "inconclusive" if held.missing else "aligned",
        failed=held.failed,
        missing=held.missing,
        notes=tuple(notes),
        restarts=joined.restarts,
        standard=standard.name if standard else "",
        limits=dict(limits),
        met={limit: bool(found.compared) and complete.is_met and one.is_met for limit, one in each.items()},
        sources={"reference": reference.source, "target": target.source},
        logged={"reference": len(reference), "target": len(target)},
        found=found,
        growth=_explain_growth(joined.steps[finite], (joined.target - joined.reference)[finite], found),
        relation=find_relation(joined.reference[finite], joined.target[finite]),
        resumed=_find_resumed(joined, found),
        last_step=int(joined.steps[-1]) if len(joined) else -1,
        shift=shift,
        scale_drops={side: find_scale_drops(series.steps, series.values) for side, series in scales.items()},
        fluctuation=max((one.max_abs_error for one in others), default=0.0),
        repeats=len(others),
        points=choose_points(joined),
    )


def _explain_growth(steps: Steps, difference: Values, found: Deviations) -> Growth:
    """Explain how a difference grows, without the steps before a jump: what was equal and then is not looks like growth."""
    behind = steps >= found.apart_from
    if found.apart_at_once and np.count_nonzero(behind) >= FEWEST:
        return explain_growth(steps[behind], difference[behind])
    return explain_growth(steps, difference)


def _find_resumed(joined: Joined, found: Deviations) -> str:
    """Return the side whose log was resumed at the step from which on the curves are apart; ``""`` for neither or both."""
    if found.apart_from <= found.first_step:
        return ""
    place = int(np.searchsorted(joined.steps, found.apart_from))
    around = joined.steps[max(0, place - 1) : place + 2]  # a step before or behind: one number may be near by chance
    sides = [side for side, steps in joined.resumed.items() if any(around[0] <= step <= around[-1] for step in steps)]
    return sides[0] if len(sides) == 1 else ""


def lacking(name: str, why: str) -> CurveOutcome:
    """Return the outcome of a curve that a side does not have."""
    return CurveOutcome(name=name, verdict="inconclusive", missing=(why,))


def find_shift(reference: Series, target: Series) -> int:
    """Return -1 or 1 if the curves agree far better with that added to the target's steps, else 0.

    One loop counts from 0 and another from 1. A steep curve then looks wrong everywhere.
    """
    here = measure(join(reference, target))
    if here.compared < 3 or not here.mean_abs_error:
        return 0
    for shift in (-1, 1):
        there = measure(join(reference, Series(target.steps + shift, target.values)))
        if there.compared >= here.compared - 1 and there.mean_abs_error < _BETTER * here.mean_abs_error:
            return shift
    return 0


def choose_points(joined: Joined, most: int = MOST_POINTS) -> tuple[Point, ...]:
    """Return a picture of at most ``most`` points that loses no spike.

    Of each stretch of steps it has the step with the largest difference or with a number that is not finite, and where the
    stretch is long, its first step too.
    """
    count = len(joined)
    difference = np.abs(joined.target - joined.reference)
    if count <= most:
        places = np.arange(count)
        return _make_points(joined.steps, joined, places, difference)
    edges = np.linspace(0, count, most // 3 + 1).astype(int)
    ranked = np.where(np.isfinite(difference), difference, np.inf)
    high = np.maximum(joined.reference, joined.target)
    high = np.where(np.isfinite(high), high, -np.inf)
    chosen = {0, count - 1}
    for start, end in itertools.pairwise(edges.tolist()):
        chosen |= {start, start + int(np.argmax(ranked[start:end])), start + int(np.argmax(high[start:end]))}
    return _make_points(joined.steps, joined, np.array(sorted(chosen)), difference)


def _make_points(steps: Steps, joined: Joined, places: Steps, difference: Values) -> tuple[Point, ...]:
    return tuple(
        Point(int(steps[place]), float(joined.reference[place]), float(joined.target[place]), float(difference[place]))
        for place in places
    )


def _keep_first(joined: Joined, steps: int) -> Joined:
    """Return the first steps alone; what lacks behind them does not matter then."""
    if not steps or len(joined) < steps:
        return joined
    last = joined.steps[steps - 1]
    gaps = {side: inside for side, found in joined.gaps.items() if len(inside := found[found <= last])}
    return Joined(
        joined.steps[:steps],
        joined.reference[:steps],
        joined.target[:steps],
        gaps=gaps,
        notes=joined.notes,
        restarts=joined.restarts,
        resumed=joined.resumed,
    )
