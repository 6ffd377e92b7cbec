"""Starting an agent in its own interpreter, following it, and making sure that nothing of it is left."""

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from precflow.agent import intake, redaction
from precflow.agent.contract import FACTS_FILE, HEADER_FILE, LOG_FILE, REHEARSAL_FILE
from precflow.config.schema import Side
from precflow.errors import SideError, StoreError
from precflow.sides import pack
from precflow.sides.interpreter import find_interpreter

REQUEST_FILE = "request.json"
COMMAND = "{command}"  # where a launcher wants the command, if not at its end
LOG_LINES = 15  # shown of a side that died without a word
_FORKS = sys.platform == "linux"  # elsewhere libraries below torch do not stand it
_BLOCK = 1 << 20  # bytes of a log that are looked through at once
_GRACE = 3.0  # seconds between asking a process to end and ending it
_TICK = 0.2  # seconds between two looks at a silent process
_NEXT_STEPS = {
    "SIGKILL": "was there enough memory? look at dmesg, or narrow the workload",
    **dict.fromkeys(
        ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"),
        "a library below Python crashed: run the workload alone in this interpreter to see it again",
    ),
}
_STACK = ("Stack (most recent call first)", "Current thread 0x")  # of one that was stopped, or crashed
_STACKS = ("Fatal Python error", *_STACK)  # how Python's fault handler begins
_MADE = {"environment": FACTS_FILE, "dump": HEADER_FILE, "rehearse": REHEARSAL_FILE}


@dataclass
class _Outcome:
    """What an agent said before it ended."""

    error: Mapping[str, str] = field(default_factory=dict)
    timed_out: bool = False
    code: int | None = None  # of a request that is done while the process goes on


