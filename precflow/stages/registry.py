"""The whole program as one list: which stage instances a recipe has, in order of need."""

from __future__ import annotations

from precflow.config.schema import RunConfig
from precflow.config.vocabulary import ESCALATING
from precflow.stages import advise, compare, determinism, dump, environment, judge, localize, region, report, second_dump
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
NAMES = ("environment", "dump", *(stage.name for stage in FIRST), region.NAME, "advise", "report")


def escalates(config: RunConfig) -> bool:
    """Tell whether a second pass may follow the first: it is asked for, and no chosen ``stages`` leave it out."""
    return config.capture.detail == ESCALATING and (not config.stages or region.NAME in config.stages)


def instances(config: RunConfig, *, second_pass: bool = True) -> list[Stage]:
    """Return the recipe's stage instances, each after what it needs.

    A side with ``dump=PATH`` brings its evidence along and runs nothing.

    Args:
        config: The recipe.
        second_pass: What the region asks for, once it is known; until then that there will be one. Nothing escalates
            without it where the recipe does not.
    """
    probes = [environment.stage(side) for side in ("reference", "target") if not getattr(config, side).dump]
    dumps = [
        dump.make_given_stage(side) if getattr(config, side).dump else dump.stage(side) for side in ("reference", "target")
    ]
    escalating = escalates(config)
    both = escalating and second_pass
    passes = [*([region.STAGE] if escalating else []), *(SECOND if both else [])]
    last = [advise.stage(escalating=escalating, second_pass=both), report.stage(escalating=escalating, second_pass=both)]
    return [*probes, *dumps, *FIRST, *passes, *last]
