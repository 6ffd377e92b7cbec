"""How far two curves are apart: absolute, relative to the reference, at the start, smoothed, to one side, and from where on.

Numbers are float64. A difference is the target's number minus the reference's; a relative one is divided by the absolute value
of the reference's (0 against 0 is 0, anything else against 0 is infinite). Steps at which a side is not finite enter no
difference: they are counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from precflow.curves.joining import Joined
from precflow.curves.series import Steps, Values

PARTED = 0.01
"""Smoothed relative deviation from which on curves count as parted: msprobe's mark for a loss that is misaligned."""
_MOST_SPIKES = 20
_CANDIDATES = 200
_SPIKE = 8.0  # times the usual distance from the median around; for normal noise this never happens in 10^14 steps
_LEAST_SPIKE = 0.1  # of the median around: smaller ones are nothing to look at
_AROUND = 25  # steps to each side of a spike that tell what is usual
_BATCHES = 20  # means over this many parts tell how certain a mean is, although neighbouring steps depend on each other
_ABOVE_NOISE = 5.0  # standard errors by which a stretch of steps has to be apart
_EQUAL_BEFORE = 2  # steps that are equal, with an update of the weights between them, before curves are apart by no chance
_CLEAR_BEGIN = 12.0  # F statistic from which on two constants fit better than one, the best of some places
_DOUBTS = 3.0  # standard errors from which on a mean difference is no chance


@dataclass(frozen=True)
class Spike:
    """A jump on one side only.

    Attributes:
        step: Where.
        side: Which side has it.
        value: The number there.
        usual: Median of the numbers around it.
    """

    step: int
    side: str
    value: float
    usual: float


@dataclass(frozen=True)
class Deviations:
    """How far two curves are apart.

    Attributes:
        compared: Steps at which both are finite.
        equal: Of them, steps at which both have the same bits.
        first_step: The first of them; -1 without any.
        first_abs_error: Absolute difference there.
        first_rel_error: The same as a share of the reference's.
        max_abs_error: Largest absolute difference.
        max_abs_step: Where.
        mean_abs_error: Mean of the absolute differences.
        max_rel_error: Largest relative difference.
        max_rel_step: Where.
        mean_rel_error: Mean of the relative differences.
        window: Steps of the running mean that the smoothed curves are.
        smooth_rel_error: Largest relative difference of the smoothed curves.
        smooth_rel_step: Last step of the window where.
        parted_step: The step from which on the smoothed curves stay more than 1 % apart until the end; -1 if they do not.
        apart_from: First step of the longest stretch in which the smoothed curves are more than 1 % apart; -1 without one.
        apart_to: Its last step.
        equal_until: The step before ``apart_from``, if both have the same bits there and at all steps before; else -1.
        apart_at_once: They are apart there from one step to the next, and not little by little.
        mean_difference: Mean of the differences with their sign.
        mean_uncertainty: Its standard error, by the spread of means over 20 parts.
        above: Share of the steps at which the target is above the reference.
        below: Share at which it is below.
        sign_test: How probable so uneven a share would be if both sides were equally likely and steps did not depend on each
            other; in a training run they do.
        nonfinite_reference: Steps at which the reference is NaN or infinite.
        nonfinite_target: The same of the target.
        nonfinite_one_side: Steps at which only one side is.
        first_nonfinite: The first step at which a side is; -1 if none is.
        first_nonfinite_side: ``reference``, ``target`` or ``both`` there.
        spikes: Jumps that one side has and the other has not, in order; at most 20.
    """

    compared: int = 0
    equal: int = 0
    first_step: int = -1
    first_abs_error: float = 0.0
    first_rel_error: float = 0.0
    max_abs_error: float = 0.0
    max_abs_step: int = -1
    mean_abs_error: float = 0.0
    max_rel_error: float = 0.0
    max_rel_step: int = -1
    mean_rel_error: float = 0.0
    window: int = 1
    smooth_rel_error: float = 0.0
    smooth_rel_step: int = -1
    parted_step: int = -1
    apart_from: int = -1
    apart_to: int = -1
    equal_until: int = -1
    apart_at_once: bool = False
    mean_difference: float = 0.0
    mean_uncertainty: float = math.inf
    above: float = 0.0
    below: float = 0.0
    sign_test: float = 1.0
    nonfinite_reference: int = 0
    nonfinite_target: int = 0
    nonfinite_one_side: int = 0
    first_nonfinite: int = -1
    first_nonfinite_side: str = ""
    spikes: tuple[Spike, ...] = ()

    @property
    def one_sided(self) -> bool:
        """The mean difference is more than three times its uncertainty: no chance, although single steps go either way."""
        return abs(self.mean_difference) > _DOUBTS * self.mean_uncertainty


