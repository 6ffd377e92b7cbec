"""Curves in lines of text, found by a regular expression with the groups ``step`` and ``value``.

Where steps are counted anew in each epoch, two more groups number them through: ``epoch``, from 1, and ``epoch_steps``, the
number of steps of an epoch.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import yaml

from precflow.config.sections import curves_section
from precflow.curves.series import Series, Values, make_series
from precflow.curves.wanted import Wanted
from precflow.errors import CurveError

_BLOCK = 1 << 23  # bytes of a log that are held at once
LONGEST = 60.0  # seconds of the processor for a block, which takes the shipped patterns a tenth of one
_TRIED = 1 << 22  # bytes by which the shipped patterns are told from each other
_FALLBACK = "plain"  # it would match some lines of all others
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_EPOCHS = ("epoch", "epoch_steps")  # groups of a pattern whose steps begin anew in each epoch
_AROUND = " \t,;|()[]{}'\""  # marks that `\S+` takes along with a number


class Pattern(NamedTuple):
    """A pattern that is ready: its expression, its name if it is a shipped one, and whether steps may be counted."""

    expression: re.Pattern[str]
    name: str
    counted: bool


def compile_pattern(wanted: Wanted) -> Pattern:
    """Return the pattern that a recipe gives, or names.

    Raises:
        CurveError: It is no regular expression, or lacks a group.
    """
    problem = curves_section.find_pattern_problem(wanted.pattern)
    if problem:
        what, _, step = problem.replace("; ", ": ", 1).partition(": ")
        raise CurveError(f"curves.{wanted.name}.pattern {what}", next_step=step)
    if wanted.pattern in curves_section.pattern_names():
        return _compile_shipped(wanted.pattern, wanted.name, wanted.column)
    return Pattern(re.compile(wanted.pattern, re.MULTILINE), "", counted=False)


def read_text(path: Path, wanted: Wanted, place: str) -> Series:
    """Return a curve of a log of text. Without a pattern the shipped ones are tried.

    Raises:
        CurveError: The pattern is not usable, or no line matches.
    """
    pattern = compile_pattern(wanted) if wanted.pattern else _recognize(path, wanted, place)
    try:
        found = _find_all(path, pattern.expression)
    except TimeoutError as error:
        raise CurveError(
            f"{place}: curves.{wanted.name}.pattern takes more than {LONGEST:g} s for {_BLOCK >> 20} MB of the log",
            next_step="repetitions inside each other, such as (a+)+, try every way to cut a line: write them as one",
        ) from error
    values = found["value"]
    if not values:
        raise _nothing_found(path, wanted, place)
    numbers, bad = _parse(values)
    source = f"{place}, by the pattern {pattern.name}" if pattern.name else place
    notes: list[str] = []
    if bad.all():
        raise CurveError(
            f"{place}: curves.{wanted.name}.pattern finds {values[0][:40]!r} where a number is expected",
            next_step="let the group `value` hold the number alone",
        )
    if bad.any():
        first = values[int(np.argmax(bad))]
        notes.append(f"{np.count_nonzero(bad)} matches are no numbers and left out, the first is {first[:40]!r}")
    unnumbered = np.array([not step for step in found["step"]])
    if pattern.counted and unnumbered.all():
        notes.append("its lines name no steps: they are counted from 1")
        numbered: Values = np.arange(1, len(values) + 1, dtype=np.float64)
    else:
        if pattern.counted and unnumbered.any():
            notes.append(f"{np.count_nonzero(unnumbered)} numbers have no step and are left out")
            bad |= unnumbered
            found["step"] = [step or "0" for step in found["step"]]
        numbered = _number_steps(found, wanted, place)
    try:
        return make_series(numbered[~bad], numbers[~bad], source=source, notes=notes)
    except ValueError as error:
        raise CurveError(f"{place}: {error}", next_step=r"let the group `step` be (?P<step>\d+)") from error


def _find_all(path: Path, expression: re.Pattern[str]) -> dict[str, list[str]]:
    """Return the texts of each group, one a match."""
    groups = expression.groupindex
    found: dict[str, list[str]] = {name: [] for name in (*curves_section.GROUPS, *_EPOCHS) if name in groups}
    for block in _read_blocks(path):
        with _limiting():
            matches = expression.findall(block)
        for name, texts in found.items():
            place = groups[name] - 1
            texts += [match[place] for match in matches]
    return found


@contextmanager
def _limiting() -> Iterator[None]:
    """Raise ``TimeoutError`` if the body takes too long: a pattern can be written so that it never ends.

    Matching asks for signals, so a timer reaches it; only the main thread gets them. The time is that of this process alone,
    because nothing may depend on what else a machine does.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        """End the matching."""
        del number, frame
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _number_steps(found: Mapping[str, list[str]], wanted: Wanted, place: str) -> Values:
    """Return the step of each match, numbered through if the pattern knows epochs.

    Raises:
        CurveError: A step is no number.
    """
    steps, wrong = _parse(found["step"])
    if wrong.any():
        first = found["step"][int(np.argmax(wrong))]
        raise CurveError(
            f"{place}: curves.{wanted.name}.pattern finds {first[:40]!r} where a step is expected",
            next_step=r"let the group `step` be (?P<step>\d+)",
        )
    if all(name in found for name in _EPOCHS):
        epoch, epoch_steps = (_parse(found[name])[0] for name in _EPOCHS)
        steps += (epoch - 1) * epoch_steps
    return steps


