"""Smaller, with the same finding: delta debugging over the knobs of a recipe, within a bound on runs and time.

What was tried is in a file, which is replaced after every run: a search that was killed goes on behind the last one.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from precflow import keys
from precflow.agent import intake
from precflow.diagnosis.findings import Finding
from precflow.diagnosis.narrowing import narrow
from precflow.errors import StoreError
from precflow.files import write_text
from precflow.report.model import ReportModel
from precflow.run.knobs import Knob, Setting, Size
from precflow.run.store import explain_disk_errors

_SCHEMA = 1
SAME = "the same finding"
NO_END = 10**6  # parts of a list; what ends a search is the bound on its runs


@dataclass(frozen=True)
class Sought:
    """The finding that has to stay.

    Two runs have the same finding if they come to the same verdict, and one of the findings is of the same rule at the same
    kind of place: the same operator in a module of the same path, whose numbers count for nothing (``layers.11`` is
    ``layers.0``), nor does it count which of several calls there it was.

    Attributes:
        verdict: Of the run.
        rule: Id of the rule.
        place: Kind of the place.
        title: Of the finding.
    """

    verdict: str
    rule: str
    place: str
    title: str

    @classmethod
    def of(cls, model: ReportModel, finding: Finding) -> Sought:
        """Return a finding of a run as the one that is sought."""
        return cls(model.verdict.verdict, finding.rule, kind_of_place(finding.where), finding.title)

    def is_in(self, model: ReportModel) -> bool:
        """Tell whether a run has it."""
        return model.verdict.verdict == self.verdict and any(
            (finding.rule, kind_of_place(finding.where)) == (self.rule, self.place) for finding in model.findings
        )


def kind_of_place(where: str) -> str:
    """Return a place without what differs between repeated layers and calls.

    >>> kind_of_place("encoder.layers.11.self_attn / softmax~2"), kind_of_place("fc1 / linear")
    ('encoder.layers.*.self_attn / softmax', 'fc1 / linear')
    """
    module, slash, operator = where.partition(" / ")
    module = ".".join("*" if part.isdigit() else part for part in re.sub(r"~\d+", "", module).split("."))
    operator = re.sub(r"~\d+$", "", operator)
    return f"{module}{slash}{operator}"


@dataclass(frozen=True)
class SmallerRun:
    """A run with some knobs turned.

    Attributes:
        setting: Size of each knob.
        outcome: ``SAME``, or what came instead.
        seconds: It took.
    """

    setting: Setting
    outcome: str
    seconds: float


class SpentError(Exception):
    """The bound on runs or time was reached: the search ends with the best it has."""


@dataclass
class Search:
    """What was tried, in a file, and a bound on what will be.

    Attributes:
        file: Where they are kept.
        key: Of the recipe, its knobs and the finding; what was tried for another one is dropped.
        run: Runs a setting and returns the outcome in words.
        most_runs: Runs that this search may make.
        most_seconds: Time after which none is begun.
        known: The runs so far, those of an earlier search first.
        made: Runs that this search has made.
        began: When it began, by :func:`time.monotonic`.
    """

    file: Path
    key: str
    run: Callable[[Setting], str]
    most_runs: int
    most_seconds: float
    known: list[SmallerRun] = field(default_factory=list)
    made: int = 0
    began: float = field(default_factory=time.monotonic)

    def load(self) -> None:
        """Read what an earlier search for the same has tried.

        Raises:
            StoreError: The file is not what a search has written.
        """
        if not self.file.exists():
            return
        try:
            plain = intake.read_json(self.file)
            if (plain["schema"], plain["key"]) == (_SCHEMA, self.key):
                self.known = [_read_run(one) for one in plain["runs"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"{self.file} is damaged: {error}", next_step=f"begin again: rm {self.file}") from error

    def is_same(self, setting: Setting) -> bool:
        """Tell whether the finding stays with a setting; runs it if that is not known.

        Raises:
            SpentError: The bound was reached.
            PrecflowError: The run could not be done for a reason that has nothing to do with the setting.
        """
        known = next((one for one in self.known if one.setting == setting), None)
        if known is None:
            if self.made >= self.most_runs or time.monotonic() - self.began >= self.most_seconds:
                raise SpentError
            began = time.monotonic()
            outcome = self.run(setting)
            self.made += 1
            known = SmallerRun(dict(setting), outcome, round(time.monotonic() - began, 1))
            self.known.append(known)
            self.save()
        return known.outcome == SAME

    def save(self) -> None:
        """Write what was tried.

        Raises:
            StoreError: The file cannot be written.
        """
        plain: dict[str, Any] = {"schema": _SCHEMA, "key": self.key, "runs": [asdict(one) for one in self.known]}
        with explain_disk_errors(self.file.parent):
            write_text(self.file, json.dumps(plain, ensure_ascii=False, indent=1) + "\n")


def shrink(knobs: Sequence[Knob], search: Search) -> tuple[dict[str, Size], bool]:
    """Return the smallest setting that was found to keep the finding, and whether the search came to its end.

    Everything at its smallest is tried first. Otherwise one knob after the other is turned as far as the finding stays, a
    number by halves and a list by delta debugging, until a round has changed nothing: then no single knob can be turned
    further, as far as halving sees.
    """
    setting: dict[str, Size] = {knob.name: knob.now for knob in knobs}
    smallest = {knob.name: knob.least for knob in knobs}
    try:
        if search.is_same(smallest):
            return smallest, True
        before: dict[str, Size] = {}
        while setting != before:
            before = dict(setting)
            for knob in knobs:
                _turn(knob, setting, search)
    except SpentError:
        return setting, False
    return setting, True


def _turn(knob: Knob, setting: dict[str, Size], search: Search) -> None:
    """Turn one knob as far as the finding stays; the setting has every step of it at once."""
    now = setting[knob.name]
    if isinstance(now, tuple):

        def try_parts(parts: list[list[int]]) -> list[bool]:
            """Tell which part is enough; those behind the first that is are not run."""
            for number, part in enumerate(parts):
                if search.is_same({**setting, knob.name: tuple(part)}):
                    setting[knob.name] = tuple(part)
                    return [False] * number + [True] * (len(parts) - number)
            return [False] * len(parts)

        narrow(now, try_parts, most=NO_END)
        return
    least = knob.least
    assert isinstance(least, int)
    smaller = range(least, now, knob.multiple_of)
    low, high, middle = 0, len(smaller), 0  # the smallest first, then the middle of what is left
    while low < high:
        if search.is_same({**setting, knob.name: smaller[middle]}):
            setting[knob.name], high = smaller[middle], middle
        else:
            low = middle + 1
        middle = (low + high) // 2


def key_of(recipe: str, knobs: Sequence[Knob], sought: Sought) -> str:
    """Return the key of a search: of the recipe as text, its knobs, and the finding that has to stay."""
    return keys.digest([recipe, [asdict(knob) for knob in knobs], asdict(sought)])


def _read_run(plain: Any) -> SmallerRun:
    sizes = plain["setting"].items()
    setting = {str(name): tuple(map(int, size)) if isinstance(size, list) else int(size) for name, size in sizes}
    return SmallerRun(setting, str(plain["outcome"]), float(plain["seconds"]))
