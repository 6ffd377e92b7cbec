"""Finds all stages, and makes of them the instances of a recipe, each after those that it needs.

Every module of this package with a constant ``STAGE`` is a stage. Nothing else lists them.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection
from functools import lru_cache

from precflow import stages
from precflow.config.schema import RunConfig, checks_environment_alone
from precflow.stages import curves
from precflow.stages.job import MARK, Instance, Stage, kind_of
from precflow.stages.second_pass import region

_SECOND_PASS = 100  # added to the place of a stage that is made again


@lru_cache(maxsize=1)
def list_stages() -> tuple[Stage, ...]:
    """Return every stage, in the order of their places.

    Raises:
        TypeError: A stage reads one that does not come before it: a fault of ours.
    """
    modules = [importlib.import_module(found.name) for found in pkgutil.walk_packages(stages.__path__, f"{stages.__name__}.")]
    found = sorted((module.STAGE for module in modules if hasattr(module, "STAGE")), key=lambda stage: stage.place)
    for stage in found:
        before = [other.name for other in found if other.place < stage.place]
        for read in stage.reads:
            if not any(kind_of(read) == kind_of(name) for name in before):
                raise TypeError(f"stage {stage.name} reads {read}, and no such stage has a lower place")
    return tuple(found)


def list_names() -> tuple[str, ...]:
    """Return the words that ``stages=[...]`` may have, in the order in which they run."""
    return tuple(dict.fromkeys(kind_of(stage.name) for stage in list_stages()))


def instances(config: RunConfig, *, second_pass: bool = True, forgone: Collection[str] = ()) -> list[Instance]:
    """Return the recipe's stage instances, each after those that it needs.

    A side with ``dump=PATH`` has its evidence already and runs nothing.

    Args:
        config: The recipe.
        second_pass: Whether the region asks for a second pass; ``True`` until that is known. Without meaning for a recipe that
            does not escalate.
        forgone: Names of instances that were to come from another machine and did not, and that a run can do without: the noise
            floor, and what a side computes as it is.
    """
    curves_alone = curves.are_all(config)
    both = second_pass and region.escalates(config)
    planned: list[Instance] = []
    replaced: set[str] = set()  # instances that the second pass has made anew
    checks_alone = checks_environment_alone(config)
    for stage, again in _list_passes(both=both):
        if checks_alone and stage.name not in config.stages:
            continue  # the report would ask for what it reads of a comparison
        for part in stage.parts(config) if stage.without_records or not curves_alone else ():
            alone = stage.instance(part, second_pass=again)
            known = [other.name for other in planned if other.name not in replaced]
            reads = (*stage.reads, *stage.reads_also(config, part))
            needs = [name for name in known if any(_is_read(name, read, alone.side) for read in reads)]
            if again:
                first = alone.name.removesuffix(MARK)
                needs.append(first)
                replaced.add(first)
            if alone.name not in forgone:
                planned.append(stage.instance(part, needs, second_pass=again))
    return planned


def _list_passes(*, both: bool) -> list[tuple[Stage, bool]]:
    """Return each stage with whether it is made again, in order."""
    placed: list[tuple[int, Stage, bool]] = []
    for stage in list_stages():
        if both or not stage.name.endswith(MARK):
            placed.append((stage.place, stage, False))
        if both and stage.repeats:
            placed.append((stage.place + _SECOND_PASS, stage, True))
    return [(stage, again) for _, stage, again in sorted(placed, key=lambda each: each[0])]


def _is_read(name: str, read: str, side: str) -> bool:
    """Tell whether an instance is meant by a name in ``reads`` of a stage of a side (``""``: of none).

    >>> _is_read("dump.target@2", "dump", ""), _is_read("dump.target", "dump", "reference")
    (True, False)
    """
    if "." in read:
        return name == read
    part = name.partition("@")[0].partition(".")[2]
    return kind_of(name) == read and (not side or part in {"", side})