@dataclass
class _Agent:
    """A running process, the lines that it prints, and whether it has done its request and waits for another one."""

    process: subprocess.Popen[bytes]
    lines: queue.SimpleQueue[bytes]
    waits: bool = False

    def ask(self, request: Path, *, more: bool) -> bool:
        """Hand a request to a process that waits, and whether more may follow; tell whether it is still there."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps([str(request), more]).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            return False
        self.waits = False
        return self.process.poll() is None


class Agents:
    """Agents that have imported torch and wait for another request of their side, until this is closed.

    Importing torch takes seconds, telling the facts of a side a tenth of one. Each request is still done in a process of its
    own, which begins as any does that has just imported torch. Two sides never share one.
    """

    def __init__(self) -> None:
        self._waiting: dict[tuple[object, ...], _Agent] = {}

    def close(self) -> None:
        """End every agent that waits."""
        while self._waiting:
            _end(self._waiting.popitem()[1].process)

    @contextlib.contextmanager
    def ask(  # noqa: PLR0913  each is a fact of its own
        self, request: Path, name: str, side: Side, environment: Mapping[str, str], log: IO[bytes], *, stays: bool
    ) -> Iterator[_Agent]:
        """Give a request to the agent of this side that waits, else to one that is started.

        Its whole group of processes ends on the way out, whatever the way is; but an agent that ``stays`` and has done the
        request waits for the next one.
        """
        words = build_command(side, "--stay", str(os.getpid()))
        key = (name, tuple(words), tuple(sorted(environment.items())))
        agent = self._waiting.pop(key, None)
        if agent is not None and not agent.ask(request, more=stays):  # it ended while nobody looked
            _end(agent.process)
            agent = None
        if agent is None and stays and _FORKS and not side.launcher:  # a launcher may start several, or somewhere else
            agent = _start(words, environment, log, stdin=subprocess.PIPE)
            agent.ask(request, more=True)
        agent = agent or _start(build_command(side, str(request)), environment, log)
        try:
            yield agent
            if stays and agent.waits:
                self._waiting[key] = agent
        finally:
            if self._waiting.get(key) is not agent:
                _end(agent.process)


def run_agent(  # noqa: PLR0913  each is a fact of its own, and all but one go by name
    request: Mapping[str, Any],
    *,
    side: Side,
    folder: Path,
    variables: Mapping[str, str],
    timeout: float,
    on_progress: Callable[[str], None] | None = None,
    agents: Agents | None = None,
) -> None:
    """Run one request in the side's interpreter and return when its result is in ``folder``.

    Args:
        request: See ``requests.py``; its ``output`` is ``folder``.
        side: Interpreter, launcher and set-up files.
        folder: Exists. Gets ``request.json`` and ``agent.log`` besides what the agent writes.
        variables: Win over everything that the request implies.
        timeout: Seconds until the agent is stopped; 0 is no limit.
        on_progress: Called with a short text while the agent works.
        agents: Where an agent that told the facts of a side waits for the request of its dump.

    Raises:
        SideError: The agent refused, crashed, hung, or left no result; carries its last lines.
        StoreError: The folder cannot be written to.
    """
    name = str(request["side"])
    workload, secrets = redaction.take_out(request.get("workload"), "workload")
    path = _write_request({**request, "workload": workload} if "workload" in request else request, side, folder)
    environment = {**os.environ, **imply_variables(request), **{key: str(value) for key, value in variables.items()}}
    environment |= {redaction.VARIABLE: json.dumps(secrets)} if secrets else {}
    stays = agents is not None and request["action"] == "environment"
    try:
        with _open_log(folder) as log, (agents or Agents()).ask(path, name, side, environment, log, stays=stays) as agent:
            deadline = time.monotonic() + timeout if timeout else float("inf")
            heard = _follow(agent, deadline, on_progress or (lambda _: None), log)
    finally:
        _redact_log(folder / LOG_FILE)
    if heard.timed_out:
        message = f"the {name} side did not finish within {timeout:g} s and was stopped"
        raise SideError(message, log=read_last_lines(folder), next_step="allow it more time: capture.timeout=2h")
    _check_end(agent.process.returncode if heard.code is None else heard.code, heard, name, folder)
    if not (folder / _MADE[str(request["action"])]).is_file():
        raise SideError(
            f"the agent of the {name} side ended without a result",
            log=read_last_lines(folder),
            next_step="does the workload end its process, as os._exit does? look into the log",
        )


def imply_variables(request: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that must stand before Python or a driver starts, as the request's determinism wants them."""
    determinism = request.get("determinism", {})
    seed, algorithms = determinism.get("seed", 0), determinism.get("algorithms", "warn")
    wanted = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    if isinstance(seed, int):
        wanted["PYTHONHASHSEED"] = str(seed % 2**32)
    if algorithms != "native":
        wanted |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "HCCL_DETERMINISTIC": "true"}
    return wanted


def build_command(side: Side, *request: str) -> list[str]:
    """Return the words that start an agent: set-up files, then launcher, then interpreter, agent and its own words.

    Raises:
        SideError: The interpreter or a set-up file is missing.
    """
    elsewhere = bool(side.setup or side.launcher)  # a set-up file may change PATH, a launcher the machine
    python = side.interpreter if elsewhere and side.interpreter else find_interpreter(side)
    words = [python, str(pack.find_or_build()), *request]
    if COMMAND in side.launcher:
        place = side.launcher.index(COMMAND)
        words = [*side.launcher[:place], *words, *side.launcher[place + 1 :]]
    else:
        words = [*side.launcher, *words]
    return _source_setup(side.setup, words) if side.setup else words


