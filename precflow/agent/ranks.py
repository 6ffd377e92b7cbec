"""Several processes that run one side together, each with its own rank: who starts them, and what happens when one ends.

A launcher of the side (torchrun, srun) may have started them: then each has the variables that torchrun sets, and runs the
request as the rank that they name. Otherwise the agent is one process, which starts them here as torchrun would: it imports
torch once and forks, sets the same variables, and gives each rank a log of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Callable, Dict, List, Optional

from precflow.agent.contract import RANK_LOG_FILE
from precflow.agent.failures import AgentError

if TYPE_CHECKING:
    from precflow.agent.events import Events
    from precflow.agent.request import Request

TOGETHER = (
    "dump",
    "plain",
    "as_is",
    "noise",
    "whatif",
)  # actions that every rank takes part in; the others need only one process
_GRACE = 3.0  # seconds that the other ranks have to end by themselves, after one has failed
_LAST = 1.0  # seconds that a rank has to print its stack and end, once it is told to
_TICK = 0.05


def rank_of(request: Request) -> int:
    """Return the rank of this process, 0 if the side is one process."""
    return int(os.environ["RANK"]) if request.ranks > 1 else 0


def are_started() -> bool:
    """Tell whether a launcher has started this process as one of several ranks."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def check_launched(request: Request) -> None:
    """Make sure that a launcher has started as many ranks as the request says.

    Raises:
        AgentError: ``bad_request``: it has not.
    """
    started = os.environ["WORLD_SIZE"]
    if request.action in TOGETHER and started != str(request.ranks):
        message = "%s.ranks is %d, and the launcher has started %s" % (request.side, request.ranks, started)
        raise AgentError("bad_request", message, "make the two agree, such as torchrun --nproc-per-node=%d" % request.ranks)


def start(request: Request, events: Events, run: Callable[[int], int], redirect: Callable[[str], None]) -> int:
    """Fork one process for each rank, wait for all of them, and return the exit code: 0, or 2 if a rank failed.

    In the forked processes it returns what ``run`` returns. Once a rank has failed, the others get three seconds to end by
    themselves; then they are ended.

    Args:
        request: The request.
        events: Where the end of each rank is reported.
        run: Runs the request as a rank, which it is given, and returns an exit code.
        redirect: Appends everything that this process prints from now on to a file.

    Raises:
        AgentError: ``unsupported``: processes cannot be forked here.
    """
    if sys.platform != "linux":
        message = "%d ranks can be started by a launcher only on %s" % (request.ranks, sys.platform)
        raise AgentError("unsupported", message, "a site file names one: launcher: [torchrun, ...]")
    shared = {
        "WORLD_SIZE": str(request.ranks),
        "LOCAL_WORLD_SIZE": str(request.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_find_free_port()),
    }
    running: Dict[int, int] = {}  # process -> rank
    for rank in range(request.ranks):
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if process == 0:
            os.environ.update(shared, RANK=str(rank), LOCAL_RANK=str(rank))
            _use_one_thread()
            if rank:
                redirect(os.path.join(request.output, RANK_LOG_FILE % rank))
            return run(rank)
        running[process] = rank
    return _wait(running, events)


def _wait(running: Dict[int, int], events: Events) -> int:
    codes: List[int] = []
    deadline: Optional[float] = None
    while running:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process in running:
            codes.append(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
            rank = running.pop(process)
            if codes[-1]:
                events.report_end(rank, codes[-1])
                deadline = deadline or time.monotonic() + _GRACE
            continue
        if deadline is not None and time.monotonic() > deadline:
            _end(running)
            break
        time.sleep(_TICK)
    return 2 if any(codes) else 0


def _end(running: Dict[int, int]) -> None:
    """End ranks that wait for one that has failed. SIGTERM makes each print its stack into its log first."""
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)
    left, deadline = list(running), time.monotonic() + _LAST
    while left and time.monotonic() < deadline:
        time.sleep(_TICK)
        left = [process for process in left if os.waitpid(process, os.WNOHANG)[0] == 0]
    for process in left:
        os.kill(process, signal.SIGKILL)  # not reaped yet, so it is still this process
        os.waitpid(process, 0)


def _use_one_thread() -> None:
    """Compute with one thread unless the side says otherwise: the cores are shared with the other ranks."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = "1"  # for processes that the workload starts
        torch.set_num_threads(1)


def _find_free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