def _recognize(path: Path, wanted: Wanted, place: str) -> Pattern:
    """Return the shipped pattern that matches most of the first lines.

    Raises:
        CurveError: None of them matches.
    """
    with path.open("rb") as file:
        head = _clean(file.read(_TRIED))
    counts: dict[str, int] = {}
    for name in curves_section.pattern_names():
        pattern = _compile_shipped(name, wanted.name, wanted.column)
        counts[name] = len(pattern.expression.findall(head)) if name != _FALLBACK else 0
    best = max(counts, key=lambda name: counts[name])
    name = best if counts[best] else _FALLBACK
    pattern = _compile_shipped(name, wanted.name, wanted.column)
    if not pattern.expression.search(head):
        raise _nothing_found(path, wanted, place)
    return pattern


@lru_cache(maxsize=64)
def _compile_shipped(name: str, curve: str, column: str) -> Pattern:
    """Return a shipped pattern for a curve: its own one, or that of any name with the name filled in."""
    data = yaml.safe_load((curves_section.patterns_folder() / f"{name}.yaml").read_text(encoding="utf-8"))
    own = data.get("curves", {}).get(curve) if not column else None
    # A name is written with a space, a hyphen, an underscore or nothing between its words.
    spelt = "[ _-]?".join(map(re.escape, re.split(r"[ _-]", column or curve)))
    source = own or str(data["any"]).replace("NAME", spelt)
    return Pattern(re.compile(source.replace("NUMBER", data["number"]), re.MULTILINE), name, bool(data.get("counted", False)))


def _read_blocks(path: Path) -> Iterator[str]:
    """Yield a log in parts that end with a line."""
    rest = b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            whole, newline, rest_of_line = (rest + block).rpartition(b"\n")
            if newline:
                yield _clean(whole + newline)
            rest = rest_of_line
    if rest:
        yield _clean(rest)


def _clean(block: bytes) -> str:
    """Return text without colours; a progress bar that overwrites its line becomes several lines."""
    text = block.decode("utf-8", "replace")
    text = _COLOUR.sub("", text) if "\x1b" in text else text
    return text.replace("\r", "\n") if "\r" in text else text


def _parse(texts: list[str]) -> tuple[Values, npt.NDArray[np.bool_]]:
    """Return texts as numbers, and which of them are none."""
    try:
        return np.array(list(map(float, texts)), dtype=np.float64), np.zeros(len(texts), dtype=bool)
    except ValueError:
        numbers = np.full(len(texts), np.nan)
        bad = np.zeros(len(texts), dtype=bool)
        for place, text in enumerate(texts):
            try:
                numbers[place] = float(text.strip(_AROUND))
            except ValueError:  # noqa: PERF203  only logs with such entries come here
                bad[place] = True
        return numbers, bad


def _nothing_found(path: Path, wanted: Wanted, place: str) -> CurveError:
    with path.open("rb") as file:
        lines = [line.strip() for line in _clean(file.read(4096)).splitlines() if line.strip()]
    if not lines:
        return CurveError(f"{place} is empty", next_step="give the log of a run that has made a step")
    what = (
        f"the pattern {wanted.pattern}"
        if wanted.pattern
        else f"one of the patterns {', '.join(curves_section.pattern_names())}"
    )
    return CurveError(
        f"{place}: no line has {wanted.name} by {what}; its first line is {lines[0][:80]!r}",
        next_step=f"say how its lines look: curves.{wanted.name}.pattern={curves_section.EXAMPLE}",
    )
