"""Curves in lines of text, found by a regular expression with the groups ``step`` and ``value``.

Where steps are counted anew in each epoch, two more groups number them through: ``epoch``, and ``epoch_steps``, the number of
steps of an epoch, if the lines have it.
"""

from __future__ import annotations

import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from precflow.config.sections import curves_section
from precflow.curves import epochs
from precflow.curves.formats import Format
from precflow.curves.log import Log
from precflow.curves.numbers import NumberError, parse_text
from precflow.curves.series import Numbering, Series, Values, make_series
from precflow.curves.wanted import Wanted
from precflow.errors import CurveError

_BLOCK = 1 << 23  # bytes of a log that are held at once
LONGEST = 60.0  # seconds of the processor for a block, which takes the shipped patterns a tenth of one
_TRIED = 1 << 22  # bytes by which the shipped patterns are told from each other
_FALLBACK = "plain"  # it would match some lines of all others
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_EPOCH, _EPOCH_STEPS = "epoch", "epoch_steps"  # groups of a pattern whose steps begin anew in each epoch
_NAMED_NUMBER = re.compile(r"([A-Za-z][\w./-]*)['\"]?\s?[=:]\s?['\"]?[-+]?\d")
_PROPOSED = 12
_AROUND = " \t,;|()[]{}'\""  # marks that `\S+` takes along with a number


class Pattern(NamedTuple):
    """A pattern that is ready.

    Attributes:
        expression: Its expression.
        name: Its name if it is a shipped one.
        counted: Steps may be counted where no line has one.
        redrawn: A progress bar is drawn several times at each step, so that this is nothing to tell.
        first_epoch: Number of the first epoch of a run; ``None`` to tell it by the log.
    """

    expression: re.Pattern[str]
    name: str = ""
    counted: bool = False
    redrawn: bool = False
    first_epoch: int | None = None


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
        return _compile_shipped(wanted.pattern, wanted)
    return Pattern(re.compile(wanted.pattern, re.MULTILINE))


def _read(logs: Sequence[Log], wanted: Wanted) -> Series:
    """Return a curve of a log of text. Without a pattern the shipped ones are tried.

    Raises:
        CurveError: The pattern is not usable, or no line matches.
    """
    log = logs[0]
    place = log.place
    pattern = compile_pattern(wanted) if wanted.pattern else _choose_pattern(log, wanted)
    try:
        found = _find_all(log, pattern.expression)
    except TimeoutError as error:
        raise CurveError(
            f"{place}: curves.{wanted.name}.pattern takes more than {LONGEST:g} s for {_BLOCK >> 20} MB of the log",
            next_step="repetitions inside each other, such as (a+)+, try every way to cut a line: write them as one",
        ) from error
    values = found["value"]
    if not values:
        raise _nothing_found(log, wanted)
    numbers, bad = _parse(values, f"{place}: {wanted.name}")
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
        numbering = None
    else:
        if pattern.counted and unnumbered.any():
            notes.append(f"{np.count_nonzero(unnumbered)} numbers have no step and are left out")
            bad |= unnumbered
            found["step"] = [step or "0" for step in found["step"]]
        numbered, numbering = _number_steps(found, pattern, wanted, place)
    if numbering and not numbering.is_stated:
        notes.append(epochs.NOTE)
    try:
        series = make_series(numbered[~bad], numbers[~bad], source=source, notes=notes, numbering=numbering)
        return replace(series, duplicates=0) if pattern.redrawn else series
    except ValueError as error:
        raise CurveError(f"{place}: {error}", next_step=r"let the group `step` be (?P<step>\d+)") from error


def _find_all(log: Log, expression: re.Pattern[str]) -> dict[str, list[str]]:
    """Return the texts of each group, one a match."""
    groups = expression.groupindex
    found: dict[str, list[str]] = {name: [] for name in (*curves_section.GROUPS, _EPOCH, _EPOCH_STEPS) if name in groups}
    for block in log.read_blocks(_BLOCK):
        text = _clean(block)
        with _limiting():
            matches = expression.findall(text)
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


def _number_steps(
    found: Mapping[str, list[str]], pattern: Pattern, wanted: Wanted, place: str
) -> tuple[Values, Numbering | None]:
    """Return the step of each match, numbered through if the pattern knows epochs, and how.

    Raises:
        CurveError: A step is no number.
    """
    steps, wrong = _parse(found["step"], f"{place}: a step")
    if wrong.any():
        first = found["step"][int(np.argmax(wrong))]
        raise CurveError(
            f"{place}: curves.{wanted.name}.pattern finds {first[:40]!r} where a step is expected",
            next_step=r"let the group `step` be (?P<step>\d+)",
        )
    named, sizes = found.get(_EPOCH, []), found.get(_EPOCH_STEPS, [])
    if not named or not all(named):  # no such group, or lines that name none
        return steps, None
    epoch, epoch_steps = (_parse(texts, f"{place}: an epoch")[0] for texts in (named, sizes))
    return epochs.number_through(steps, epoch, epoch_steps if sizes and all(sizes) else None, pattern.first_epoch)


