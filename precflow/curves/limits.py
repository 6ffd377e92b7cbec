"""Holds a curve to plain limits and to standards, and says what is missing for that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from precflow.config.sections.standard_sections import Deviation, LossLimits
from precflow.curves.deviations import Deviations
from precflow.curves.joining import Joined, describe_steps

LIMITS = {
    "first_abs_error": "the first difference",
    "first_rel_error": "the first relative difference",
    "max_abs_error": "the largest difference",
    "max_rel_error": "the largest relative difference",
    "mean_abs_error": "the mean difference",
    "mean_rel_error": "the mean relative difference",
}
"""Plain limits of a curve, each at most, by name; and their words."""


@dataclass(frozen=True)
class Held:
    """What limits say about a curve.

    Attributes:
        failed: What exceeds its limit, in words.
        missing: Why a limit could not be applied, or not in full, in words.
        notes: What a reader should know, such as a limit that was widened.
    """

    failed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_met(self) -> bool:
        """Nothing exceeds a limit, and nothing is missing."""
        return not self.failed and not self.missing

    def __add__(self, other: Held) -> Held:
        """Return what both say."""
        return Held(self.failed + other.failed, self.missing + other.missing, self.notes + other.notes)


def check_whole(name: str, joined: Joined, found: Deviations, *, steps: int = 0) -> Held:
    """Say what stands against "aligned" whatever the limits are: numbers that are not finite, and missing steps.

    Args:
        name: Name of the curve.
        joined: Both curves at the steps that they share.
        found: How far they are apart.
        steps: Steps that the recipe asks for; 0 for all that one of the sides has.
    """
    if not len(joined):
        return Held(missing=(f"the {name} of the two sides has no step in common",))
    failed, missing = [], []
    if found.nonfinite_one_side:
        where = found.first_nonfinite_side
        # The first of them may be on both sides; then the number of those on one side says enough.
        place = f", first on the {where} at step {found.first_nonfinite}" if where != "both" else ""
        failed.append(f"the {name} is not finite on one side alone at {_count(found.nonfinite_one_side, 'step')}{place}")
    both = (found.nonfinite_reference + found.nonfinite_target - found.nonfinite_one_side) // 2
    if both:
        missing.append(f"the {name} is not finite on both sides at {_count(both, 'step')}")
    for side, lacking in joined.gaps.items():
        count = _count(len(lacking), "step")
        missing.append(f"the {side}'s {name} lacks {count} that the other side has: {describe_steps(lacking)}")
    if steps and len(joined) < steps:
        stopped = f": the {joined.stopped[0]} stops at step {joined.stopped[1]}" if joined.stopped else ""
        missing.append(f"the {name} has {len(joined)} of {steps} steps on both sides{stopped}")
    elif not steps and joined.stopped:
        missing.append(f"the {joined.stopped[0]}'s {name} stops at step {joined.stopped[1]}, and the other side goes on")
    if not steps and joined.started:
        missing.append(f"the {joined.started[0]}'s {name} begins at step {joined.started[1]}, and the other side before")
    for side, times in joined.begun_anew.items() if not steps else ():
        again = "once" if times == 1 else f"{times} times"
        missing.append(
            f"the {side}'s {name} goes back to its first step {again}, and only what follows was compared: number the steps of"
            f" all epochs through, or say how many count (curves.{name}.steps)"
        )
    return Held(tuple(failed), tuple(missing))


def hold_to_limit(name: str, limit: str, value: float, found: Deviations) -> Held:
    """Hold a curve to a plain limit, at most."""
    if not found.compared or getattr(found, limit) <= value:
        return Held()
    return Held(failed=(f"{LIMITS[limit]} of the {name} is {getattr(found, limit):.3g}, at most {value:.3g}",))


def hold_to_standard(name: str, limits: LossLimits, found: Deviations, repeats: Sequence[Deviations] = ()) -> Held:
    """Hold a curve to a standard.

    Args:
        name: Name of the curve.
        limits: The standard's limits.
        found: How far the curves are apart.
        repeats: How far further runs of the reference are from the reference.
    """
    if not found.compared:
        return Held()
    repeats = repeats if limits.repeats else ()
    parts = [
        _hold_deviation(f"the first {name}", limits.first, _pick(found, "first"), [_pick(one, "first") for one in repeats]),
        _hold_deviation(f"the {name}, on average,", limits.mean, _pick(found, "mean"), [_pick(one, "mean") for one in repeats]),
        _hold_sides(name, limits, found),
    ]
    missing, notes = [], []
    if found.compared < limits.fewest_steps:
        missing.append(f"it asks for {limits.fewest_steps} steps or more, and there are {found.compared}")
    if len(repeats) < limits.repeats:
        notes.append(
            f"it widens its limits to how much the reference differs from run to run, and asks for"
            f" {_count(limits.repeats, 'repeat')}: {len(repeats)} given"
        )
    return sum(parts, Held(missing=tuple(missing), notes=tuple(notes)))


def _pick(found: Deviations, what: str) -> tuple[float, float]:
    """Return the absolute and the relative deviation of the first step, or of the mean."""
    return getattr(found, f"{what}_abs_error"), getattr(found, f"{what}_rel_error")


def _hold_deviation(
    what: str, limits: Deviation | None, found: tuple[float, float], repeats: Sequence[tuple[float, float]]
) -> Held:
    """Return the failure in words; keeping one of the two limits is enough."""
    if limits is None:
        return Held()
    widened, notes = [], []
    for limit, own, kind in ((limits.absolute, 0, "absolute"), (limits.relative, 1, "relative")):
        fluctuation = max((one[own] for one in repeats), default=0.0)
        wider = limit is not None and fluctuation > limit
        widened.append(fluctuation if wider else limit)
        if wider:
            notes.append(f"{what} has the {kind} limit {fluctuation:.3g}: runs of the reference are that far apart")
    kept = [value < limit for value, limit in zip(found, widened, strict=True) if limit is not None]
    if any(kept) or not kept:
        return Held(notes=tuple(notes))
    absolute, relative = widened
    asked = [
        *([f"{absolute:.3g}"] if absolute is not None else []),
        *([f"{100 * relative:.3g} % of the reference"] if relative is not None else []),
    ]
    difference = f"{found[0]:.3g} ({100 * found[1]:.3g} % of the reference)"
    failure = f"{what} differs by {difference}; it has to differ by less than {' or '.join(asked)}"
    return Held(failed=(failure,), notes=tuple(notes))


def _hold_sides(name: str, limits: LossLimits, found: Deviations) -> Held:
    if limits.one_side is None or found.compared < limits.one_side.steps:
        return Held()
    share, side = max((found.above, "above"), (found.below, "below"))
    if share < limits.one_side.share:
        return Held()
    text = f"the target's {name} is {side} the reference's in {share:.3g} of the steps, and has to fluctuate around it"
    return Held(failed=(text,))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def list_limits(limits: Mapping[str, float | None]) -> dict[str, float]:
    """Return the plain limits that are set."""
    return {name: value for name in LIMITS if (value := limits.get(name)) is not None}


def describe_limits(limits: Iterable[tuple[str, float]]) -> list[str]:
    """Return plain limits as a recipe has them.

    >>> describe_limits([("mean_rel_error", 0.01)])
    ['mean_rel_error <= 0.01']
    """
    return [f"{name} <= {value:.3g}" for name, value in limits]
