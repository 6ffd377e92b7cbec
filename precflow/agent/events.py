"""Events that an agent sends to the judge while it works: JSON lines on stdout. Text for people goes to stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Optional, TextIO

from precflow.agent import redaction
from precflow.agent.failures import AgentError

_OFTEN = 0.2  # seconds between two reports of an amount


class Events:
    """Sends events, and measures how long each part of the work takes.

    Args:
        stream: Where the lines go.
        rank: Rank of this process if it is one of several, else ``None``. Only rank 0 reports progress.

    Attributes:
        seconds: Time that each part took, by name.
    """

    def __init__(self, stream: TextIO, rank: Optional[int] = None) -> None:
        self.seconds: Dict[str, float] = {}
        self._stream = stream
        self._rank = rank
        self._part = (0, 1)
        self._last = 0.0

    def of_rank(self, rank: int) -> Events:
        """Return what sends the events of one of several ranks to the same place."""
        return Events(self._stream, rank)

    def report_progress(self, step: str, text: str) -> None:
        """Report what is being done now."""
        if not self._rank:
            self._send({"event": "progress", "step": step, "text": redaction.redact_text(text)})

    def report_amount(self, done: int, total: int, unit: str) -> None:
        """Report how much of the work is done, at most five times a second; nothing where there is but one thing to do."""
        index, count = self._part
        done, total = index * total + done, count * total
        if self._rank or total < 2 or (done < total and time.monotonic() - self._last < _OFTEN):
            return
        self._last = time.monotonic()
        self._send({"event": "amount", "done": str(done), "total": str(total), "unit": unit})

    @contextmanager
    def nth_of(self, index: int, count: int) -> Iterator[None]:
        """Let amounts inside be those of one of several equal parts; such blocks nest."""
        outer = self._part
        self._part = (outer[0] * count + index, outer[1] * count)
        try:
            yield
        finally:
            self._part = outer

    def report_failure(self, error: AgentError) -> None:
        """Report why the agent stops."""
        told = {"kind": error.kind, "message": error.message, "next_step": error.next_step}
        self._send({"event": "error", **told, **({"where": {**error.where, "trace": error.trace}} if error.where else {})})

    def report_collective(self, operator: str, group: str, number: int, place: str) -> None:
        """Report that this rank begins a collective: of ranks that wait for each other, the judge can tell which is late.

        Args:
            operator: Its name.
            group: The ranks that take part, such as ``0,1``.
            number: How many collectives of this group came before.
            place: Step and module that it belongs to.
        """
        self._send({"event": "collective", "operator": operator, "group": group, "number": str(number), "place": place})

    def report_end(self, rank: int, code: int) -> None:
        """Report that a rank, which this process has started, has failed: with this exit code, or by the signal ``-code``."""
        self._send({"event": "ended", "rank": str(rank), "code": str(code)})

    def report_done(self, code: int) -> None:
        """Report that a request is done and that this process waits for the next one."""
        self._send({"event": "done", "code": str(code)})

    @contextmanager
    def time_part(self, name: str, text: str) -> Iterator[None]:
        """Announce one part of the work and measure its time; parts of one name add up in ``seconds``."""
        self.report_progress(name, text)
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - started, 3)

    def _send(self, event: Dict[str, Any]) -> None:
        if self._rank is not None and "rank" not in event:
            event = {**event, "rank": str(self._rank)}
        self._stream.write(json.dumps(event, ensure_ascii=True) + "\n")
        self._stream.flush()


def claim_stdout() -> TextIO:
    """Return the process's stdout for events only; whatever else is printed goes to stderr from now on.

    The file descriptor itself is redirected, not just ``sys.stdout``: libraries and child processes print too, and their
    lines would break the stream of JSON.
    """
    sys.stdout.flush()
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return stream
