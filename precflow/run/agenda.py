"""What is left to do in a run; the second pass of escalating capture is decided, or put off, on the way."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from precflow.run import steps
from precflow.run.store import Sealed
from precflow.stages import region
from precflow.stages.job import Job, Stage


class Agenda:
    """The stage instances of a run, in order of need.

    Attributes:
        put_off: Instances of the second pass that have to be made where another side runs.
    """

    def __init__(self, job: Job, where: steps.Place) -> None:
        self._config = job.config
        self._met = steps.met(job, where)
        self._left = deque(steps.wanted(job.config, met=self._met))
        self.put_off: list[Stage] = []

    def __iter__(self) -> Iterator[Stage]:
        """Yield what is left, as long as there is anything."""
        while self._left:
            yield self._left.popleft()

    def learn(self, stage: Stage, sealed: Sealed) -> None:
        """Take a finished instance into account: a region with nothing to look into ends the capture."""
        if stage.name == region.NAME and not region.read_scope(sealed.folder).needed:
            self._end()

    def postpone(self, stage: Stage) -> bool:
        """Put an instance off that cannot be made here; return whether the run has an end without it.

        The second pass of a side that runs here is made all the same; the verdict is that of the first pass.
        """
        if not stage.told_by:
            return False
        self.put_off.append(stage)
        self._end([other for other in self._left if other.told_by])
        return True

    def _end(self, still: Sequence[Stage] = ()) -> None:
        """Leave the second pass out, but for these instances of it."""
        alone = steps.wanted(self._config, second_pass=False, met=self._met)
        names = [stage.name for stage in alone]
        self._left = deque([*still, *alone[names.index(region.NAME) + 1 :]])
