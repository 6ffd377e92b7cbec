"""Runs the reference of a run once more, in place of the target and with one thing changed, and tells what that changes.

For whoever has one machine alone: another number of threads, a batch that is cut in two, and computing in float64.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from precflow import keys
from precflow.config.command_line import parse_words
from precflow.config.composition import compose
from precflow.config.overrides import format_value
from precflow.config.schema import Side, plain
from precflow.errors import ConfigError, StoreError
from precflow.judgement.floors import MAIN_METRIC, Floor
from precflow.run.find_runs import NamedRun, find_run
from precflow.run.quietly import run_quietly
from precflow.stages.commands import key_of
from precflow.stages.compare import read_measures

THREADS, BATCH, PRECISION = WAYS = ("threads", "batch", "float64")
_THREADS = ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")  # a library's own goes before that of all
_OWN = frozenset({"sides", "stages", "whatif", "name", "runs", "output", "emulate", "golden", "capture.debug"})
_COPIED = frozenset(
    {"device", "dtype", "mixed_precision", "interpreter", "setup", "launcher", "ranks", "arguments", "script", "migration"}
)
_STAGES = "stages=[environment,dump,determinism,compare]"


def run_again(found: NamedRun, way: str) -> Mapping[str, Floor]:
    """Return identity text -> what the change did to each output of the reference that it was compared in.

    Args:
        found: The run.
        way: One of ``WAYS``.

    Raises:
        ConfigError: The run's own command does not compose any more, or its reference was not run here.
        StoreError: Nothing could be compared.
        PrecflowError: The reference cannot be run so.
    """
    words, config_dirs = parse_words(found.entry.command)
    config = compose(words, config_dirs=config_dirs, complete=False).config
    if config.reference.dump:
        raise ConfigError("the reference is a dump that exists already, and cannot be run again")
    if way == BATCH and (config.workload.script or config.reference.ranks > 1):
        why = "a script reads its own batches" if config.workload.script else "the ranks of the reference share it already"
        raise ConfigError(f"--also {BATCH}: the batch cannot be cut in two: {why}")
    kept = [word for word in words if key_of(word) not in _OWN and not key_of(word).startswith(("target.", "golden."))]
    folder = found.folder / "stability"
    own = [f"target.{key}={value}" for key, value in _copy(config.reference).items()]
    own += _change(way, config.reference)
    own += [_STAGES, "whatif=[]", f"runs={folder}", f"name={way}", f"store={folder / 'store'}"]
    log = folder / f"{way}.log"
    run_quietly([*kept, *own], config_dirs, log)
    instances = find_run(str(folder / way)).find_instances()
    if "compare" not in instances:
        raise StoreError(f"the reference with other {way} was not compared", next_step=f"see {log}")
    return {
        one.record: Floor(one.record, {MAIN_METRIC: one.metrics[MAIN_METRIC]}, {MAIN_METRIC: way})
        for one in read_measures(instances["compare"].folder)
        if MAIN_METRIC in one.metrics
    }


def _copy(reference: Side) -> dict[str, str]:
    """Return the keys of a target that make it the reference, as they are typed."""
    taken = {key: value for key, value in plain(reference).items() if key in _COPIED}
    if not reference.mixed_precision.level:
        del taken["mixed_precision"]
    return {key: format_value(value) for key, value in keys.flatten(taken) if value not in ("", [], {})}


def _change(way: str, reference: Side) -> list[str]:
    """Return the overrides of what is other."""
    variables = dict(reference.variables)
    if way == THREADS:
        variables |= choose_threads(variables)
    if way == BATCH:  # two processes with half of it each, whose records are joined
        return ["target.ranks=2", *(f"target.variables.{name}={format_value(value)}" for name, value in variables.items())]
    words = [f"target.variables.{name}={format_value(value)}" for name, value in variables.items()]
    return [*words, f"target.dtype={PRECISION}", "target.mixed_precision.level=''"] if way == PRECISION else words


def choose_threads(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that give a side another number of threads: one, or two if it has one.

    Args:
        variables: Those of the side; what it inherits counts too.
    """
    given = {name: value for name in _THREADS if (value := variables.get(name) or os.environ.get(name, ""))}
    other = "2" if next(iter(given.values()), "") == "1" else "1"
    return dict.fromkeys([*given, "OMP_NUM_THREADS"], other)
