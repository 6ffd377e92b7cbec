"""What a run with something changed costs in time, by timed runs in turn with the run as it is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

ROUNDS = 5  # timed runs of each arm; one more before them warms up and is left out


@dataclass(frozen=True)
class Price:
    """Time of a run with something changed, beside the one as it is.

    Attributes:
        seconds: Median time of a run, without capture.
        ratio: Median over the rounds of its time in times of the run as it is in the same round.
        least: Smallest of these ratios.
        most: Largest of them.
        rounds: Number of rounds.
    """

    seconds: float
    ratio: float
    least: float
    most: float
    rounds: int


def compare_times(unchanged: Sequence[float], changed: Sequence[float]) -> Price | None:
    """Return the price of a change; ``None`` if there are no times to compare.

    What slows a machine down for a while slows both runs of a round: their ratio is steadier than either time.

    Args:
        unchanged: Seconds of the run as it is, by round.
        changed: The same of the run with the change.

    >>> compare_times([1.0, 2.0, 1.0], [1.5, 3.0, 1.0])
    Price(seconds=1.5, ratio=1.5, least=1.0, most=1.5, rounds=3)
    """
    pairs = [(before, after) for before, after in zip(unchanged, changed, strict=True) if before > 0]
    if not pairs:
        return None
    ratios = [after / before for before, after in pairs]
    seconds = statistics.median(after for _, after in pairs)
    return Price(seconds, statistics.median(ratios), min(ratios), max(ratios), len(pairs))


def describe_ratio(ratio: float, least: float, most: float) -> str:
    """Return a ratio of times in words, with its spread.

    >>> describe_ratio(1.306, 1.281, 1.352), describe_ratio(1.5, 1.5, 1.5)
    ('1.31 times the time (1.28 to 1.35)', '1.50 times the time')
    """
    spread = f" ({least:.2f} to {most:.2f})" if f"{least:.2f}" != f"{most:.2f}" else ""
    return f"{ratio:.2f} times the time{spread}"
