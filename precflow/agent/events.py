"""What an agent tells the judge while it works: JSON lines on stdout. Everything meant for people goes to stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import contextmanager
from typing import Dict, Iterator, TextIO

from precflow.agent import redaction
from precflow.agent.failures import AgentError


class Events:
    """Sends events, and measures how long each part took.

    Args:
        stream: Where the lines go.
    """

    def __init__(self, stream: TextIO) -> None:
        self.seconds: Dict[str, float] = {}
        self._stream = stream

    def progress(self, step: str, text: str) -> None:
        """Say what is being done."""
        self._send({"event": "progress", "step": step, "text": redaction.text(text)})

    def failed(self, error: AgentError) -> None:
        """Say why the agent stops."""
        self._send({"event": "error", "kind": error.kind, "message": error.message, "next_step": error.next_step})

    def done(self, code: int) -> None:
        """Say that a request is done, and that this process waits for another one."""
        self._send({"event": "done", "code": str(code)})

    @contextmanager
    def part(self, name: str, text: str) -> Iterator[None]:
        """Announce one part of the work and measure it."""
        self.progress(name, text)
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - started, 3)

    def _send(self, event: Dict[str, str]) -> None:
        self._stream.write(json.dumps(event, ensure_ascii=True) + "\n")
        self._stream.flush()


def claim_stdout() -> TextIO:
    """Return the process's stdout for events alone; what anything else prints there goes to stderr from now on."""
    sys.stdout.flush()
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return stream
