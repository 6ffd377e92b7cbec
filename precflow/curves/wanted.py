"""Which numbers of a log make a curve: what is asked for, and the names under which logs usually have it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from precflow.config.suggestions import did_you_mean
from precflow.errors import CurveError

_LISTED = 12
_STEPS = (
    "step global_step iteration iter steps iterations current_steps global_step/max_steps num_updates train/global_step"
    " trainer/global_step total_steps batch _step"
).split()
_NAMES = {
    "loss": (
        "loss",
        "lm loss",
        "loss/total",
        "total_loss",
        "loss_step",
        "step_loss",
        "reduced_train_loss",
    ),
    "grad_norm": ("grad_norm", "global_norm", "gradient_norm", "global_grad_norm", "global_gradient_norm", "gnorm"),
    "learning_rate": ("learning_rate", "lr"),
    "loss_scale": ("loss_scale", "scale"),
}
_OF_TRAINING = ("{}", "train_{}", "train/{}", "training_{}", "{}/train")
_TRAINING, _VALIDATION = ("train", "training"), ("val", "valid", "validation", "eval", "test")


@dataclass(frozen=True)
class Wanted:
    """A curve as a recipe asks for it.

    Attributes:
        name: Name of the curve, such as ``loss``.
        pattern: Regular expression for lines of text, or the name of a shipped one; ``""`` tries the shipped ones.
        column: Key, column or tag of the numbers; ``""`` is the name of the curve or another usual name of it.
        step_column: Key or column of the steps; ``""`` is a usual name.
        side: Whose log it is, ``reference`` or ``target``, so that messages name the key of that side alone too.
    """

    name: str
    pattern: str = ""
    column: str = ""
    step_column: str = ""
    side: str = ""

    def setting(self, key: str, value: str = "NAME") -> str:
        """Return what to write on the command line so that a key has a value.

        >>> Wanted("loss", side="target").setting("column", "actor/pg_loss")
        'curves.loss.column=actor/pg_loss (of this side alone: curves.loss.target.column=actor/pg_loss)'
        """
        value = f"'{value}'" if re.search(r"[ ()\[\]{}]", value) else value
        alone = f" (of this side alone: curves.{self.name}.{self.side}.{key}={value})" if self.side else ""
        return f"curves.{self.name}.{key}={value}{alone}"

    @property
    def names(self) -> tuple[str, ...]:
        """The usual names of the curve, its own first."""
        return tuple(dict.fromkeys((self.name, *_NAMES.get(self.name, ()))))


def match_column(wanted: Wanted, present: Sequence[str]) -> str | None:
    """Return the column that has the numbers: the one that is asked for, or one with a usual name; ``None`` if there is none.

    Capitals do not matter, nor how words are joined.

    >>> match_column(Wanted("loss"), ["Step", "Train/Loss"]), match_column(Wanted("loss"), ["step", "box_loss"])
    ('Train/Loss', None)
    """
    if wanted.column:
        return wanted.column if wanted.column in present else None
    spelt = [form.format(name) for name in wanted.names for form in _OF_TRAINING]
    return _find(spelt, present)


def find_column(wanted: Wanted, present: Sequence[str], place: str) -> str:
    """Return the column that has the numbers.

    Raises:
        CurveError: There is none.
    """
    found = match_column(wanted, present)
    if found is None:
        raise refuse_missing(wanted, present, place)
    refuse_twice(found, present, place)
    return found


def refuse_missing(wanted: Wanted, present: Collection[str], place: str) -> CurveError:
    """Return the error of a log without the curve; it proposes the columns that may be meant."""
    missing = wanted.column or wanted.name
    alike = [] if wanted.column else list(_find_alike(wanted, present))
    proposed = f" These may be meant: {_list(alike)}." if alike else did_you_mean(missing, list(present))
    has = f"It has {_list(present)}" if len(present) > len(alike) else ""
    return CurveError(
        f"{place} has no column {missing}.{proposed} {has}".rstrip(),
        next_step=f"say which one it is: {wanted.setting('column', alike[0] if alike else 'NAME')}",
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
            next_step=f"say which one it is: {wanted.setting('step_column')}",
        )
    found = wanted.step_column or _find(_STEPS, list(present))
    if found is not None:
        refuse_twice(found, present, place)
    return found


def refuse_twice(column: str, present: Collection[str], place: str) -> None:
    """Refuse a column whose name stands twice: nobody knows which of the two is meant.

    Raises:
        CurveError: It does.
    """
    times = sum(name == column for name in present)
    if times > 1:
        raise CurveError(
            f"{place} has {times} columns {column}", next_step="which one is meant? Give them different names in its first line"
        )


def is_of_training(mode: object) -> bool:
    """Tell whether a row belongs to training by its ``mode``, as logs call it that hold validation too.

    >>> is_of_training("train"), is_of_training("val")
    (True, False)
    """
    return str(mode).casefold() in _TRAINING


def fold(name: str) -> str:
    """Return a name without what differs by taste: capitals, and how words are joined.

    >>> fold(" LM-Loss "), fold("lm loss")
    ('lm_loss', 'lm_loss')
    """
    return re.sub(r"[ _-]+", "_", name.strip().casefold())


def _find(spelt: Sequence[str], present: Sequence[str]) -> str | None:
    """Return the first of some names that is present, exactly if one is so."""
    exact = next((name for name in spelt if name in present), None)
    if exact is not None:
        return exact
    folded = {fold(name): name for name in reversed(present)}
    return next((folded[name] for name in map(fold, spelt) if name in folded), None)


def _find_alike(wanted: Wanted, present: Collection[str]) -> Iterator[str]:
    """Yield the columns whose names have each word of the curve's; those of validation last."""
    alike = [name for name in present if all(word in fold(name) for word in fold(wanted.name).split("_"))]
    others = Counter({name: 1 for name in alike if any(word in re.split(r"[^a-z]", fold(name)) for word in _VALIDATION)})
    yield from sorted(alike, key=lambda name: others[name])


def _list(present: Collection[str]) -> str:
    listed = sorted(present)
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return f"{', '.join(listed[:_LISTED])}{more}" if listed else "none at all"
