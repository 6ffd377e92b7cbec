"""Shows on stderr how a run goes: a line for each finished stage, and a bar on a terminal, heartbeats in CI."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Protocol

from precflow import streams
from precflow.report.ci import format_stage

_BAR, _SHORT_BAR = 20, 5  # letters of a bar
_REDRAW_SECONDS = 1.0
_SECONDS_TO_JUDGE = 3.0  # before it, the pace of a bar says little
HEARTBEAT_SECONDS = 60.0  # build servers stop a job that prints nothing for some minutes


class Progress(Protocol):
    """What the runner calls to show its progress."""

    def expect(self, finished: int, ahead: Sequence[float | None]) -> None:
        """Say how far the run is.

        Args:
            finished: Number of stages that are finished.
            ahead: Seconds that the stage that begins and each one after it take, as far as that is known.
        """

    def working(self, stage: str, side: str) -> contextlib.AbstractContextManager[None]:
        """Enter while a stage works."""

    def say(self, text: str) -> None:
        """Show what the stage is doing."""

    def advance(self, done: int, total: int, unit: str) -> None:
        """Show how much of the work is done: ``done`` of ``total`` units, such as bytes or steps. Any thread may call it."""

    def done(self, stage: str, side: str, state: str, seconds: float, note: str) -> None:
        """Show that a stage was made, kept from before, or skipped."""


class Terminal:
    """A bar for the whole run on the last line of the terminal, and one line for each stage that is done."""

    def __init__(self) -> None:
        self._lives = streams.is_lively(sys.stderr)
        self._ascii = not streams.is_unicode(sys.stderr)
        self._course = Course()
        self._text = ""

    def expect(self, finished: int, ahead: Sequence[float | None]) -> None:
        """Take over how far the run is."""
        self._course.expect(finished, ahead)

    @contextlib.contextmanager
    def working(self, stage: str, side: str) -> Iterator[None]:
        """Show the bar, from now on and every second, until the block ends."""
        self._text = ""
        self._course.begin(f"{stage} {side}".strip())
        if not self._lives:
            yield
            return
        self._show()
        try:
            with _Heartbeat(lambda _: self._show(), _REDRAW_SECONDS):
                yield
        finally:
            streams.live_line.clear()

    def say(self, text: str) -> None:
        """Put the text behind the bar."""
        self._text = text
        self._show()

    def advance(self, done: int, total: int, unit: str) -> None:
        """Show what is done of the stage."""
        self._course.advance(done, total, unit)
        self._show()

    def _show(self) -> None:
        if self._lives:
            columns = streams.measure_terminal(sys.stderr) - 1  # in the last column some terminals begin a new line
            streams.live_line.draw(self._course.draw(columns, self._text, ascii_only=self._ascii))

    def done(self, stage: str, side: str, state: str, seconds: float, note: str) -> None:
        """Print the stage's line."""
        tick = "+" if self._ascii else "✓"
        mark = {"kept": "=", "skipped": "?"}.get(state, tick)
        spent = f"{seconds:.0f} s" if mark == tick else "later" if state == "skipped" else state
        streams.say(f" {mark} {stage:<13}{side:<10} {spent:>6}   {note}".rstrip())


