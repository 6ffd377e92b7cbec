"""Which numbers of a log make a curve: what is asked for, and the names under which logs usually have it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from precflow.config.suggestions import did_you_mean
from precflow.errors import CurveError

_LISTED = 12
_BEYOND = 1e300  # an integer may have more digits than a float can hold
_STEPS = ("step", "global_step", "iteration", "iter", "steps", "iterations", "Step", "current_steps", "global_step/max_steps")
_NAMES = {
    "loss": ("loss", "train_loss", "train/loss", "lm loss", "lm_loss", "lm-loss", "training_loss", "loss/train", "Loss"),
    "grad_norm": ("grad_norm", "grad-norm", "grad norm", "train/grad_norm", "global_norm", "gradient_norm"),
    "learning_rate": ("learning_rate", "lr", "learning-rate", "train/learning_rate"),
    "loss_scale": ("loss_scale", "loss-scale", "loss scale", "scale"),
}


@dataclass(frozen=True)
class Wanted:
    """A curve as a recipe asks for it.

    Attributes:
        name: Name of the curve, such as ``loss``.
        pattern: Regular expression for lines of text, or the name of a shipped one; ``""`` tries the shipped ones.
        column: Key, column or tag of the numbers; ``""`` is the name of the curve or another usual name of it.
        step_column: Key or column of the steps; ``""`` is a usual name.
    """

    name: str
    pattern: str = ""
    column: str = ""
    step_column: str = ""


def find_column(wanted: Wanted, present: Sequence[str], place: str) -> str:
    """Return the column that has the numbers.

    Raises:
        CurveError: There is none.
    """
    if wanted.column:
        candidates: tuple[str, ...] = (wanted.column,)
    else:
        candidates = (wanted.name, *(name for name in _NAMES.get(wanted.name, ()) if name != wanted.name))
    found = next((name for name in candidates if name in present), None)
    if found is not None:
        _refuse_twice(found, present, place)
        return found
    missing = wanted.column or wanted.name
    raise CurveError(
        f"{place} has no column {missing}.{did_you_mean(missing, present)} It has {_list(present)}",
        next_step=f"say which one it is: curves.{wanted.name}.column=NAME",
    )


def find_step_column(wanted: Wanted, present: Collection[str], place: str) -> str | None:
    """Return the column that has the steps; ``None`` if the numbers are to be counted.

    Raises:
        CurveError: The recipe names one that is not there.
    """
    if wanted.step_column and wanted.step_column not in present:
        raise CurveError(
            f"{place} has no column {wanted.step_column} for steps.{did_you_mean(wanted.step_column, sorted(present))}"
            f" It has {_list(present)}",
            next_step=f"say which one it is: curves.{wanted.name}.step_column=NAME",
        )
    found = wanted.step_column or next((name for name in _STEPS if name in present), None)
    if found is not None:
        _refuse_twice(found, present, place)
    return found


def _refuse_twice(column: str, present: Collection[str], place: str) -> None:
    """Refuse a column whose name stands twice: nobody knows which of the two is meant.

    Raises:
        CurveError: It does.
    """
    times = sum(name == column for name in present)
    if times > 1:
        raise CurveError(
            f"{place} has {times} columns {column}", next_step="which one is meant? Give them different names in its first line"
        )


def parse_step(value: Any) -> float:
    """Return a step: a number, its text, or the first of the two in `5/120`.

    Raises:
        ValueError: It is none of these.

    >>> parse_step(5), parse_step("5/120")
    (5.0, 5.0)
    """
    if isinstance(value, str):
        step, slash, most = value.partition("/")
        if slash:
            float(most)
        return float(step)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("expected a number")  # noqa: TRY004  the caller shows what came
    return float(value) if abs(value) < _BEYOND else math.inf


def _list(present: Collection[str]) -> str:
    listed = sorted(present)
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return f"{', '.join(listed[:_LISTED])}{more}" if listed else "none at all"
