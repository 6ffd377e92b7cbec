"""The list of all stages: which stage instances a recipe has, each after those that it needs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from precflow.agent.contract import RECORDED
from precflow.config.schema import SIDES, RunConfig
from precflow.config.sections.whatifs import REFERENCE_CHOICE, SUSPECTS_ALONE
from precflow.config.vocabulary import ESCALATING
from precflow.dumps.requests import gives_choices
from precflow.stages import (
    advise,
    alone,
    as_is,
    compare,
    curves,
    determinism,
    dump,
    environment,
    introduced,
    judge,
    localize,
    noise,
    operators,
    report,
    whatif,
)
from precflow.stages.job import Stage
from precflow.stages.second_pass import region, second_dump

FIRST = (determinism.STAGE, compare.STAGE, judge.STAGE, localize.STAGE)
SECOND = (
    determinism.SECOND,
    compare.SECOND,
    judge.SECOND,
    localize.SECOND,
)
NAMES = (
    "environment",
    "dump",
    curves.NAME,
    noise.KIND,
    as_is.KIND,
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


def instances(config: RunConfig, *, second_pass: bool = True, forgone: Collection[str] = ()) -> list[Stage]:
    """Return the recipe's stage instances, each after those that it needs.

    A side with ``dump=PATH`` has its evidence already and runs nothing.

    Args:
        config: The recipe.
        second_pass: Whether the region asks for a second pass; ``True`` until that is known. Without meaning for a recipe that
            does not escalate.
        forgone: Names of instances that were to come from another machine and did not, and that a run can do without: the noise
            floor, and what a side computes as it is.
    """
    if curves.are_all(config):
        return _compare_curves_alone(config)
    probes = [environment.stage(side) for side in ("reference", "target") if not getattr(config, side).dump]
    given = {"reference": False, "target": gives_choices(config)}
    waits = {"reference": False, "target": given["target"] or config.determinism.data == RECORDED}
    dumps = [
        dump.make_given_stage(side) if getattr(config, side).dump else dump.stage(side, after_reference=waits[side])
        for side in given
    ]
    escalating = escalates(config)
    both = escalating and second_pass
    again = [second_dump.stage(side, given_choices=given[side]) for side in given]
    passes = [*([region.STAGE] if escalating else []), *([*again, *SECOND] if both else [])]
    evaluates = not config.stages or introduced.NAME in config.stages
    floors = noise.is_planned(config) and noise.NAME not in forgone
    tried = [
        whatif.stage(word, second_pass=both, evaluates=evaluates, floors=floors)
        for word in (config.whatif if whatif.is_planned(config) else ())
        # The first is no run more, but the target's own run with other choices; the second comes before `advise`.
        if word not in {REFERENCE_CHOICE, SUSPECTS_ALONE}
    ]
    plans_alone = SUSPECTS_ALONE in config.whatif and whatif.is_planned(config) and evaluates
    runs_alone = [alone.stage(second_pass=both)] if plans_alone else []
    tabulates = operators.is_planned(config)
    compares = bool(config.curves) and (not config.stages or curves.NAME in config.stages)
    logged = [curves.stage(config)] if compares else []
    more = (
        *(stage.name for stage in (*runs_alone, *tried)),
        *((operators.NAME,) if tabulates else ()),
        *(stage.name for stage in logged),
    )
    last = [
        *([introduced.evaluation_stage(second_pass=both), introduced.stage(second_pass=both)] if evaluates else []),
        *([operators.stage(second_pass=both)] if tabulates else []),
        *runs_alone,
        _use(advise.stage(escalating=escalating, second_pass=both, evaluates=evaluates), [*logged, *runs_alone]),
        *tried,
        report.stage(escalating=escalating, second_pass=both, evaluates=evaluates, more=more),
    ]
    measured = [noise.STAGE] if floors else []
    unchanged = [as_is.stage(side) for side in given if as_is.is_planned(config) and as_is.name_of(side) not in forgone]
    read_by = {
        judge.STAGE.name: [*logged, *measured, *unchanged],
        localize.STAGE.name: measured,
    }  # both judge, records or inputs
    first = [_use(stage, read_by.get(stage.kind, [])) for stage in (*FIRST, *passes)]
    return [*probes, *dumps, *logged, *measured, *unchanged, *first, *last]


def _use(stage: Stage, others: Sequence[Stage]) -> Stage:
    """Return a stage that reads the results of others too."""
    return replace(stage, needs=(*stage.needs, *(other.name for other in others)))


def _compare_curves_alone(config: RunConfig) -> list[Stage]:
    """Return the stages where a side has a log and no dump: no record can be compared."""
    running = [side for side in SIDES if not getattr(config, side).log]
    given = {side for side in running if getattr(config, side).dump}
    return [
        *(environment.stage(side) for side in running if side not in given),
        *(dump.make_given_stage(side) if side in given else dump.stage(side) for side in running),
        curves.stage(config),
        advise.curves_stage(),
        report.curves_stage(config),
    ]
