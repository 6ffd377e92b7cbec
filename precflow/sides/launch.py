"""Starting an agent in its side's interpreter, following its output, and making sure that none of its processes survives."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from precflow.agent import intake, redaction
from precflow.agent.contract import (
    AS_IS_FILE,
    EVALUATED_FILE,
    FACTS_FILE,
    HEADER_FILE,
    LOG_FILE,
    NOISE_FILE,
    PLAIN_FILE,
    REHEARSAL_FILE,
    REPLAYED_FILE,
    UNARY_FILE,
    WHATIF_FILE,
)
from precflow.config.schema import Side
from precflow.errors import SideError, StoreError
from precflow.sides import pack
from precflow.sides.agent_log import describe_last_call, log_of, read_last_lines, redact_log
from precflow.sides.breakdown import read_left_behind, read_reported
from precflow.sides.device_log import collect, log_variables
from precflow.sides.interpreter import find_interpreter
from precflow.sides.ranks import RANK_VARIABLES, Ranks

REQUEST_FILE = "request.json"
_COMMAND = "{command}"  # placeholder in a launcher for the agent's command
# Threads of GNU OpenMP spin while they wait, and take the cores of other agents and of a comparison beside them: three times
# the CPU time, measured on two cores.
_UNLESS_SET = {"GOMP_SPINCOUNT": "0"}
_FORKS = sys.platform == "linux"  # on other systems, libraries that torch uses do not survive a fork
_GRACE = 3.0  # seconds between SIGTERM and SIGKILL
_TICK = 0.2  # seconds between two checks whether a silent process is still alive
_NEXT_STEPS = {
    "SIGKILL": "was there enough memory? look at dmesg, or narrow the workload",
    **dict.fromkeys(
        ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"),
        "a library below Python crashed: run the workload alone in this interpreter to see it again",
    ),
}
_RESULT_FILES = {
    "environment": FACTS_FILE,
    "machine": FACTS_FILE,
    "dump": HEADER_FILE,
    "plain": PLAIN_FILE % 0,
    "as_is": AS_IS_FILE % 0,
    "noise": NOISE_FILE,
    "whatif": WHATIF_FILE,
    "rehearse": REHEARSAL_FILE,
    "evaluate": EVALUATED_FILE,
    "replay": REPLAYED_FILE,
    "unary": UNARY_FILE,
}


@dataclass
class _Outcome:
    """What an agent reported, and how it ended."""

    error: Mapping[str, Any] = field(default_factory=dict)
    timed_out: bool = False
    ranks: Ranks = field(default_factory=Ranks)
    code: int | None = None  # exit code of a request that is done while the process waits for the next one


@dataclass
class _Agent:
    """A running process, the lines that it prints, and whether it is waiting for another request."""

    process: subprocess.Popen[bytes]
    lines: queue.SimpleQueue[bytes]
    waits: bool = False

    def ask(self, request: Path) -> bool:
        """Send a request to a waiting process; return whether the process is still alive."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(str(request)).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            return False
        self.waits = False
        return self.process.poll() is None


class Agents:
    """A pool of agents that have imported torch and wait for another request of their side, until the pool is closed.

    Importing torch takes seconds, collecting the facts of a side a tenth of a second. Each request still runs in a process of
    its own, forked right after the import of torch, so one request cannot affect the next. Two sides never share an agent.
    """

    def __init__(self) -> None:
        self._waiting: dict[tuple[object, ...], _Agent] = {}
        self._busy: list[_Agent] = []
        self._over = False

    def end_busy(self) -> None:
        """End every agent that works on a request, also one of another thread, which gets :class:`SideError`; start no more."""
        self._over = True
        for agent in tuple(self._busy):
            _end(agent.process)

    def close(self) -> None:
        """End every waiting agent."""
        while self._waiting:
            _end(self._waiting.popitem()[1].process)

    @contextlib.contextmanager
    def ask(  # noqa: PLR0913  each is a fact of its own
        self, request: Path, name: str, side: Side, environment: Mapping[str, str], log: IO[bytes], *, stays: bool
    ) -> Iterator[_Agent]:
        """Give a request to a waiting agent of this side, or start one.

        On leaving the context the agent's whole process group is ended, also after an exception. Only an agent that ``stays``
        and has completed its request is kept for the next one.

        Raises:
            SideError: The agent cannot be started, or :meth:`end_busy` was called.
        """
        if self._over:
            raise SideError(f"the {name} side was not started, because another stage had failed")
        words = build_command(side, "--stay", str(os.getpid()))
        # A process keeps the environment that it was started with, so an agent is reused only for exactly the same one.
        key = (name, tuple(words), tuple(sorted(environment.items())))
        agent = self._waiting.pop(key, None)
        if agent is not None and not agent.ask(request):  # it has ended in the meantime
            _end(agent.process)
            agent = None
        # With a launcher there is no waiting: it may start several processes, or on another machine, out of reach of our pipe.
        if agent is None and stays and _FORKS and not side.launcher:
            agent = _start(words, environment, log, stdin=subprocess.PIPE)
            agent.ask(request)
        agent = agent or _start(build_command(side, str(request)), environment, log)
        self._busy.append(agent)
        try:
            if self._over:  # in the meantime
                _end(agent.process)
            yield agent
            if stays and agent.waits:
                self._waiting[key] = agent
        finally:
            self._busy.remove(agent)
            if self._waiting.get(key) is not agent:
                _end(agent.process)


