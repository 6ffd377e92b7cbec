"""The agent's door: ``python precflow-agent.pyz request.json``."""

from __future__ import annotations

import faulthandler
import signal
import sys
from contextlib import suppress
from typing import Optional, Sequence

from precflow import __version__
from precflow.agent import parent, request, worker
from precflow.agent.events import Events, claim_stdout
from precflow.agent.failures import AgentError

OLDEST_PYTHON = (3, 8)
USAGE = """precflow-agent %s: runs one side's workload and writes its dump

   python precflow-agent.pyz request.json     do what the request says (a judge writes it)
   python precflow-agent.pyz --version

Needs Python 3.8+ and torch 2.1+, nothing else. Progress is on stdout as JSON lines, text for people on stderr.
Leaves with 0, or with 2 where something could not be done.""" % (__version__,)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Do one request and return the exit code: 0, or 2 where something could not be done."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--version"]:
        sys.stdout.write("precflow-agent %s\n" % __version__)
        return 0
    if len(words) != 1 or words[0].startswith("-"):
        sys.stderr.write(USAGE + "\n")
        return 0 if words in (["-h"], ["--help"]) else 2
    return _serve(words[0], Events(claim_stdout()))


def _serve(path: str, events: Events) -> int:
    faulthandler.enable()  # a crash below Python leaves the line of the workload in the log
    faulthandler.register(signal.SIGTERM, all_threads=False, chain=True)  # and so does one that hung until it was stopped
    try:
        asked = request.read(path)
        if asked.parent is not None:
            parent.die_with(asked.parent)
        worker.run(asked, events)
    except AgentError as error:
        events.failed(error)
        with suppress(OSError):  # the log may be on the disk that is full
            sys.stderr.write(error.trace or "precflow-agent: %s\n%s\n" % (error.message, error.next_step))
            sys.stderr.flush()
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