def measure(joined: Joined) -> Deviations:
    """Measure how far two curves are apart.

    >>> from precflow.curves.joining import join
    >>> from precflow.curves.series import make_series
    >>> found = measure(join(make_series([0, 1], [2.0, 1.0]), make_series([0, 1], [2.0, 1.5])))
    >>> found.first_abs_error, found.max_abs_error, found.max_abs_step, found.mean_rel_error
    (0.0, 0.5, 1, 0.25)
    """
    finite = np.isfinite(joined.reference) & np.isfinite(joined.target)
    steps, reference, target = joined.steps[finite], joined.reference[finite], joined.target[finite]
    if not len(steps):
        return _count_nonfinite(joined)
    difference = target - reference
    absolute = np.abs(difference)
    relative = divide(absolute, np.abs(reference))
    window = choose_window(len(steps))
    smooth = [smooth_curve(values, window) for values in (reference, target)]
    apart = divide(np.abs(smooth[1] - smooth[0]), np.abs(smooth[0]))
    stretches = _find_stretches(apart, divide(difference, np.abs(reference)), window)
    longest = max(stretches, key=lambda one: one.last - one.first, default=None)
    until_end = stretches[-1] if stretches and stretches[-1].last == len(steps) - 1 else None
    leading = int(np.argmax(difference != 0)) if difference.any() else len(steps)
    mean, uncertainty = estimate_mean(difference)
    above, below = int(np.count_nonzero(difference > 0)), int(np.count_nonzero(difference < 0))
    return replace(
        _count_nonfinite(joined),
        compared=len(steps),
        equal=int(np.count_nonzero(difference == 0)),
        first_step=int(steps[0]),
        first_abs_error=float(absolute[0]),
        first_rel_error=float(relative[0]),
        max_abs_error=float(absolute.max()),
        max_abs_step=int(steps[np.argmax(absolute)]),
        mean_abs_error=float(absolute.mean()),
        max_rel_error=float(relative.max()),
        max_rel_step=int(steps[np.argmax(relative)]),
        mean_rel_error=float(relative.mean()),
        window=window,
        smooth_rel_error=float(apart.max()),
        smooth_rel_step=int(steps[window - 1 :][np.argmax(apart)]),
        parted_step=int(steps[until_end.first]) if until_end else -1,
        apart_from=int(steps[longest.first]) if longest else -1,
        apart_to=int(steps[longest.last]) if longest else -1,
        equal_until=int(steps[leading - 1]) if longest is not None and longest.first == leading > 0 else -1,
        apart_at_once=longest is not None and longest.at_once,
        mean_difference=mean,
        mean_uncertainty=uncertainty,
        above=above / len(steps),
        below=below / len(steps),
        sign_test=sign_probability(above, below),
        spikes=_find_spikes(joined),
    )