@dataclass(frozen=True)
class _Watch:
    """Who is told of an agent's progress: with a text, and with an amount."""

    say: Callable[[str], None]
    advance: Callable[[int, int, str], None]


def run_agent(  # noqa: PLR0913  each is a fact of its own, and all but one go by name
    request: Mapping[str, Any],
    *,
    side: Side,
    folder: Path,
    variables: Mapping[str, str],
    timeout: float,
    on_progress: Callable[[str], None] | None = None,
    on_amount: Callable[[int, int, str], None] | None = None,
    agents: Agents | None = None,
    device_log: str = "",
) -> None:
    """Run one request in the side's interpreter and return when its result is in ``folder``.

    Args:
        request: See ``requests.py``; its ``output`` is ``folder``.
        side: Interpreter, launcher and set-up files.
        folder: Existing folder; gets ``request.json`` and ``agent.log`` besides what the agent writes.
        variables: Environment variables; they override those that the request implies.
        timeout: Seconds until the agent is stopped; 0 means no limit.
        on_progress: Called with a short text while the agent works.
        on_amount: Called with what is done, what there is to do, and in which unit, such as ``steps``.
        agents: Pool in which the agent that collected a side's facts waits for the request of its dump.
        device_log: Least level of what the libraries of the device log, see :mod:`device_log`; ``""`` changes nothing.

    Raises:
        SideError: The agent refused, crashed, hung, or left no result; carries its last lines.
        StoreError: The folder cannot be written to.
    """
    name = str(request["side"])
    result = folder / _RESULT_FILES[str(request["action"])]
    if not request.get("resume"):  # what an earlier request has left must not pass for the answer to this one
        result.unlink(missing_ok=True)
    # The request is written to disk, so its secrets travel in an environment variable instead.
    workload, secrets = redaction.take_out(request.get("workload"), "workload")
    path = _write_request({**request, "workload": workload} if "workload" in request else request, side, folder)
    ours = {key: value for key, value in os.environ.items() if key not in RANK_VARIABLES}  # we may be a rank of something else
    logged = log_variables(device_log, folder) if device_log else {}
    chosen = {key: str(value) for key, value in variables.items()}
    environment = {**_UNLESS_SET, **ours, **imply_variables(request), **logged, **chosen}
    environment |= {redaction.VARIABLE: json.dumps(secrets)} if secrets else {}
    began = path.stat().st_mtime
    stays = agents is not None
    try:
        with _open_log(folder) as log, (agents or Agents()).ask(path, name, side, environment, log, stays=stays) as agent:
            deadline = time.monotonic() + timeout if timeout else float("inf")
            watch = _Watch(on_progress or (lambda _: None), on_amount or (lambda *_: None))
            outcome = _follow(agent, deadline, watch, log)
    finally:
        for written in sorted(folder.glob(LOG_FILE.replace(".", "*."))):
            redact_log(written)
    logs = collect(folder, environment, began) if device_log else ()
    try:
        _check_outcome(outcome, request, result, agent.process.returncode, timeout)
    except SideError as error:
        if error.breakdown is not None:
            logs = logs or collect(folder, environment, began)
            error.breakdown = replace(error.breakdown, logs=logs)
        raise