def _choose_pattern(log: Log, wanted: Wanted) -> Pattern:
    """Return the shipped pattern that matches most of the first lines, or of later ones if the first have none.

    Raises:
        CurveError: None of them matches anywhere.
    """
    patterns = [_compile_shipped(name, wanted) for name in curves_section.pattern_names()]
    for block in log.read_blocks(_TRIED):
        text = _clean(block)
        counts = [len(pattern.expression.findall(text)) if pattern.name != _FALLBACK else 0 for pattern in patterns]
        if any(counts):
            return patterns[counts.index(max(counts))]
        fallback = next(pattern for pattern in patterns if pattern.name == _FALLBACK)
        if fallback.expression.search(text):
            return fallback
    raise _nothing_found(log, wanted)


@lru_cache(maxsize=256)
def _compile_shipped(name: str, wanted: Wanted) -> Pattern:
    """Return a shipped pattern for a curve: its own one, or that of any name with the usual names filled in."""
    lines = curves_section.read_lines_of_log(name)
    own = lines.curves.get(wanted.name) if not wanted.column else None
    # A name is written with a space, a hyphen, an underscore or nothing between its words.
    names = [wanted.column] if wanted.column else [one for one in wanted.names if "/" not in one]
    spelt = "|".join("[ _-]?".join(map(re.escape, re.split(r"[ _-]", one))) for one in names)
    source = (own or lines.any).replace("NAME", f"(?:{spelt})").replace("NUMBER", lines.number)
    return Pattern(
        re.compile(source, re.MULTILINE), name, counted=lines.counted, redrawn=lines.redrawn, first_epoch=lines.first_epoch
    )


def _clean(text: str) -> str:
    """Return text without colours; a progress bar that overwrites its line becomes several lines."""
    text = _COLOUR.sub("", text) if "\x1b" in text else text
    return text.replace("\r", "\n") if "\r" in text else text


def _parse(texts: list[str], what: str) -> tuple[Values, npt.NDArray[np.bool_]]:
    """Return texts as numbers, and which of them are none.

    Raises:
        CurveError: One is a number that no float64 holds.
    """
    try:
        numbers = np.array(list(map(float, texts)), dtype=np.float64)
    except ValueError:
        numbers = np.full(len(texts), np.inf)  # each is looked at below
    bad = np.zeros(len(texts), dtype=bool)
    for place in np.flatnonzero(np.isinf(numbers)):
        text = texts[place].strip(_AROUND)
        try:
            numbers[place] = parse_text(text)
        except NumberError as error:
            raise CurveError(f"{what} {error}", next_step="look at this line of the log") from error
        except ValueError:
            numbers[place], bad[place] = np.nan, True
    return numbers, bad


def _nothing_found(log: Log, wanted: Wanted) -> CurveError:
    text = _clean(log.start)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return CurveError(f"{log.place} is empty", next_step="give the log of a run that has made a step")
    alike = [] if wanted.pattern else _find_alike(log, wanted)
    if alike:
        return CurveError(
            f"{log.place}: no line has {wanted.name or wanted.column}. These may be meant: {', '.join(alike)}",
            next_step=f"say which one it is: {wanted.setting('column', alike[0])}",
        )
    what = (
        f"the pattern {wanted.pattern}"
        if wanted.pattern
        else f"one of the patterns {', '.join(curves_section.pattern_names())}"
    )
    return CurveError(
        f"{log.place}: no line has {wanted.name} by {what}; its first line is {lines[0][:80]!r}",
        next_step=f"say how its lines look: curves.{wanted.name}.pattern={curves_section.EXAMPLE}",
    )


def _find_alike(log: Log, wanted: Wanted) -> list[str]:
    """Return names with the words of the curve's in them that numbers stand behind, most frequent first."""
    words = wanted.name.casefold().split("_")
    block = next(iter(log.read_blocks(_TRIED)), "")
    names = Counter(name for name in _NAMED_NUMBER.findall(_clean(block)) if all(word in name.casefold() for word in words))
    return [name for name, _ in names.most_common(_PROPOSED)]


FORMAT = Format("lines of text, by pattern", 90, lambda log: not log.is_binary, _read)
