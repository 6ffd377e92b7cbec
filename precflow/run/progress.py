"""Shows on stderr how a run goes: one line for each finished stage, and a spinner on a terminal or heartbeats in CI."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.markup import escape

from precflow import streams
from precflow.agent import redaction
from precflow.report.ci import format_stage
from precflow.streams import printable

HEARTBEAT_SECONDS = 60.0  # build servers stop a job that prints nothing for some minutes


class Progress(Protocol):
    """What the runner calls to show its progress."""

    def working(self, stage: str, side: str) -> contextlib.AbstractContextManager[None]:
        """Enter while a stage works."""

    def say(self, text: str) -> None:
        """Show what the stage is doing."""

    def done(self, stage: str, side: str, state: str, seconds: float, note: str) -> None:
        """Show that a stage was made, kept from before, or skipped."""


class Terminal:
    """A spinner while a stage works, one line when it is done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("")
        self._title = ""

    @contextlib.contextmanager
    def working(self, stage: str, side: str) -> Iterator[None]:
        """Show the spinner."""
        self._title = f"{stage} {side}".strip()
        with self._console.status(self._title) as self._status:
            yield

    def say(self, text: str) -> None:
        """Put the text beside the spinner."""
        self._status.update(f"{self._title}  [dim]{escape(printable(redaction.redact_text(text)))}[/dim]")

    def done(self, stage: str, side: str, state: str, seconds: float, note: str) -> None:
        """Print the stage's line."""
        tick = "+" if self._console.encoding != "utf-8" else "✓"
        mark = {"kept": "=", "skipped": "?"}.get(state, tick)
        spent = f"{seconds:.0f} s" if mark == tick else "later" if state == "skipped" else state
        line = f" {mark} {stage:<13}{side:<10} {spent:>6}   {note}"
        self._console.print(escape(printable(redaction.redact_text(line))), highlight=False, overflow="ellipsis", no_wrap=True)


class Lines:
    """Plain lines for build servers, and a heartbeat so that they do not think it hangs."""

    def __init__(self, recipe: str) -> None:
        self._recipe = recipe

    @contextlib.contextmanager
    def working(self, stage: str, side: str) -> Iterator[None]:
        """Print a heartbeat every minute."""
        with _Heartbeat(lambda seconds: self._line(stage, side, "running", seconds)):
            yield

    def say(self, text: str) -> None:
        """Print nothing: a build server keeps every line, and there would be many."""

    def done(self, stage: str, side: str, state: str, seconds: float, note: str) -> None:
        """Print the stage's line."""
        del note
        self._line(stage, side, state if state in {"kept", "skipped"} else "done", seconds)

    def _line(self, stage: str, side: str, state: str, seconds: float) -> None:
        streams.say(format_stage(self._recipe, stage, side=side, state=state, seconds=seconds))


class Quiet:
    """Prints nothing, for ``output=quiet``."""

    @contextlib.contextmanager
    def working(self, stage: str, side: str) -> Iterator[None]:
        """Do nothing."""
        del stage, side
        yield

    def say(self, text: str) -> None:
        """Do nothing."""

    def done(self, stage: str, side: str, state: str, seconds: float, note: str) -> None:
        """Do nothing."""


class _Heartbeat:
    """Calls ``beat`` once a minute with the seconds so far, from a thread, until the block ends."""

    def __init__(self, beat: Callable[[float], None]) -> None:
        self._beat = beat
        self._over = threading.Event()
        # A daemon, so that a thread that waits for the next minute never keeps the process from ending.
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        started = time.monotonic()
        while not self._over.wait(HEARTBEAT_SECONDS):  # False after a minute, True at once when the stage is over
            self._beat(time.monotonic() - started)


def choose(output: str, recipe: str, *, ci: bool) -> Progress:
    """Return the progress display that ``output=`` asks for; ``auto`` means ``ci`` in CI or if stderr is no terminal."""
    if output == "quiet":
        return Quiet()
    if output == "ci" or (output == "auto" and (ci or not sys.stderr.isatty())):
        return Lines(recipe)
    return Terminal(Console(stderr=True))
