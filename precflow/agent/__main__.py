"""The agent's command line: ``python precflow-agent.pyz request.json``."""

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

from precflow.agent import ranks, request, worker
from precflow.agent.contract import LOG_FILE
from precflow.agent.events import Events, claim_stdout
from precflow.agent.failures import AgentError
from precflow.version import __version__

USAGE = """precflow-agent %s: runs one side's workload and writes its dump

   python precflow-agent.pyz request.json     do what the request says (a judge writes it)
   python precflow-agent.pyz --stay PID       do the requests whose paths the judge (process PID) writes to stdin
   python precflow-agent.pyz --version

Needs Python 3.8+ and torch 2.1+, nothing else. Progress is on stdout as JSON lines, text for people on stderr.
Leaves with 0, or with 2 where something could not be done.""" % (__version__,)

_WITHOUT_USER_CODE = ("environment", "machine", "evaluate")  # actions
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Handle one command line and return the exit code: 0, or 2 if something could not be done."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--version"]:
        sys.stdout.write("precflow-agent %s\n" % __version__)
        return 0
    if len(words) == 2 and words[0] == "--stay" and words[1].isdigit():
        return _serve_many(int(words[1]))
    if len(words) != 1 or words[0].startswith("-"):
        sys.stderr.write(USAGE + "\n")
        return 0 if words in (["-h"], ["--help"]) else 2
    return _serve(words[0], Events(claim_stdout()))


def _serve(path: str, events: Events, started_by: Optional[int] = None) -> int:
    """Handle one request and return the exit code.

    Args:
        path: The request.
        events: Where progress goes.
        started_by: The process that forked this one for the request, and to die with; ``None``: started for it alone.
    """
    faulthandler.enable()  # a crash below Python (a segmentation fault) still leaves the workload's line in the log
    faulthandler.register(signal.SIGTERM, all_threads=False, chain=True)  # and so does a workload stopped for hanging
    try:
        checked = request.read(path)
        if checked.parent is not None:
            die_with(started_by or checked.parent)
        if checked.parent is None and os.environ.get("RANK", "0") == "0":  # no judge has made this request here and now
            for line in request.describe_code(checked):
                sys.stderr.write("precflow-agent: %s\n" % line)
        if ranks.are_started():
            ranks.check_launched(checked)
            return _run_rank(checked, events.of_rank(int(os.environ["RANK"])))
        if checked.ranks > 1 and checked.action in ranks.TOGETHER:
            worker.import_torch(events)  # before the fork, so that it is imported once and not by each rank
            myself = os.getpid()

            def run(rank: int) -> int:
                """Run one rank in its own process, and end with the process that forked it."""
                die_with(myself)
                return _run_rank(checked, events.of_rank(rank))

            return ranks.start(checked, events, run, _redirect_output)
        worker.run(checked, events)
        if started_by is not None and checked.action in _WITHOUT_USER_CODE:
            _flush()
            os._exit(0)  # tearing torch down properly takes half a second, and nobody's exit handlers are waiting
    except AgentError as error:
        return _report_failure(error, events)
    return 0


def _run_rank(checked: request.Request, events: Events) -> int:
    """Run a request as one of several ranks and return the exit code."""
    try:
        if checked.action in ranks.TOGETHER or not int(os.environ["RANK"]):
            worker.run(checked, events)
    except AgentError as error:
        return _report_failure(error, events)
    return 0


def _serve_many(judge: int) -> int:
    """Handle requests from stdin, each in a forked child that already has torch imported.

    Importing torch takes longer than many a request. A child starts where a process of its own would stand after that
    import, so nothing of one request reaches the next. Each line on stdin is the path of a request as
    JSON. A ``done`` event on stdout reports the end of each. If a child crashes, this process
    ends in the same way, so that the judge sees the signal or the exit code.
    """
    faulthandler.enable()
    stream = claim_stdout()
    events = Events(stream)
    die_with(judge)
    line = sys.stdin.readline()
    try:
        worker.import_torch(events)
    except AgentError as error:
        return _report_failure(error, events)
    _redirect_output(os.devnull)  # each child redirects its own output into the log of its request
    myself = os.getpid()
    while line:
        path = json.loads(line)
        # The judge sends SIGTERM to both processes: the child shall print its stack, and only then do we end too.
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer Pythons warn of forks with threads; those of NumPy's BLAS survive a fork
            child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, before)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            _redirect_output(os.path.join(os.path.dirname(path), LOG_FILE))
            return _serve(path, Events(stream), started_by=myself)
        _, status = os.waitpid(child, 0)
        signal.signal(signal.SIGTERM, before)
        code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if code not in (0, 2):
            return code
        events.report_done(code)
        line = sys.stdin.readline()
    return 0


def _report_failure(error: AgentError, events: Events) -> int:
    """Tell judge and user why a request failed, and return the exit code."""
    events.report_failure(error)
    with suppress(OSError):  # the log may be on the disk that is full
        sys.stderr.write(error.trace or "precflow-agent: %s\n%s\n" % (error.message, error.next_step))
        sys.stderr.flush()
    return 2


def _redirect_output(path: str) -> None:
    """Append everything that this process prints from now on to a file."""
    _flush()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _flush() -> None:
    with suppress(OSError):  # the disk may be full
        sys.stdout.flush()
        sys.stderr.flush()


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends; exit now if the parent is gone already.

    An agent whose judge was killed would keep a device busy for a result that nobody reads. Only a direct child of the
    judge can be bound in this way: behind a launcher the parent is the launcher, and the judge sends no process id.

    Args:
        parent: Process id of the judge.
    """
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):  # not Linux: the judge has to clean up by itself
        return
    if os.getppid() != parent:
        raise SystemExit(2)


if __name__ == "__main__":
    sys.exit(main())