def _check_outcome(outcome: _Outcome, request: Mapping[str, Any], result: Path, code: int, timeout: float) -> None:
    """Make sure that a request has come to its end and left its result.

    Raises:
        SideError: It has not.
    """
    name, folder = str(request["side"]), result.parent
    late = outcome.ranks.find_culprit(timed_out=outcome.timed_out)
    lines = read_last_lines(folder, log_of(late))
    if outcome.timed_out:
        message = f"the {name} side did not finish within {timeout:g} s and was stopped"
        message += outcome.ranks.describe_waiting(late) + describe_last_call(folder, late or 0)
        broke = read_left_behind(name, "hang", folder, late or 0, lines)
        raise SideError(message, log=lines, next_step="allow it more time: capture.timeout=2h", breakdown=broke)
    if late is not None:
        message, next_step = outcome.ranks.describe_failure(late, int(request.get("ranks", 1)))
        told = outcome.ranks.errors.get(late)
        reported = read_reported(name, told.get("where")) if told else read_left_behind(name, "crash", folder, late, lines)
        raise SideError(f"{name}: {message}", log=[] if told else lines, next_step=next_step, breakdown=reported)
    _check_end(code if outcome.code is None else outcome.code, outcome, name, folder)
    if not result.is_file():
        raise SideError(
            f"the agent of the {name} side ended without a result{describe_last_call(folder)}",
            log=read_last_lines(folder),
            next_step="does the workload end its process, as os._exit does? look into the log",
            breakdown=read_left_behind(name, "silence", folder, 0, read_last_lines(folder)),
        )


