"""Makes two stages at once of which neither reads the other's result, where each computes on a device of its own.

They are the environments of both sides, each of which imports torch, and the longest stages of most runs: the dump of the
target, and the noise floor of the reference. The second is begun in a thread as soon as the first has to be made; screen,
history and store see both in their order, as if one had followed the other. If the first fails or is interrupted, the agent of
the second is ended: it would not have begun.

The long ones are not made at once by sides on the same kind of device, which would share its memory, nor for workloads that may
share more than that: a script's logs, the ranks' ports. And the host needs memory for the model in both agents.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from precflow.agent.contract import FACTS_FILE
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.dumps.header import ContentEntry
from precflow.run.steps import Step
from precflow.run.store import Sealed
from precflow.sides.launch import Agents
from precflow.stages import noise
from precflow.stages.artifacts import read_plain
from precflow.stages.dump import open_dump
from precflow.stages.job import Job

_FACTS = ("environment.reference", "environment.target")
_LONG = ("dump.target", noise.NAME)
_LEAST_ROOM = 2 << 30  # bytes of host memory that two agents take with the smallest model
_COPIES = 8  # of the weights: each agent builds, casts, moves and disturbs them, with room to spare
_MEMORY = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


@dataclass
class Beside:
    """The stage that is made in a thread, if there is one. Leaving the context with an exception ends its agent.

    Attributes:
        agents: Agents of the run.
        began: When it was begun, by :func:`time.monotonic`.
    """

    agents: Agents
    began: float = 0.0
    _step: Step | None = None
    _result: Future[Sealed] | None = None
    _shown: bool = False
    _over: bool = False
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="beside"))

    def begin(self, step: Step, job: Job, make: Callable[[Job], Sealed]) -> None:
        """Begin to make an instance.

        Args:
            step: The instance.
            job: The recipe.
            make: Makes it. The job that it gets shows nothing until :meth:`take` is called.
        """

        def say(text: str) -> None:
            """Show the text if nothing else is shown."""
            self._check()
            if self._shown:
                job.say(text)

        def advance(part: int, whole: int, unit: str) -> None:
            """Show the bar if nothing else is shown."""
            self._check()
            if self._shown:
                job.advance(part, whole, unit)

        self._step, self.began, self._shown = step, time.monotonic(), False
        self._result = self._pool.submit(make, replace(job, say=say, advance=advance))

    def find(self, name: str) -> Step | None:
        """Return the step of an instance that has been begun."""
        return self._step if self._step is not None and self._step.stage.name == name else None

    def take(self) -> Sealed:
        """Wait for the instance and return it.

        Raises:
            PrecflowError: It could not be made.
        """
        assert self._result is not None
        self._shown = True
        return self._result.result()

    def _check(self) -> None:
        """Stop work in this process that nobody waits for any more, such as a comparison of large dumps."""
        if self._over:
            raise CancelledError

    def __enter__(self) -> Beside:  # noqa: PYI034  typing.Self is of Python 3.11
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self._over = True
            self.agents.end_busy()
        self._pool.shutdown()


def may_follow(first: Step, second: Step, job: Job, done: Mapping[str, Sealed]) -> bool:
    """Tell whether the second instance may be made while the first one is.

    Args:
        first: About to be made.
        second: The next one.
        job: The recipe.
        done: Finished instances by name.
    """
    config = job.config
    pair = (first.stage.name, second.stage.name)
    if pair not in {_FACTS, _LONG} or {first.state, second.state} != {"run"} or not second.key:
        return False
    if config.target.launcher or config.reference.launcher:  # it may have what one of them needs, and not what both do
        return False
    return pair == _FACTS or _has_room(second, job, done)


def _has_room(second: Step, job: Job, done: Mapping[str, Sealed]) -> bool:
    """Tell whether both sides can run the workload at once."""
    config = job.config
    if config.target.dump or config.workload.script or max(config.target.ranks, config.reference.ranks) > 1:
        return False
    if any(done[name].upload for name in second.stage.needs):  # it is to be downloaded first
        return False
    kinds = {_find_kind(done[f"environment.{side}"].folder) for side in ("reference", "target")}
    if len(kinds) == 1:
        return False
    recorded = open_dump(done["dump.reference"].folder).header
    return free_memory() >= _LEAST_ROOM + _COPIES * _count_bytes(recorded.weights.entries)


def free_memory(memory: Path = _MEMORY, group: Path = _GROUP) -> int:
    """Return the bytes of host memory that may still be used, 0 where the system does not say.

    A container may have less than its machine: the limit of its control group counts too.
    """
    try:
        lines = dict(line.split(":", 1) for line in memory.read_text(encoding="utf-8").splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        return 0
    try:
        limit, used = ((group / name).read_text(encoding="utf-8").strip() for name in ("memory.max", "memory.current"))
        return free if limit == "max" else min(free, int(limit) - int(used))
    except (OSError, ValueError):  # no control group, or an old kind
        return free


def _find_kind(environment: Path) -> str:
    return str(read_plain(environment / FACTS_FILE)["device"]["kind"])


def _count_bytes(entries: Mapping[str, ContentEntry]) -> int:
    return sum(math.prod(entry.shape) * NUMPY_DTYPES[entry.dtype].itemsize for entry in entries.values())
