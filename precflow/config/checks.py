"""What must hold in a configuration beyond keys and types.

* :func:`find_problems`: values that contradict each other or can never have an effect, on whatever machine.
* :func:`find_missing_workload`, :func:`find_missing_files`: what a run needs and this machine does not have.

Every check yields ``(path, message)`` for each problem, and all checks run: a user sees everything that is wrong at once.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from precflow.agent import redaction
from precflow.agent.contract import (
    BACKWARD,
    CHECKED,
    DYNAMIC,
    GRADIENT,
    HEADER_FILE,
    MIXED_OPERATOR_TYPES,
    MODULE,
    OPERATOR,
    OPTIMIZER,
    RECORDED,
    WHEN_NEEDED,
    is_scale,
    script_module,
)
from precflow.agent.sampling import parse_slices
from precflow.config import signatures
from precflow.config.documents import DottedPath, PathProblems, walk_scalars
from precflow.config.schema import (
    SIDES,
    Capture,
    Conversion,
    MixedPrecision,
    RunConfig,
    Side,
    checks_environment_alone,
    plain,
)
from precflow.config.sections import (
    curves_section,
    pairing_section,
    reduce_section,
    task_metrics_section,
    tolerance_section,
    whatifs,
)
from precflow.config.sections.store_address import find_problem, find_slip, is_address
from precflow.config.suggestions import did_you_mean
from precflow.config.trust import SHIPPED, TARGET, is_code_folder
from precflow.config.units import UNSEEDED
from precflow.config.vocabulary import COLUMNS, ESCALATING, SEEDED, names_file
from precflow.version import __version__

_MOST_RANKS = 1 << 16

# A phase is recorded by some levels only: gradients of weights, for instance, belong to modules and to no single call.
_LEVELS_OF_PHASE = {BACKWARD: (MODULE, OPERATOR), GRADIENT: (MODULE,), OPTIMIZER: (MODULE,)}
_CONDITIONS = ("match", "class_", "operator", "level", "phase", "step", "rank")

_NOT_EMPTY = (
    ("reference", "device"),
    ("target", "device"),
    ("capture", "level"),
    ("capture", "phase"),
    ("capture", "scope"),
    ("capture", "step"),
    ("report", "columns"),
    ("report", "formats"),
)
_OF_SCRIPT = ("arguments", "compile", "evaluation", "stop_early", "files")
_PARTS = ("model", "inputs", "loss", "optimizer")
_OF_SIDE = ("arguments", "script", "migration")  # of a script
_NOT_OF_SCRIPTS: Mapping[DottedPath, str] = {
    **{("workload", part): "and workload.script exclude each other: the script has its own" for part in _PARTS},
    ("workload", "learning_rate"): "is of a workload of functions: give the script an argument, as workload.arguments.lr=0",
    ("whatif",): "changes a run of a workload of functions; a script is run as it is",
}
_GRAPH = f"{SHIPPED}.onnx_graph.load"
_NAME = re.compile(r"[^\W_][\w.-]{0,99}")
_FILE, _FOLDER, _PROGRAM, _ANY = "file", "folder", "program", "any"


def find_problems(config: RunConfig, data: Mapping[str, Any]) -> PathProblems:
    """Yield everything that makes a configuration unusable.

    Args:
        config: The configuration.
        data: The same as plain data, which shows what was left out.
    """
    for path, value in walk_scalars(data):
        if isinstance(value, str) and redaction.REDACTED[:-1] in value:
            yield path, "stands for a secret, which is never written down: give the secret itself"
    for path, store in ((("store",), config.store), (("site", "store"), config.site.store)):
        problem = find_problem(store) if is_address(store) else find_slip(store)
        if problem:
            yield path, problem
    if config.name and not _NAME.fullmatch(config.name):
        yield ("name",), "is no name of a run: letters, digits, `.`, `_` and `-`, at most 100, the first a letter or a digit"
    for section, key in _NOT_EMPTY:
        if not getattr(getattr(config, section), key):
            yield (section, key), "is an empty list: leave it out for the default"
    twice = sorted({part for part in config.workload.parts if config.workload.parts.count(part) > 1})
    if twice:
        yield ("workload", "parts"), f"has {', '.join(twice)} more than once"
    yield from tolerance_section.find_problems(config, data)
    yield from _check_versions(config)
    yield from _check_user_metrics(config)
    yield from _check_executor(config)
    yield from _check_capture(config)
    yield from _check_learning_rate(config)
    yield from _check_mixed_precision(config)
    yield from _check_conversion(config)
    yield from _check_whatif(config)
    yield from _check_golden(config)
    yield from _check_site(config)
    yield from _check_script(config)
    yield from _check_batches(config)
    yield from pairing_section.find_problems(config)
    yield from curves_section.find_problems(config)
    yield from reduce_section.find_problems(config)
    yield from task_metrics_section.find_problems(config)
    yield from signatures.check_fault_rules(config.emulate.rules)
    yield from signatures.check_shipped(config)
    if config.emulate.name and "emulated" not in config.target.device:
        yield ("target", "device"), f"emulate={config.emulate.name} would do nothing without target.device=emulated"


def find_missing_workload(config: RunConfig) -> PathProblems:
    """Yield what is missing before a side can run: something to run, or a dump of its own; of a scan alone its tree."""
    if config.stages != ("scan",):
        yield from _find_missing_sides(config)
    elif not config.scan.tree:
        yield ("scan", "tree"), "is missing, and the recipe asks for it: scan.tree=FOLDER"


def _find_missing_sides(config: RunConfig) -> PathProblems:
    dumps = [os.path.abspath(os.path.expanduser(side.dump)) for side in (config.reference, config.target) if side.dump]  # noqa: PTH100, PTH111  Path refuses some texts
    if len(dumps) != len(set(dumps)):
        yield ("target", "dump"), "is the dump of the reference too: a dump always agrees with itself"
    yield from _find_missing_graphs(config)
    for side in ("reference", "target"):
        settings = getattr(config, side)
        if settings.dump or settings.log or side not in config.sides or checks_environment_alone(config):
            continue
        if config.workload.script:
            continue
        asked = [word for word in config.about.asks.values() if not _is_given(config, word)]
        if not config.workload.model and asked:
            # A recipe that is laid over others asks for one below it; what that one asks for says more.
            for word in [word for word in asked if not word.startswith("recipe=")] or asked:
                path = tuple(word.partition("=")[0].split("."))
                yield path, f"is missing, and the recipe asks for it: {'+' * (path == ('recipe',))}{word}"
            return
        if not config.workload.model:
            given = "log" if config.curves else "dump"
            ways = f"{side}.{given}=PATH of an existing {given}, workload.model._target_, or workload.script=train.py"
            yield (side, "dump"), f"{side} has nothing to run: {ways}"
        elif TARGET not in config.workload.model or TARGET not in config.workload.inputs:
            part = "model" if TARGET not in config.workload.model else "inputs"
            yield ("workload", part, TARGET), "is missing: the dotted name of the function that makes it"
            return
        elif "optimizer" in config.capture.phase and not config.workload.optimizer:
            yield ("capture", "phase"), "has `optimizer`, which needs one: workload.optimizer._target_=torch.optim.AdamW"
            return


def _find_missing_graphs(config: RunConfig) -> PathProblems:
    if config.workload.model.get(TARGET) != _GRAPH:
        return
    if not config.workload.model.get("file"):
        yield ("workload", "model", "file"), "is missing: the graph that is the reference: workload.model.file=old.onnx"
    for name, side in (("reference", config.reference), ("target", config.target)):
        if side.conversion.runtime and not side.conversion.file and not side.dump and name in config.sides:
            file = f"{name}.conversion.file=new.onnx"
            yield (name, "conversion", "file"), f"is missing: the model is a graph, and is compared with another one: {file}"


def _is_given(config: RunConfig, word: str) -> bool:
    """Tell whether a key has a value of any kind; ``word`` is ``KEY=EXAMPLE``."""
    value: Any = config
    for name in word.partition("=")[0].split("."):
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return bool(value)


def find_missing_files(config: RunConfig) -> PathProblems:
    """Yield every path that must be here before any work and is not what it should be.

    Only what this machine is going to use: a side that runs elsewhere, or whose dump is given, needs nothing of its own here,
    and the weights of one behind a launcher may be on another machine.
    """
    here = [(name, side) for name, side in (("reference", config.reference), ("target", config.target)) if name in config.sides]
    for name, side in here:
        for number, log in enumerate(side.log):
            yield from _check_path((name, "log", str(number)), log, _ANY, "the log that a run has written")
        if side.dump:
            yield from _check_path((name, "dump"), side.dump, _ANY, f"the folder that holds {HEADER_FILE}")
        elif not side.log:
            yield from _check_side(name, side)
    if any(not side.dump and not side.log for _, side in here) and not any(side.launcher for _, side in here):
        yield from _check_workload(config)
    if config.scan.tree:
        yield from _check_path(("scan", "tree"), config.scan.tree, _ANY, "the folder of a source tree")
    if config.operators.against:
        yield from _check_path(
            ("operators", "against"), config.operators.against, _FILE, "a copy of a run's public/operators.json"
        )
    for path, text in ((("store",), config.store), (("site", "store"), config.site.store), (("runs",), config.runs)):
        folder = Path(text or ".").expanduser()
        nearest = next((parent for parent in (folder, *folder.parents) if os.path.lexists(parent)), folder)
        if "://" not in text and nearest.is_file():
            yield path, f"{nearest} is a file; expected a folder, or a place where one can be made"


def _check_versions(config: RunConfig) -> PathProblems:
    require = config.environment.require
    for path, text in (
        (("about", "needs"), config.about.needs),
        (("environment", "require", "torch"), require.torch),
        (("environment", "require", "python"), require.python),
        *((("environment", "require", "versions", name), wanted) for name, wanted in require.versions.items()),
    ):
        try:
            wanted = SpecifierSet(text)
        except InvalidSpecifier:
            yield path, f'`{text}` is not a range of versions such as ">=2.1" or ">=0.1,<1"'
            continue
        if path[0] == "about" and not wanted.contains(__version__, prereleases=True):
            yield path, f"the recipe needs precflow {text}, this is {__version__}"


def _check_user_metrics(config: RunConfig) -> PathProblems:
    for name, declared in config.metrics.items():
        if name in COLUMNS:
            yield ("metrics", name), "is a metric of precflow's: give yours another name"
        if TARGET not in declared:
            yield ("metrics", name), f"has no `{TARGET}`: the dotted name of a class, such as my_package.my_metrics.SignFlips"
    for path, limits in tolerance_section.list_limit_groups(config):
        for name in limits.metrics.keys() - config.metrics.keys():
            yield (*path, "metrics", name), f"is no metric of this recipe's `metrics`.{did_you_mean(name, config.metrics)}"
    known = (*COLUMNS, *config.metrics)
    for number, name in enumerate(config.report.columns):
        if name not in known:
            yield ("report", "columns", str(number)), f"`{name}` is not one of {', '.join(known)}.{did_you_mean(name, known)}"


def _check_executor(config: RunConfig) -> PathProblems:
    executor = config.executor
    if executor.name == "local" and executor.address:
        yield ("executor", "address"), "is for executor=dask"
    for key in ("workers", "threads"):
        if getattr(executor, key) < 0:
            yield ("executor", key), "is a number; 0 is one a processor"


def _check_capture(config: RunConfig) -> PathProblems:
    capture = config.capture
    yield from _check_capture_rules(capture)
    yield from _check_ranks(config)
    # Nothing of a phase that none of the chosen levels records would be compared, and nobody would notice.
    for phase, levels in _LEVELS_OF_PHASE.items():
        if phase in capture.phase and capture.level and not set(levels) & set(capture.level):
            recorded = (
                f"{phase} is recorded at level {' or '.join(levels)}, and capture.level has {', '.join(capture.level)} only"
            )
            yield ("capture", "phase"), f"{recorded}: capture.level=[{','.join((levels[0], *capture.level))}]"
    if capture.keep_last < 0:
        yield ("capture", "keep_last"), "is a number of steps: 0 keeps all"
    given = next((side for side in ("reference", "target") if getattr(config, side).dump), "")
    if capture.detail == ESCALATING and given:
        yield ("capture", "detail"), f"escalating runs both sides a second time, and {given}.dump is given: use capture=tensors"
    if capture.detail == ESCALATING and capture.keep_last:
        yield ("capture", "keep_last"), "and escalating exclude each other: the second pass looks into steps of the first"


def _check_learning_rate(config: RunConfig) -> PathProblems:
    rate, path = config.workload.learning_rate, ("workload", "learning_rate")
    if rate is None:
        return
    if not 0 <= rate < math.inf:
        yield path, f"is {rate:g}; expected a number from 0 up: 0 leaves the weights as they are"
    if config.workload.model and not config.workload.optimizer:
        yield path, "belongs to the optimizer, and there is none: workload.optimizer._target_=torch.optim.AdamW"


def _check_mixed_precision(config: RunConfig) -> PathProblems:
    for name, side in (("reference", config.reference), ("target", config.target)):
        path = (name, "mixed_precision")
        if config.workload.script and side.mixed_precision != MixedPrecision():
            yield (
                path,
                "is of a workload of functions: a script sets its own, so give it an argument, as workload.arguments.bf16=true",
            )
        else:
            yield from _check_mixed_side(config, side, path)
    scales = [side.mixed_precision.loss_scale or "1" for side in (config.reference, config.target)]
    if scales[0] != scales[1] and {BACKWARD, GRADIENT} & set(config.capture.phase):
        apart = f"is {scales[1]}, and {scales[0]} on the reference: gradients before the optimizer are not comparable then"
        yield ("target", "mixed_precision", "loss_scale"), f"{apart}. Give both the same, or capture.phase=[forward,optimizer]"


def _check_conversion(config: RunConfig) -> PathProblems:
    """Yield what a side in another runtime cannot do, before anything runs."""
    for name, side in (("reference", config.reference), ("target", config.target)):
        if side.conversion.runtime:
            yield from _check_converted_side(config, name, side)
        elif side.conversion != Conversion():
            yield (name, "conversion"), f"does nothing without a runtime: {name}.conversion.runtime=onnxruntime"


def _check_converted_side(config: RunConfig, name: str, side: Side) -> PathProblems:
    capture, on_cpu = config.capture, "torch's part of a converted side runs on the cpu, and the graph on"
    wrong: tuple[tuple[bool, DottedPath, str], ...] = (
        (bool(config.workload.script), (name, "conversion"), "is of a workload of functions: a script runs in torch"),
        (side.device != ("cpu",), (name, "device"), f"is {list(side.device)}; {on_cpu} {name}.conversion.provider"),
        (side.dtype not in {"float32", "float16"}, (name, "dtype"), f"is {side.dtype}; a graph runs in float32 or float16"),
        (
            side.mixed_precision != MixedPrecision(),
            (name, "mixed_precision"),
            f"is torch's; see {name}.conversion.keep_float32",
        ),
        (tuple(capture.phase) != ("forward",), ("capture", "phase"), "a graph has a forward alone: capture.phase=[forward]"),
        (
            capture.detail != "tensors" or bool(capture.rules),
            ("capture", "detail"),
            "a converted side is compared by its tensors: capture=tensors, and no capture.rules",
        ),
        (bool(config.whatif), ("whatif",), f"changes what torch computes, and the {name} runs a graph: leave it out"),
    )
    yield from ((path, message) for holds, path, message in wrong if holds)


def _check_mixed_side(config: RunConfig, side: Side, path: DottedPath) -> PathProblems:
    settings = side.mixed_precision
    if settings.level and side.dtype != "float32":
        yield (path[0], "dtype"), f"is {side.dtype}; mixed precision starts from float32 and casts to {settings.dtype} itself"
    if settings.loss_scale not in {"", DYNAMIC} and not is_scale(settings.loss_scale):
        yield (*path, "loss_scale"), f"is `{settings.loss_scale}`; expected `dynamic` or a number above 0"
    if settings.growth_interval < 1:
        yield (*path, "growth_interval"), f"is {settings.growth_interval}; expected a number of steps from 1 up"
    if settings.float32_modules and not settings.level:
        yield (*path, "float32_modules"), "does nothing without a level: everything is in the side's own type"
    if settings.loss_scale and not config.workload.optimizer:
        yield (*path, "loss_scale"), "comes before the optimizer, and there is none: workload.optimizer._target_"
    for operator, dtype in settings.operators.items():
        if dtype not in MIXED_OPERATOR_TYPES:
            yield (*path, "operators", operator), f"is {dtype}; expected one of {', '.join(MIXED_OPERATOR_TYPES)}"


def _check_ranks(config: RunConfig) -> PathProblems:
    for name, side in (("reference", config.reference), ("target", config.target)):
        if not 1 <= side.ranks <= _MOST_RANKS:
            yield (name, "ranks"), f"is {side.ranks}; expected a number of processes from 1 to {_MOST_RANKS}"
    if config.reference.ranks != config.target.ranks and not (config.reference.dump or config.target.dump):
        if min(config.reference.ranks, config.target.ranks) > 1:
            message = (
                f"is {config.target.ranks} and reference.ranks {config.reference.ranks}: ranks are compared with their own"
            )
            yield ("target", "ranks"), f"{message}, or several with a single process: make them equal, or one of them 1"
        elif config.capture.detail == ESCALATING:
            yield ("capture", "detail"), "escalating needs as many ranks on both sides: use capture=tensors"
        elif config.pairing.rules:
            yield ("pairing", "rules"), "and different numbers of ranks exclude each other: make the ranks equal"
    most = max(config.reference.ranks, config.target.ranks)
    named: list[tuple[DottedPath, tuple[int, ...]]] = [(("capture", "rank"), config.capture.rank)]
    named += [(("capture", "rules", str(number), "rank"), rule.rank) for number, rule in enumerate(config.capture.rules)]
    for path, wanted in named:
        if beyond := [rank for rank in wanted if rank >= most]:
            sides = "a side is one process, rank 0" if most == 1 else f"a side has ranks 0 to {most - 1}"
            yield path, f"names rank {beyond[0]}; {sides}"


def _check_whatif(config: RunConfig) -> PathProblems:
    if config.whatif and config.target.dump:
        yield ("whatif",), "runs the target again, and target.dump is given: leave one of the two out"
    for name, side in (("reference", config.reference), ("target", config.target)):
        if config.whatif and side.log and not side.dump:
            yield ("whatif",), f"is about records, and with {name}.log curves alone are compared: leave one of the two out"
    known = whatifs.known_words() if config.whatif else ()
    for number, word in enumerate(config.whatif):
        if word not in known:
            hint = did_you_mean(word, known) or f" There are {', '.join(whatifs.WORDS)} and those of  precflow ls whatif"
            yield ("whatif", str(number)), f"unknown what-if or rule `{word}`.{hint}"
        elif word == whatifs.REFERENCE_CHOICE and max(config.reference.ranks, config.target.ranks) > 1:
            yield ("whatif", str(number)), f"`{word}` is for sides of one process, and one has several ranks"
        elif word == whatifs.REFERENCE_CHOICE and config.determinism.observer == CHECKED:
            message = f"`{word}` gives choices to calls that are recorded, and determinism.observer={CHECKED} records none"
            yield ("whatif", str(number)), message
        elif word == whatifs.SUSPECTS_ALONE and config.stages and "introduced" not in config.stages:
            yield ("whatif", str(number)), f"`{word}` judges by what stage introduced measures, and stages leaves it out"
    if len(set(config.whatif)) < len(config.whatif):
        yield ("whatif",), "names a what-if twice"


def _check_golden(config: RunConfig) -> PathProblems:
    if not config.golden.dtype:
        return
    if config.workload.script or not config.workload.model:
        yield ("golden", "dtype"), "runs workload.model a third time, and the recipe has none"
    elif max(config.reference.ranks, config.target.ranks) > 1:
        yield ("golden", "dtype"), "takes sides of one process, and a side has several ranks"
    elif config.target.dump:
        yield ("golden", "dtype"), "runs where the target runs, and target.dump is given: leave one of the two out"
    if config.capture.detail != "tensors":
        yield ("golden", "dtype"), f"needs tensors, and capture.detail is {config.capture.detail}: use capture=tensors"


def _check_site(config: RunConfig) -> PathProblems:
    """Yield folders of the site that would let a recipe name files anywhere."""
    for name, folder in config.site.paths.items():
        if not folder.strip():
            yield ("site", "paths", name), "is empty: give a folder, or leave the name out"
    for name, folder in config.site.code.items():
        if not is_code_folder(folder):
            yield ("site", "code", name), f"{folder!r} is no folder for code: expected an absolute path below the root"


def _check_script(config: RunConfig) -> PathProblems:
    """Yield keys that mean nothing with a script, or nothing without one."""
    workload = config.workload
    if not workload.script and not workload.model:
        return  # a recipe for scripts; the script comes from the command line
    if not workload.script:
        of_script = [("workload", key) for key in _OF_SCRIPT] + [(side, key) for side in SIDES for key in _OF_SIDE]
        for section, key in of_script:
            if getattr(getattr(config, section), key) != getattr(getattr(RunConfig(), section), key):
                yield (section, key), "is for a script, and workload.script is not set"
        if config.determinism.algorithms == WHEN_NEEDED:
            yield ("determinism", "algorithms"), f"`{WHEN_NEEDED}` is for a script, and workload.script is not set"
        if str(config.determinism.seed) == UNSEEDED:
            yield ("determinism", "seed"), f"`{UNSEEDED}` is for a script: a workload of functions needs a number"
        return
    yield from (
        (path, message)
        for path, message in _NOT_OF_SCRIPTS.items()
        if (config.whatif if path == ("whatif",) else getattr(workload, path[-1])) not in (None, {}, ())
    )
    if config.determinism.algorithms == WHEN_NEEDED and not config.determinism.repeat:
        yield ("determinism", "algorithms"), f"`{WHEN_NEEDED}` needs two runs of a side to compare: determinism.repeat=true"
    for number, pattern in enumerate(workload.files):
        if pattern.startswith(("/", "~")) or ".." in pattern.replace("\\", "/").split("/"):
            yield ("workload", "files", str(number)), "leaves the folder that the script runs in: name files below it"


def _check_batches(config: RunConfig) -> PathProblems:
    if config.determinism.data != RECORDED:
        return
    path = ("determinism", "data")
    if config.workload.model and not config.workload.script:
        yield path, f"`{RECORDED}` is for a script: a workload of functions has the same inputs on both sides anyway"
    if config.determinism.observer == CHECKED:
        alone = "that compares the target with its script alone, which reads its own data"
        yield path, f"`{RECORDED}` and determinism.observer={CHECKED} exclude each other: {alone}"
    if config.capture.detail == ESCALATING:
        yield path, f"`{RECORDED}` needs one pass that records everything: capture=sketch or capture=tensors"


def _check_capture_rules(capture: Capture) -> PathProblems:
    catch_all = ""  # the first rule that matches everything
    for number, rule in enumerate(capture.rules):
        path: DottedPath = ("capture", "rules", str(number))
        if catch_all:
            yield path, f"never counts: {catch_all} matches everything, and the first match counts"
        elif not any(getattr(rule, key) for key in _CONDITIONS):
            catch_all = f"rules[{number}]"
        partial = bool(rule.slices) or float(rule.sample) != 1.0
        if not (rule.detail or partial):
            yield path, "changes nothing: give it a detail (digest, statistics, sketch, tensors, none), slices or a sample"
        if rule.detail == "none" and partial:
            yield path, "keeps nothing of what it matches (detail: none), so slices and sample mean nothing"
        if not 0 < rule.sample <= 1:
            yield (*path, "sample"), "is a share above 0 and at most 1, such as 1%"
        if rule.slices:
            try:
                parse_slices(rule.slices)
            except ValueError as error:
                yield (*path, "slices"), str(error)


def _check_side(name: str, side: Side) -> PathProblems:
    for number, file in enumerate(side.setup):
        yield from _check_path(
            (name, "setup", str(number)), file, _FILE, "a shell file to source before the interpreter starts"
        )
    # A set-up file may change PATH, so a launcher without a folder cannot be looked for here.
    known_after_setup = side.setup and side.launcher and "/" not in side.launcher[0]
    if side.launcher and not known_after_setup and side.launcher[0] != "{command}":
        expected = "the program that starts the agent"
        yield from _check_path((name, "launcher", "0"), side.launcher[0], _PROGRAM, expected, side.variables.get("PATH"))
    if side.interpreter and not (
        side.launcher and not Path(side.interpreter).expanduser().exists()
    ):  # it may be in a container
        expected = "the Python of this side, such as /usr/bin/python3"
        yield from _check_path((name, "interpreter"), side.interpreter, _PROGRAM, expected)
    if side.conversion.file and not side.launcher:
        yield from _check_path((name, "conversion", "file"), side.conversion.file, _FILE, "a graph of ONNX")


def _check_scripts_of_sides(config: RunConfig) -> PathProblems:
    """Check that the scripts of the sides that run here are there; that of another machine may lie there alone."""
    of_sides: dict[str, DottedPath] = {}  # script -> the key that names it, of sides that run here
    for side in SIDES:
        own: Side = getattr(config, side)
        if side in config.sides or not (config.reference.script or config.target.script):
            of_sides.setdefault(own.script or config.workload.script, (side if own.script else "workload", "script"))
    for script, place in of_sides.items():
        if script_module(script):  # whether it is there can be seen in the side's own interpreter only
            if not all(name.isidentifier() for name in script_module(script).split(".")):
                yield place, f"{script} names no module; expected -m package.train"
        elif script:
            yield from _check_path(place, script, _FILE, "a Python script, or -m package.train")


def _check_workload(config: RunConfig) -> PathProblems:
    """Check the files that arguments name: of shipped factories all of them, of others those that can only be a path."""
    yield from _check_scripts_of_sides(config)
    for part in ("model", "inputs", "loss", "optimizer"):
        arguments = getattr(config.workload, part)
        shipped = str(arguments.get(TARGET, "")).startswith(f"{SHIPPED}.")
        for key, value in arguments.items():
            if not isinstance(value, str) or value in {"", SEEDED} or not names_file(key):
                continue
            if shipped or value.startswith(("/", "./", "../", "~")):  # `weights: org/model` may be a name on a hub
                yield from _check_path(("workload", part, key), value, _ANY, "a file or a folder")
    used = [text for _, text in walk_scalars(plain(config.workload)) if isinstance(text, str)]
    for name, folder in config.site.paths.items():
        if any(text == folder or text.startswith(f"{folder.rstrip('/')}/") for text in used):
            yield from _check_path(("site", "paths", name), folder, _ANY, "a file or a folder: workload names it")


def _check_path(path: DottedPath, text: str, kind: str, expected: str, search: str | None = None) -> PathProblems:
    """Yield a problem if a path is not of its kind; a program is looked for in ``search``, else in the PATH of precflow."""
    try:
        file = Path(text).expanduser()
        is_file, is_folder, exists = file.is_file(), file.is_dir(), file.exists()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, an unknown ~user
        yield path, f"{text} does not exist; expected {expected}"
        return
    is_program = kind == _PROGRAM and shutil.which(os.path.expanduser(text), path=search) is not None  # noqa: PTH111  a Path loses "./"
    if {_FILE: is_file, _FOLDER: is_folder, _PROGRAM: is_program, _ANY: exists}[kind]:
        return
    if is_file:
        actual = "is not executable" if kind == _PROGRAM else "is a file"
    else:
        actual = "is a folder" if is_folder else "is no regular file" if exists else "does not exist"
    yield path, f"{text} {actual}; expected {expected}"