def read_last_lines(folder: Path, count: int = LOG_LINES) -> list[str]:
    """Return the last lines of the agent's log, of a crash or a hang the innermost ones; none where there is no log."""
    try:
        text = (folder / LOG_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    lines = [line for line in text.splitlines() if line.strip()]
    stacks = next((number for number, line in enumerate(lines) if line.startswith(_STACKS)), None)
    if stacks is None:
        return lines[-count:]
    first = next((number for number in range(stacks, len(lines)) if lines[number].startswith(_STACK)), stacks)
    return [*lines[:stacks][-count // 3 :], *lines[stacks : min(first, stacks + 1)], *lines[first : first + count // 2]]


def _source_setup(files: Sequence[str], words: Sequence[str]) -> list[str]:
    found = {file: Path(file).expanduser().absolute() for file in files}  # `.` looks for a bare name in PATH first
    missing = [file for file, path in found.items() if not path.is_file()]
    if missing:
        raise SideError(f"set-up file {', '.join(missing)} does not exist", next_step="correct `setup` in the site file")
    sourced = "".join(f". {shlex.quote(str(path))} >&2 </dev/null || exit 2; " for path in found.values())
    return ["bash", "-c", f"{sourced}exec {shlex.join(words)}"]


def _write_request(request: Mapping[str, Any], side: Side, folder: Path) -> Path:
    """Write the request; the agent of this very process dies with it, one behind a launcher has another parent."""
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
        return (folder / LOG_FILE).open("ab", buffering=0)  # an agent that stayed opens it too
    except OSError as error:
        raise StoreError(f"cannot write {folder / LOG_FILE}: {error.strerror}") from error


def _redact_log(log: Path) -> None:
    """Hide the secrets in a log that nobody writes any more: a workload prints what it likes."""
    clean, changed = log.with_name(f"{log.name}.{os.getpid()}.clean"), False
    with contextlib.suppress(OSError):
        with log.open("rb") as source, clean.open("wb") as target:
            while lines := source.readlines(_BLOCK):
                said = b"".join(lines).decode("utf-8", "surrogateescape")
                shown = redaction.redact_text(said)
                changed |= shown != said
                target.write(shown.encode("utf-8", "surrogateescape"))
        if changed:
            clean.replace(log)
    with contextlib.suppress(OSError):
        clean.unlink(missing_ok=True)


def _start(words: Sequence[str], environment: Mapping[str, str], log: IO[bytes], stdin: int = subprocess.DEVNULL) -> _Agent:
    """Start a process in a group of its own; whoever does so ends that."""
    try:
        process = subprocess.Popen(
            words, env=environment, stdin=stdin, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
    except OSError as error:
        raise SideError(
            f"cannot start {words[0]}: {error.strerror}", next_step="correct interpreter or launcher of this side"
        ) from error
    assert process.stdout is not None
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(process.stdout, lines), daemon=True).start()
    return _Agent(process, lines)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        _signal_group(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    _signal_group(process, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left; macOS says it with the second
        os.killpg(process.pid, number)


def _follow(agent: _Agent, deadline: float, say: Callable[[str], None], log: IO[bytes]) -> _Outcome:
    """Pass on what an agent says until it has done its request, or has ended, or its time has."""
    heard, process = _Outcome(), agent.process
    while True:
        if time.monotonic() > deadline:
            heard.timed_out = True
            return heard
        try:
            line = agent.lines.get(timeout=min(_TICK, max(0.0, deadline - time.monotonic())))
        except queue.Empty:
            if process.poll() is not None:  # ended, and a process that it left behind keeps the pipe open
                return heard
            continue
        if not line:
            break
        _hear(line, heard, say, log)
        if heard.code is not None:
            agent.waits = True
            return heard
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(None if deadline == float("inf") else max(0.0, deadline - time.monotonic()))
    heard.timed_out = process.poll() is None
    return heard


def _read_lines(stream: IO[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(b"")


def _hear(line: bytes, heard: _Outcome, say: Callable[[str], None], log: IO[bytes]) -> None:
    """Take one line: an event, or something that a launcher printed, which belongs into the log."""
    try:
        event = intake.parse_json(line)
        kind = event["event"]
    except (ValueError, KeyError, TypeError):
        log.write(line)
        return
    if kind == "error":
        heard.error = event
    elif kind == "done":
        heard.code = int(event["code"])
    else:
        say(str(event.get("text", "")))


def _check_end(code: int, heard: _Outcome, name: str, folder: Path) -> None:
    if heard.error:
        raise SideError(f"{name}: {heard.error['message']}", next_step=heard.error.get("next_step", ""))
    if code == 0:
        return
    by = _signal_name(code)
    why = f"was killed by {by}" if by else f"ended with exit code {code}"
    raise SideError(f"the agent of the {name} side {why}", log=read_last_lines(folder), next_step=_NEXT_STEPS.get(by, ""))


def _signal_name(code: int) -> str:
    """Return the signal behind an exit code: negative from the process itself, 128 and more through a shell."""
    number = -code if code < 0 else code - 128
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""
