"""Both curves at the steps that they share, and what is said about the steps that they do not."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from precflow.curves.series import Series, Steps, Values

_LISTED = 3


@dataclass(frozen=True, eq=False)
class Joined:
    """Two curves by step.

    Attributes:
        steps: Steps that both have, ascending.
        reference: The reference's number at each.
        target: The target's.
        stopped: The side that ends first, and its last step; ``None`` if both end at the same step or log at intervals that
            leave it open.
        started: The side that begins later, and its first step; ``None`` if both begin at the same step, or log at intervals
            that leave it open.
        begun_anew: Side -> how often its log went back to its first step, so that all before was dropped.
        gaps: Side -> steps between its first and last that the other side has, and that its own interval should have hit.
        notes: What a reader should know: restarts, duplicates, other intervals.
        restarts: Those of the notes that say where a log goes back to an earlier step.
        resumed: Side -> steps with which its log goes on after it has gone back: the run was resumed there.
    """

    steps: Steps
    reference: Values
    target: Values
    stopped: tuple[str, int] | None = None
    started: tuple[str, int] | None = None
    begun_anew: dict[str, int] = field(default_factory=dict)
    gaps: dict[str, Steps] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    restarts: tuple[str, ...] = ()
    resumed: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of steps that both have."""
        return len(self.steps)


def join(reference: Series, target: Series) -> Joined:
    """Join two curves by step.

    >>> from precflow.curves.series import make_series
    >>> joined = join(make_series([0, 1, 2], [3.0, 2.0, 1.0]), make_series([1, 2, 3], [2.5, 1.5, 1.0]))
    >>> joined.steps.tolist(), joined.target.tolist()
    ([1, 2], [2.5, 1.5])
    """
    import pandas as pd  # noqa: PLC0415  takes half a second, and whoever has no curve does without

    left, right = (pd.Series(one.values, one.steps, name=side) for side, one in (("reference", reference), ("target", target)))
    both = left.to_frame().join(right, how="inner")
    steps: Steps = both.index.to_numpy(np.int64)
    sides = {"reference": reference, "target": target}
    intervals = {side: _find_interval(series.steps) for side, series in sides.items()}
    gaps = {
        "reference": _find_gaps(reference, intervals["reference"], target.steps),
        "target": _find_gaps(target, intervals["target"], reference.steps),
    }
    restarts = {side: _describe_restarts(side, series) for side, series in sides.items() if series.restarts}
    notes = [
        note for side, series in sides.items() for note in (*_describe_series(side, series), restarts.get(side, "")) if note
    ]
    if len(steps) and intervals["reference"] != intervals["target"] and min(len(reference), len(target)) > 1:
        notes.append(
            f"the reference logs every {_in_words(intervals['reference'])} and the target every"
            f" {_in_words(intervals['target'])}: compared at the {len(steps)} steps that both have"
        )
    return Joined(
        steps=steps,
        reference=both["reference"].to_numpy(),
        target=both["target"].to_numpy(),
        stopped=_find_stopped(reference.steps, target.steps, max(intervals.values())),
        started=_find_started(reference.steps, target.steps, max(intervals.values())),
        begun_anew={side: series.begun_anew for side, series in sides.items() if series.begun_anew},
        gaps={side: found for side, found in gaps.items() if len(found)},
        notes=tuple(notes),
        restarts=tuple(restarts.values()),
        resumed={side: tuple(one.at for one in series.restarts) for side, series in sides.items() if series.restarts},
    )


def describe_steps(steps: Steps) -> str:
    """Return a few steps in words, and how many more there are.

    >>> describe_steps(np.arange(5))
    '0, 1, 2 and 2 more'
    """
    listed = ", ".join(map(str, steps[:_LISTED].tolist()))
    more = len(steps) - _LISTED
    return f"{listed} and {more} more" if more > 0 else listed


def _find_interval(steps: Steps) -> int:
    """Return the distance between most neighbouring steps; 1 for fewer than two."""
    if len(steps) < 2:
        return 1
    distances, counts = np.unique(np.diff(steps), return_counts=True)
    return int(distances[np.argmax(counts)])


def _find_gaps(series: Series, interval: int, others: Steps) -> Steps:
    """Return the steps of the other side that this one should have by its own interval, and lacks."""
    steps = series.steps
    if len(steps) < 2:
        return np.empty(0, np.int64)
    inside = others[(others > steps[0]) & (others < steps[-1])]
    lacking = np.setdiff1d(inside, steps, assume_unique=True)
    # Some logs name step 1 and then every tenth: what counts is the rest that most steps have.
    rests, counts = np.unique(series.count_in_epoch(steps) % interval, return_counts=True)
    expected: Steps = lacking[series.count_in_epoch(lacking) % interval == rests[np.argmax(counts)]]
    return expected


def _find_stopped(reference: Steps, target: Steps, interval: int) -> tuple[str, int] | None:
    """Return which side ends first, if the other goes on for a whole interval or more."""
    if not len(reference) or not len(target) or abs(int(reference[-1] - target[-1])) < interval:
        return None
    return ("reference", int(reference[-1])) if reference[-1] < target[-1] else ("target", int(target[-1]))


def _find_started(reference: Steps, target: Steps, interval: int) -> tuple[str, int] | None:
    """Return which side begins later, if the other has begun a whole interval or more before."""
    if not len(reference) or not len(target) or abs(int(reference[0] - target[0])) < interval:
        return None
    return ("reference", int(reference[0])) if reference[0] > target[0] else ("target", int(target[0]))


def _describe_series(side: str, series: Series) -> list[str]:
    notes = [f"the {side}'s log: {note}" for note in series.notes]
    if series.duplicates:
        notes.append(f"the {side}'s log has {series.duplicates} numbers more than steps: the last of a step counts")
    return notes


def _describe_restarts(side: str, series: Series) -> str:
    first = series.restarts[0]
    times = "once" if len(series.restarts) == 1 else f"{len(series.restarts)} times"
    why = "nothing before counts" if series.begun_anew else "the run was resumed, and its later numbers count"
    return f"the {side}'s log goes back {times}, first from step {first.after} to step {first.at}: {why}"


def _in_words(interval: int) -> str:
    return "step" if interval == 1 else f"{interval} steps"