def imply_variables(request: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables that the request needs and that must be set before Python or a driver starts."""
    # PYTHONHASHSEED is read when Python starts, the others when torch, cuBLAS, HCCL or transformers are loaded. The autoload
    # would import torch_npu into a side that asks for another device.
    determinism = request.get("determinism", {})
    seed, algorithms = determinism.get("seed", 0), determinism.get("algorithms", "warn")
    wanted = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    if isinstance(seed, int):
        wanted["PYTHONHASHSEED"] = str(seed % 2**32)
    if algorithms != "native":
        wanted |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "HCCL_DETERMINISTIC": "true"}
    return wanted


def build_command(side: Side, *request: str) -> list[str]:
    """Return the command that starts an agent: set-up files, then launcher, then interpreter, agent and its arguments.

    Raises:
        SideError: The interpreter or a set-up file is missing.
    """
    elsewhere = bool(side.setup or side.launcher)  # a set-up file may change PATH, a launcher may run on another machine
    python = side.interpreter if elsewhere and side.interpreter else find_interpreter(side)
    words = [python, str(pack.find_or_build()), *request]
    words = insert_into_launcher(side.launcher, words)
    return _source_setup(side.setup, words) if side.setup else words


def insert_into_launcher(launcher: Sequence[str], command: Sequence[str]) -> list[str]:
    """Return a launcher with a command in place of ``{command}``, or at its end if it has no such word.

    >>> insert_into_launcher(["srun", "{command}", "--end"], ["python", "agent.pyz"])
    ['srun', 'python', 'agent.pyz', '--end']
    """
    place = launcher.index(_COMMAND) if _COMMAND in launcher else len(launcher)
    return [*launcher[:place], *command, *launcher[place + 1 :]]


def _source_setup(files: Sequence[str], words: Sequence[str]) -> list[str]:
    paths = {file: Path(file).expanduser().absolute() for file in files}  # `.` looks for a bare name in PATH first
    missing = [file for file, path in paths.items() if not path.is_file()]
    if missing:
        raise SideError(f"set-up file {', '.join(missing)} does not exist", next_step="correct `setup` in the site file")
    # Output of a set-up file goes to stderr, because stdout carries the agent's events; stdin may carry requests.
    sourced = "".join(f". {shlex.quote(str(path))} >&2 </dev/null || exit 2; " for path in paths.values())
    return ["bash", "-c", f"{sourced}exec {shlex.join(words)}"]


def _write_request(request: Mapping[str, Any], side: Side, folder: Path) -> Path:
    """Write the request file, with our process number as ``parent``: the agent dies with that process.

    An agent behind a launcher gets none, because its parent is the launcher.
    """
    path = folder / REQUEST_FILE
    parent = None if side.launcher else os.getpid()
    try:
        text = json.dumps({**request, "parent": parent}, ensure_ascii=False, indent=1)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror}", next_step="name another place for runs: runs=FOLDER"
        ) from error
    return path


def _open_log(folder: Path) -> IO[bytes]:
    try:
        (folder / LOG_FILE).write_bytes(b"")
        # Append mode: a waiting agent opens the same file by itself, and both must write at the end.
        return (folder / LOG_FILE).open("ab", buffering=0)
    except OSError as error:
        raise StoreError(f"cannot write {folder / LOG_FILE}: {error.strerror}") from error


def _start(words: Sequence[str], environment: Mapping[str, str], log: IO[bytes], stdin: int = subprocess.DEVNULL) -> _Agent:
    """Start a process in a process group of its own, so that :func:`_end` reaches its children too."""
    try:
        process = subprocess.Popen(
            words, env=environment, stdin=stdin, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
    except OSError as error:
        raise SideError(
            f"cannot start {words[0]}: {error.strerror}", next_step="correct interpreter or launcher of this side"
        ) from error
    # Read in a thread: a blocking read of the pipe could not be given a timeout.
    assert process.stdout is not None
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_put_lines, args=(process.stdout, lines), daemon=True).start()
    return _Agent(process, lines)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and everything in its group: SIGTERM first, SIGKILL after ``_GRACE`` seconds."""
    if process.poll() is None:
        _signal_group(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    _signal_group(process, signal.SIGKILL)  # even if the process itself has ended: its children may still run
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # no process is left; macOS raises the second one then
        os.killpg(process.pid, number)


def _follow(agent: _Agent, deadline: float, watch: _Watch, log: IO[bytes]) -> _Outcome:
    """Pass on an agent's events until its request is done, the process has ended, or the deadline has passed."""
    outcome, process = _Outcome(), agent.process
    while True:
        if time.monotonic() > deadline:
            outcome.timed_out = True
            return outcome
        try:
            line = agent.lines.get(timeout=min(_TICK, max(0.0, deadline - time.monotonic())))
        except queue.Empty:
            if process.poll() is not None:  # it has ended, but a child that it left behind keeps the pipe open: no end of file
                return outcome
            continue
        if not line:  # end of file: the process is about to end
            break
        _handle_line(line, outcome, watch, log)
        if outcome.code is not None:
            agent.waits = True
            return outcome
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(None if deadline == float("inf") else max(0.0, deadline - time.monotonic()))
    outcome.timed_out = process.poll() is None
    return outcome


def _put_lines(stream: IO[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(b"")  # the end of the file


def _handle_line(line: bytes, outcome: _Outcome, watch: _Watch, log: IO[bytes]) -> None:
    """Handle one line of stdout: an event of the agent, or output of a launcher, which goes to the log."""
    try:
        event = intake.parse_json(line)
        kind = event["event"]
    except (ValueError, KeyError, TypeError):
        log.write(line)
        return
    if "rank" in event:
        outcome.ranks.note(event)
    if kind == "error":
        outcome.error = {"message": "it gave no reason", **event}
    elif kind == "done":
        outcome.code = int(event["code"])
    elif kind == "progress":
        watch.say(str(event.get("text", "")))
    elif kind == "amount":
        with contextlib.suppress(KeyError, ValueError, TypeError):  # only for people: never an error
            watch.advance(int(event["done"]), int(event["total"]), str(event["unit"]))


def _check_end(code: int, outcome: _Outcome, name: str, folder: Path) -> None:
    if outcome.error:
        kind, next_step = str(outcome.error.get("kind", "")), outcome.error.get("next_step", "")
        broke = read_reported(name, outcome.error.get("where"))
        raise SideError(f"{name}: {outcome.error['message']}", next_step=str(next_step), kind=kind, breakdown=broke)
    if code == 0:
        return
    number = -code if code < 0 else code - 128  # signal 9 is -9 for Python and 137 for a shell
    killer = signal.Signals(number).name if number in set(signal.Signals) else ""
    why = f"was killed by {killer}" if killer else f"ended with exit code {code}"
    message, lines = f"the agent of the {name} side {why}{describe_last_call(folder)}", read_last_lines(folder)
    broke = read_left_behind(name, "crash" if killer else "silence", folder, 0, lines)
    raise SideError(message, log=lines, next_step=_NEXT_STEPS.get(killer, ""), breakdown=broke)
