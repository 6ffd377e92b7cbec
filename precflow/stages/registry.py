"""The list of all stages: which stage instances a recipe has, each after those that it needs."""

from __future__ import annotations

from precflow.config.schema import RunConfig
from precflow.config.vocabulary import ESCALATING
from precflow.stages import (
    advise,
    compare,
    determinism,
    dump,
    environment,
    introduced,
    judge,
    localize,
    region,
    report,
    second_dump,
)
from precflow.stages.job import Stage

FIRST = (determinism.STAGE, compare.STAGE, judge.STAGE, localize.STAGE)
SECOND = (
    second_dump.stage("reference"),
    second_dump.stage("target"),
    determinism.SECOND,
    compare.SECOND,
    judge.SECOND,
    localize.SECOND,
)
NAMES = ("environment", "dump", *(stage.name for stage in FIRST), region.NAME, introduced.NAME, "advise", "report")


def escalates(config: RunConfig) -> bool:
    """Return whether a second pass may follow the first: the recipe escalates, and its ``stages``, if any, have ``region``."""
    return config.capture.detail == ESCALATING and (not config.stages or region.NAME in config.stages)


def instances(config: RunConfig, *, second_pass: bool = True) -> list[Stage]:
    """Return the recipe's stage instances, each after those that it needs.

    A side with ``dump=PATH`` has its evidence already and runs nothing.

    Args:
        config: The recipe.
        second_pass: Whether the region asks for a second pass; ``True`` until that is known. Without meaning for a recipe that
            does not escalate.
    """
    probes = [environment.stage(side) for side in ("reference", "target") if not getattr(config, side).dump]
    dumps = [
        dump.make_given_stage(side) if getattr(config, side).dump else dump.stage(side) for side in ("reference", "target")
    ]
    escalating = escalates(config)
    both = escalating and second_pass
    passes = [*([region.STAGE] if escalating else []), *(SECOND if both else [])]
    evaluates = not config.stages or introduced.NAME in config.stages
    last = [
        *([introduced.stage(second_pass=both)] if evaluates else []),
        advise.stage(escalating=escalating, second_pass=both, evaluates=evaluates),
        report.stage(escalating=escalating, second_pass=both, evaluates=evaluates),
    ]
    return [*probes, *dumps, *FIRST, *passes, *last]