def divide(values: Values, by: Values) -> Values:
    """Return quotients: 0 by 0 is 0, and anything else by 0 is infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(values == 0, 0.0, values / by)


def choose_window(count: int) -> int:
    """Return how many steps the running mean takes: a twentieth of the curve, 100 at most.

    >>> [choose_window(count) for count in (5, 100, 1000, 100_000)]
    [1, 5, 50, 100]
    """
    return max(1, min(100, count // 20))


def smooth_curve(values: Values, window: int) -> Values:
    """Return the running mean over ``window`` steps; the first result is of the first ``window`` of them."""
    if window <= 1:
        return values
    import pandas as pd  # noqa: PLC0415  takes half a second, and whoever has no curve does without

    # Its running sum is compensated (Kahan): the rounding of a spike, or of a large start, is not carried through the curve.
    mean: Values = pd.Series(values).rolling(window).mean().to_numpy()[window - 1 :]
    return mean


def estimate_mean(values: Values) -> tuple[float, float]:
    """Return the mean and its standard error by batch means; the error is infinite for fewer than 40 numbers.

    Neighbouring steps depend on each other, so that the plain standard error would be too small. Means over 20 parts of the
    curve hardly do (Law and Kelton, Simulation Modeling and Analysis, batch means).
    """
    if len(values) < 2 * _BATCHES:
        return float(values.mean()), math.inf
    size = len(values) // _BATCHES
    means = values[len(values) - size * _BATCHES :].reshape(_BATCHES, size).mean(axis=1)
    return float(values.mean()), float(means.std(ddof=1) / math.sqrt(_BATCHES))


def sign_probability(above: int, below: int) -> float:
    """Return the two-sided sign test: the probability of at least so uneven a split of fair coins.

    >>> round(sign_probability(9, 1), 6), sign_probability(5, 5), sign_probability(0, 0)
    (0.021484, 1.0, 1.0)
    """
    count, fewer = above + below, min(above, below)
    if above == below:
        return 1.0
    # Far out in the tail the normal distribution is 10 % off, so the terms are added up, from the largest down:
    # of a million steps the first few thousand are all of the sum.
    logarithm = math.lgamma(count + 1) - math.lgamma(fewer + 1) - math.lgamma(count - fewer + 1) - count * math.log(2)
    term, total = math.exp(logarithm), 0.0
    for number in range(fewer, -1, -1):
        total += term
        if term < 1e-17 * total:
            break
        term *= number / (count - number + 1)
    return min(1.0, 2 * total)


def _count_nonfinite(joined: Joined) -> Deviations:
    """Return the numbers of steps that are not finite, and nothing else yet."""
    left, right = ~np.isfinite(joined.reference), ~np.isfinite(joined.target)
    either = left | right
    if not either.any():
        return Deviations()
    first = int(np.argmax(either))
    side = "both" if left[first] and right[first] else "reference" if left[first] else "target"
    return Deviations(
        nonfinite_reference=int(np.count_nonzero(left)),
        nonfinite_target=int(np.count_nonzero(right)),
        nonfinite_one_side=int(np.count_nonzero(left ^ right)),
        first_nonfinite=int(joined.steps[first]),
        first_nonfinite_side=side,
    )


@dataclass(frozen=True)
class _Stretch:
    """Steps in which two curves are apart, by their places; and whether they are so from one step to the next."""

    first: int
    last: int
    at_once: bool


def _find_stretches(apart: Values, relative: Values, window: int) -> list[_Stretch]:
    """Return the stretches in which two curves are more than ``PARTED`` apart, in order.

    Args:
        apart: Relative deviation of the smoothed curves, one for each window.
        relative: That of each step, with its sign; ``window - 1`` more than there are windows.
        window: Steps of a window.
    """
    edges = np.flatnonzero(np.diff(np.concatenate(([False], apart > PARTED, [False]))))
    signed = np.clip(np.nan_to_num(relative, posinf=1.0, neginf=-1.0), -1.0, 1.0)  # a jump to ten times as much is a jump
    # How far neighbouring steps are from each other, as a standard deviation if it is normal: what moves slowly is not in it.
    noise = 1.4826 * float(np.median(np.abs(np.diff(signed)))) / math.sqrt(2) if len(signed) > 1 else 0.0
    stretches = []
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        first = _find_begin(signed, start, window)
        # The end is the begin of the reversed curve.
        last = len(signed) - 1 - _find_begin(signed[::-1], len(apart) - end, window)
        last = max(first, last)
        inside = signed[first : last + 1]
        is_equal_before = first >= _EQUAL_BEFORE and not signed[:first].any()
        if abs(float(inside.mean())) < _ABOVE_NOISE * noise / math.sqrt(len(inside)) and not is_equal_before:
            continue  # single steps differ by so much that some of them in a row are apart by chance
        sizes = np.abs(inside)
        at_once = first > 0 and float(np.median(sizes[:3])) >= float(sizes.max()) / 2
        stretches.append(_Stretch(first, last, at_once))
    return stretches


def _find_begin(relative: Values, start: int, window: int) -> int:
    """Return the place at which curves begin to be apart, if their window from ``start`` on is the first that is.

    A window is apart as soon as enough of its last steps are, and still has steps in it that are not. The begin is where two
    constants, one before and one from there on, fit the steps around it best.
    """
    low, high = max(0, start - window), min(len(relative), start + 2 * window)
    around = relative[low:high]
    best, least = low, float(((around - around.mean()) ** 2).sum())
    whole = least
    for place in range(max(low + 1, start - window + 1), min(start + window, high)):
        before, behind = relative[low:place], relative[place:high]
        rest = float(((before - before.mean()) ** 2).sum() + ((behind - behind.mean()) ** 2).sum())
        if rest < least and abs(float(before.mean())) <= PARTED:
            best, least = place, rest
    if start and best == low:
        return start  # apart little by little, with nothing near before
    # One step that is near by chance is no begin: the two constants have to explain far more than one does.
    enough = start > 0 or (whole - least) * max(1, high - low - 2) > _CLEAR_BEGIN * least
    return best if enough else low


def _find_spikes(joined: Joined) -> tuple[Spike, ...]:
    """Return jumps that one side has and the other has not, not even half as high.

    Such a jump is a difference, so that only the largest differences have to be looked at.
    """
    if len(joined) <= 2 * _AROUND:
        return ()
    difference = np.abs(joined.target - joined.reference)
    largest = np.argsort(np.where(np.isfinite(difference), -difference, 0.0), kind="stable")[:_CANDIDATES]
    spikes = []
    for place in largest[difference[largest] > 0].tolist():
        distances = {}
        for side, values in (("reference", joined.reference), ("target", joined.target)):
            around = values[max(0, place - _AROUND) : place + _AROUND + 1]
            around = around[np.isfinite(around)]
            median = float(np.median(around))
            usual = 1.4826 * float(np.median(np.abs(around - median)))  # a standard deviation, if they are normal
            distances[side] = (abs(float(values[place]) - median), usual, median, float(values[place]))
        for side, other in (("reference", "target"), ("target", "reference")):
            distance, usual, median, value = distances[side]
            if distance > max(_SPIKE * usual, _LEAST_SPIKE * abs(median)) and distances[other][0] < distance / 2:
                spikes.append(Spike(int(joined.steps[place]), side, value, median))
    return tuple(sorted(spikes, key=lambda spike: spike.step)[:_MOST_SPIKES])


def find_scale_drops(steps: Steps, values: Values) -> tuple[int, ...]:
    """Return the steps at which a loss scale is lower than before: an optimizer step was skipped because of an overflow.

    >>> find_scale_drops(np.arange(4), np.array([65536.0, 65536.0, 32768.0, 65536.0]))
    (2,)
    """
    places = np.flatnonzero(np.diff(values) < 0) + 1
    return tuple(int(steps[place]) for place in places)
