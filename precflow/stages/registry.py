"""The list of all stages: which stage instances a recipe has, each after those that it needs."""

from __future__ import annotations

from dataclasses import replace

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
    noise,
    operators,
    region,
    report,
    second_dump,
    whatif,
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
NAMES = (
    "environment",
    "dump",
    noise.KIND,
    *(stage.name for stage in FIRST),
    region.NAME,
    introduced.NAME,
    operators.NAME,
    "advise",
    whatif.KIND,
    "report",
)


def escalates(config: RunConfig) -> bool:
    """Return whether a second pass may follow the first: the recipe escalates, and its ``stages``, if any, have ``region``."""
    return config.capture.detail == ESCALATING and (not config.stages or region.NAME in config.stages)


def instances(config: RunConfig, *, second_pass: bool = True, floors: bool = True) -> list[Stage]:
    """Return the recipe's stage instances, each after those that it needs.

    A side with ``dump=PATH`` has its evidence already and runs nothing.

    Args:
        config: The recipe.
        second_pass: Whether the region asks for a second pass; ``True`` until that is known. Without meaning for a recipe that
            does not escalate.
        floors: The noise floor is measured if the recipe says so; ``False`` if it was to come from another machine and did not.
    """
    probes = [environment.stage(side) for side in ("reference", "target") if not getattr(config, side).dump]
    dumps = [
        dump.make_given_stage(side) if getattr(config, side).dump else dump.stage(side) for side in ("reference", "target")
    ]
    escalating = escalates(config)
    both = escalating and second_pass
    passes = [*([region.STAGE] if escalating else []), *(SECOND if both else [])]
    evaluates = not config.stages or introduced.NAME in config.stages
    floors = floors and noise.is_planned(config)
    tried = [
        whatif.stage(word, second_pass=both, evaluates=evaluates, floors=floors)
        for word in (config.whatif if whatif.is_planned(config) else ())
    ]
    tabulates = operators.is_planned(config)
    more = (*(stage.name for stage in tried), *((operators.NAME,) if tabulates else ()))
    last = [
        *([introduced.evaluation_stage(second_pass=both), introduced.stage(second_pass=both)] if evaluates else []),
        *([operators.stage(second_pass=both)] if tabulates else []),
        advise.stage(escalating=escalating, second_pass=both, evaluates=evaluates),
        *tried,
        report.stage(escalating=escalating, second_pass=both, evaluates=evaluates, more=more),
    ]
    if not floors:
        return [*probes, *dumps, *FIRST, *passes, *last]
    return [*probes, *dumps, noise.STAGE, *map(_use_floors, [*FIRST, *passes]), *last]


def _use_floors(stage: Stage) -> Stage:
    """Let a stage that judges, records or inputs, know the floors."""
    judges = stage.kind in {judge.STAGE.name, localize.STAGE.name}
    return replace(stage, needs=(*stage.needs, noise.NAME)) if judges else stage
