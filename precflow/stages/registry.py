"""The whole program as one list: which stage instances a recipe has, in order of need."""

from __future__ import annotations

from precflow.config.schema import RunConfig
from precflow.stages import advise, compare, determinism, dump, environment, judge, localize, report
from precflow.stages.job import Stage

JUDGING = (
    determinism.STAGE,
    compare.STAGE,
    judge.STAGE,
    localize.STAGE,
    advise.STAGE,
    report.STAGE,
)
NAMES = ("environment", "dump", *(stage.name for stage in JUDGING))


def instances(config: RunConfig) -> list[Stage]:
    """Return the recipe's stage instances, each after what it needs.

    A side with ``dump=PATH`` brings its evidence along and runs nothing.
    """
    probes = [environment.stage(side) for side in ("reference", "target") if not getattr(config, side).dump]
    dumps = [dump.given(side) if getattr(config, side).dump else dump.stage(side) for side in ("reference", "target")]
    return [*probes, *dumps, *JUDGING]
