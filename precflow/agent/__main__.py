"""The agent's door: ``python precflow-agent.pyz request.json``."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
import warnings
from contextlib import suppress
from typing import Optional, Sequence

from precflow import __version__
from precflow.agent import request, worker
from precflow.agent.contract import LOG_FILE
from precflow.agent.events import Events, claim_stdout
from precflow.agent.failures import AgentError

OLDEST_PYTHON = (3, 8)
USAGE = """precflow-agent %s: runs one side's workload and writes its dump

   python precflow-agent.pyz request.json     do what the request says (a judge writes it)
   python precflow-agent.pyz --stay PID       do the requests whose paths the judge (process PID) writes to stdin
   python precflow-agent.pyz --version

Needs Python 3.8+ and torch 2.1+, nothing else. Progress is on stdout as JSON lines, text for people on stderr.
Leaves with 0, or with 2 where something could not be done.""" % (__version__,)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Do one request and return the exit code: 0, or 2 where something could not be done."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--version"]:
        sys.stdout.write("precflow-agent %s\n" % __version__)
        return 0
    if len(words) == 2 and words[0] == "--stay" and words[1].isdigit():
        return _stay(int(words[1]))
    if len(words) != 1 or words[0].startswith("-"):
        sys.stderr.write(USAGE + "\n")
        return 0 if words in (["-h"], ["--help"]) else 2
    return _serve(words[0], Events(claim_stdout()))


def _serve(path: str, events: Events, started_by: Optional[int] = None) -> int:
    """Do one request; ``started_by`` is the process to end with where that is not the judge."""
    faulthandler.enable()  # a crash below Python leaves the line of the workload in the log
    faulthandler.register(signal.SIGTERM, all_threads=False, chain=True)  # and so does one that hung until it was stopped
    try:
        asked = request.read(path)
        if asked.parent is not None:
            die_with(started_by or asked.parent)
        worker.run(asked, events)
    except AgentError as error:
        return _failed(error, events)
    return 0


def _failed(error: AgentError, events: Events) -> int:
    events.failed(error)
    with suppress(OSError):  # the log may be on the disk that is full
        sys.stderr.write(error.trace or "precflow-agent: %s\n%s\n" % (error.message, error.next_step))
        sys.stderr.flush()
    return 2


def _stay(judge: int) -> int:
    """Do requests one after another, each in a child that finds torch imported: that takes longer than many a request.

    A child begins where a process of its own would stand after that import, so nothing of one request reaches the next. Each
    line on stdin is JSON: the path of a request, and whether another may follow; a line on stdout tells that one is done.
    Where a child crashes, this process ends as the child did, for the judge to see.
    """
    faulthandler.enable()
    stream = claim_stdout()
    events = Events(stream)
    die_with(judge)
    line = sys.stdin.readline()
    try:
        worker.import_torch(events)
    except AgentError as error:
        return _failed(error, events)
    _write_to(os.devnull)  # what follows belongs to the log of each request
    myself = os.getpid()
    while line:
        path, more = json.loads(line)
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # sent to both: the child is to leave its stack, then we end too
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer Pythons warn of threads; those of NumPy's BLAS know about forks
            child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, before)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            _write_to(os.path.join(os.path.dirname(path), LOG_FILE))
            code = _serve(path, Events(stream), started_by=myself)
            if more:  # a request for facts: nothing of the user's ran, and taking torch apart takes half a second
                _flush()
                os._exit(code)
            return code
        _, status = os.waitpid(child, 0)
        signal.signal(signal.SIGTERM, before)
        code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if code not in (0, 2):
            return code
        events.done(code)
        line = sys.stdin.readline()
    return 0


def _write_to(path: str) -> None:
    """Append to a file from now on what anything here prints."""
    _flush()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _flush() -> None:
    with suppress(OSError):  # the disk may be full
        sys.stdout.flush()
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())


# Not outliving the judge: an agent whose judge was killed would keep a device busy for a result that nobody reads.

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends; end now if that has happened already.

    Only what the judge started directly can be bound: behind a launcher the parent is the launcher, and the judge passes
    no number.

    Args:
        parent: Process id of the judge.
    """
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):  # not Linux: the judge's own clean-up has to do
        return
    if os.getppid() != parent:
        raise SystemExit(2)
