"""What a run has still to do, and how long that will probably take: from what the same stages took before, never a guess."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from precflow.run.steps import RunFolder, resolve
from precflow.run.store import Sealed
from precflow.stages.job import Instance, Job


class Forecast:
    """Seconds of stage instances that have yet to be made.

    Args:
        job: The recipe.
        where: Run folder and store; the last instance of the same name shows what such a stage takes.
    """

    def __init__(self, job: Job, where: RunFolder) -> None:
        self._job, self._where = job, where
        self._before: dict[str, float | None] = {}
        self._now: dict[str, float] = {}

    def learn(self, stage: Instance, seconds: float) -> None:
        """Note what a stage took in this run: where nothing else is known, the other side takes about as long."""
        self._now[stage.kind] = seconds

    def look_ahead(self, running: Instance, left: Sequence[Instance], done: Mapping[str, Sealed]) -> list[float | None]:
        """Return the seconds that the running stage and each one after it take; ``None`` where nothing shows that.

        A stage that is kept takes none. One that reads what is made now is made again too.
        """
        made, known = {running.name}, dict(done)
        ahead = [self._find_seconds(running)]
        for stage in left:
            # In a remote store a look costs a round trip, and the run itself will look soon.
            if self._where.remote is None and not made & set(stage.needs):
                step = resolve(stage, self._job, self._where, known)
                if step.sealed is not None:
                    known[stage.name] = step.sealed
                    ahead.append(0.0)
                    continue
            made.add(stage.name)
            ahead.append(self._find_seconds(stage))
        return ahead

    def _find_seconds(self, stage: Instance) -> float | None:
        if stage.name not in self._before:
            like = next(iter(self._where.store.list_sealed(stage.name)), None)
            self._before[stage.name] = None if like is None else like.seconds
        before = self._before[stage.name]
        return self._now.get(stage.kind) if before is None else before