class Course:
    """How far a run is, and how long it will take: what the terminal's bar is drawn from.

    Args:
        clock: Tells the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._finished, self._ahead = 0, tuple[float | None, ...]((None,))
        self._title = ""
        self._began = self._began_run = clock()
        self._amount: tuple[int, int, str] | None = None
        self._share = 0.0

    def expect(self, finished: int, ahead: Sequence[float | None]) -> None:
        """Take over how many stages are finished, and what the next one and each after it probably takes."""
        self._finished, self._ahead = finished, tuple(ahead) or (None,)

    def begin(self, title: str) -> None:
        """Begin a stage."""
        self._title, self._amount, self._began = title, None, self._clock()

    def advance(self, done: int, total: int, unit: str) -> None:
        """Note how much of the stage is done."""
        self._amount = (done, total, unit)

    def find_left(self) -> tuple[float | None, float | None]:
        """Return the seconds that are left of the run and of the stage; ``None`` for what nothing shows.

        What the stage took before says most. Where it takes longer than that, or was never made, its own pace does, as soon as
        there is one.
        """
        elapsed, before = self._clock() - self._began, self._ahead[0]
        here = before - elapsed if before is not None and before > elapsed else None
        if here is None and self._amount is not None and elapsed >= _SECONDS_TO_JUDGE:
            done, total, _ = self._amount
            # With the start of an agent: the first steps are the only ones there may be.
            here = elapsed / done * (total - done) if 0 < done < total else None
        rest = [seconds for seconds in self._ahead[1:] if seconds is not None]
        whole = here + sum(rest) if here is not None and len(rest) == len(self._ahead) - 1 else None
        return whole, here

    def find_share(self) -> float:
        """Return the share that is done, 0 to 1: of the time, or of the stages if the time is unknown. It never falls."""
        whole, _ = self.find_left()
        if whole is not None:
            spent = self._clock() - self._began_run
            share = spent / (spent + whole) if spent + whole else 0.0
        else:
            done, total = self._amount[:2] if self._amount else (0, 1)
            share = (self._finished + min(1.0, done / max(total, 1))) / (self._finished + len(self._ahead))
        self._share = max(self._share, min(share, 1.0))
        return self._share

    def draw(self, columns: int, text: str = "", *, ascii_only: bool = False) -> str:
        """Return the line: bar, number of the stage, stage, what is done of it, time left, and what it is doing.

        Where there is no room for all, what says least is left out, and no word is cut.
        """
        number = f"stage {self._finished + 1} of {self._finished + len(self._ahead)}"
        whole, here = self.find_left()
        left = f"{format_left(whole)} left" if whole is not None else ""
        left = f"{format_left(here)} left in this stage" if not left and here is not None else left
        room = columns - streams.count_cells(f" {number}  {self._title}")
        amount = format_amount(*self._amount) if self._amount else ""
        size = _SHORT_BAR if room >= _SHORT_BAR + 2 else 0
        room -= size + 2
        left = left if len(left) + 2 <= room else ""
        room -= len(left) + 2 if left else 0
        amount = amount if len(amount) + 2 <= room else ""
        room -= len(amount) + 2 if amount else 0
        if size and room >= _BAR - size:
            size, room = _BAR, room - _BAR + size
        bar = format_bar(self.find_share(), size, ascii_only=ascii_only)
        parts = (bar, number, self._title, amount, left, _shorten(text, room - 2))
        return f" {'  '.join(part for part in parts if part)}"


class Lines:
    """Plain lines for build servers, and a heartbeat so that they do not think it hangs."""

    def __init__(self, recipe: str) -> None:
        self._recipe = recipe
        self._share = ""

    def expect(self, finished: int, ahead: Sequence[float | None]) -> None:
        """Do nothing: a line says which stage is done."""

    @contextlib.contextmanager
    def working(self, stage: str, side: str) -> Iterator[None]:
        """Print a heartbeat every minute."""
        self._share = ""
        with _Heartbeat(lambda seconds: self._line(stage, side, "running", seconds, self._share), HEARTBEAT_SECONDS):
            yield

    def say(self, text: str) -> None:
        """Print nothing: a build server keeps every line, and there would be many."""

    def advance(self, done: int, total: int, unit: str) -> None:
        """Remember it for the next heartbeat."""
        del unit
        self._share = f" progress={min(100, 100 * done // max(total, 1))}%"

    def done(self, stage: str, side: str, state: str, seconds: float, note: str) -> None:
        """Print the stage's line."""
        del note
        self._line(stage, side, state if state in {"kept", "skipped"} else "done", seconds)

    def _line(self, stage: str, side: str, state: str, seconds: float, share: str = "") -> None:
        streams.say(format_stage(self._recipe, stage, side=side, state=state, seconds=seconds) + share)


class Quiet:
    """Prints nothing, for ``output=quiet``."""

    def expect(self, finished: int, ahead: Sequence[float | None]) -> None:
        """Do nothing."""

    @contextlib.contextmanager
    def working(self, stage: str, side: str) -> Iterator[None]:
        """Do nothing."""
        del stage, side
        yield

    def say(self, text: str) -> None:
        """Do nothing."""

    def advance(self, done: int, total: int, unit: str) -> None:
        """Do nothing."""

    def done(self, stage: str, side: str, state: str, seconds: float, note: str) -> None:
        """Do nothing."""


class _Heartbeat:
    """Calls ``beat`` again and again with the seconds so far, from a thread, until the block ends."""

    def __init__(self, beat: Callable[[float], None], interval: float) -> None:
        self._beat, self._interval = beat, interval
        self._over = threading.Event()
        # A daemon, so that a thread that waits for the next beat never keeps the process from ending.
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        started = time.monotonic()
        while not self._over.wait(self._interval):  # False when it is time, True at once when the stage is over
            self._beat(time.monotonic() - started)


def format_bar(share: float, size: int, *, ascii_only: bool = False) -> str:
    """Return a bar of some letters.

    >>> format_bar(0.3, 10), format_bar(0.3, 10, ascii_only=True)
    ('███░░░░░░░', '###.......')
    """
    full, empty = "#." if ascii_only else "█░"
    filled = int(share * size)
    return f"{full * filled}{empty * (size - filled)}"


def format_amount(done: int, total: int, unit: str) -> str:
    """Return what is done of a stage; bytes are shown as MB.

    >>> format_amount(3, 10, "steps"), format_amount(50_000_000, 200_000_000, "bytes")
    ('3 of 10 steps', '50 of 200 MB')
    """
    return f"{done / 1e6:.0f} of {total / 1e6:.0f} MB" if unit == "bytes" else f"{done} of {total} {unit}"


def format_left(seconds: float) -> str:
    """Return how long something will take, as exactly as such a thing is known.

    >>> format_left(0.2), format_left(42.4), format_left(200), format_left(9000)
    ('1 s', '42 s', 'about 3 min', 'about 2.5 h')
    """
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


def _shorten(text: str, columns: int) -> str:
    """Return the first words of a text that have room."""
    words = text.split()
    while words and streams.count_cells(" ".join(words)) > columns:
        words.pop()
    return " ".join(words)


def choose(output: str, recipe: str, *, ci: bool) -> Progress:
    """Return the progress display that ``output=`` asks for; ``auto`` means ``ci`` in CI or if stderr is no terminal."""
    if output == "quiet":
        return Quiet()
    if output == "ci" or (output == "auto" and (ci or not sys.stderr.isatty())):
        return Lines(recipe)
    return Terminal()
