"""Checks arguments in recipes against the signatures of the functions that take them, without importing or running these.

A misspelt name or argument is found before the first side starts, and without torch. There are two kinds of such functions:

* ``_target_`` functions. Precflow's own factories are always checked; functions of the user and of torch only if a side runs
  here in the judge's own interpreter, which has the same modules. If the source alone does not show what a function takes
  (compiled modules, decorators, names made at run time), nothing is reported: the side will report it.
* The effects that the rules of an emulated fault name. The agent checks its rules once more; the messages of this check have a
  file and a line.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from precflow.agent.contract import BACKWARD, FACTORIES, FAULT_INPUTS, FAULT_KEYS, FAULT_PHASES, REDRAW, SHIPPED
from precflow.config.documents import DottedPath, PathProblems
from precflow.config.schema import RunConfig
from precflow.config.suggestions import did_you_mean
from precflow.config.trust import TARGET

_PARTS = ("model", "inputs", "loss", "optimizer")
_OFFERED = {"optimizer": ("params", "parameters", "model")}  # arguments that the agent passes itself if the function has them
_INIT = "__init__.py"
_HOPS = 8  # how many `from x import y` a name is followed through; modules may import it from one another
_AT_RUN_TIME = "globals( locals( vars( setattr( exec( sys.modules __path__ __dict__".split()  # signs of names made at run time
_WORKLOADS = Path(__file__).parents[1] / "agent" / "workloads"
_EFFECTS = Path(__file__).parents[1] / "agent" / "emulated" / "effects.py"
_MOST_RULES = 100  # of an emulated fault
_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {  # annotation -> types of Python, and what a message calls them
    "str": ((str,), "text"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
    "Union[float, str]": ((int, float, str), "a number or text"),
}


class _AbsentError(Exception):
    """There is certainly no such module or name; ``near`` are the names that the module has."""

    def __init__(self, message: str, near: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.near = tuple(near)


@dataclass
class _Names:
    """What a module binds at its top level.

    Attributes:
        bound: Name -> every statement that binds it, with the name that it has where it is imported from.
        stars: Its ``from x import *``.
        closed: Whether it can have no other names: no function uses ``global``, and there is no ``__getattr__``.
    """

    bound: dict[str, list[tuple[ast.stmt, str]]] = field(default_factory=dict)
    stars: list[ast.ImportFrom] = field(default_factory=list)
    closed: bool = True


def check_shipped(config: RunConfig) -> PathProblems:
    """Yield ``(path, message)`` for arguments that precflow's own factories do not take, or not with such a value."""
    for part in _PARTS:
        spec = getattr(config.workload, part)
        name = next((name for name in FACTORIES if spec.get(TARGET) == SHIPPED + name), "")
        if not name:
            continue
        module, _, function = name.rpartition(".")
        signature = _look_up(_WORKLOADS.joinpath(*module.split(".")).with_suffix(".py"), SHIPPED + module, function)
        assert signature is not None, f"{name} is not a plain function"
        yield from _find_misfits(("workload", part), spec, signature, offered=_OFFERED.get(part, ()))
        for key, value in spec.items():
            if key in signature.parameters:
                annotation = ast.parse(signature.parameters[key].annotation or "object", mode="eval").body
                if expected := _describe_expected(value, annotation):
                    yield ("workload", part, key), f"expected {expected}, got `{value}`"


def check_user_code(config: RunConfig, *, may_be_elsewhere: bool = False) -> PathProblems:
    """Yield ``(path, message)`` for names and arguments that the user's own code, or torch, does not have on this machine.

    Args:
        config: The recipe.
        may_be_elsewhere: Say nothing of modules that are not here: who checks a recipe need not have the model.
    """
    running = [side for side in (getattr(config, name) for name in config.sides) if not side.dump]
    # Only a side in this interpreter, with the same search path, finds the same modules as this process.
    if any(not (side.interpreter or side.setup or side.launcher or "PYTHONPATH" in side.variables) for side in running):
        for part in _PARTS:
            spec = getattr(config.workload, part)
            yield from _check_user_target(
                ("workload", part), spec, offered=_OFFERED.get(part, ()), may_be_elsewhere=may_be_elsewhere
            )
    if not config.stages or "compare" in config.stages:  # the user's metrics are loaded into this process by `compare`
        for name, declared in config.metrics.items():
            yield from _check_user_target(("metrics", name), declared, may_be_elsewhere=may_be_elsewhere)


@lru_cache(maxsize=1)
def read_effects() -> Mapping[str, inspect.Signature]:
    """Return name -> signature of every effect: the public functions of its module that return an ``Effect``."""
    nodes = [node for node in ast.parse(_EFFECTS.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)]
    return {
        node.name: _convert_signature(node)
        for node in nodes
        if isinstance(node.returns, ast.Name) and node.returns.id == "Effect" and not node.name.startswith("_")
    }


def check_fault_rules(rules: Sequence[Any]) -> PathProblems:
    """Yield ``(path, message)`` for everything that is wrong in the rules of an emulated fault."""
    if len(rules) > _MOST_RULES:
        yield ("emulate", "rules"), f"has {len(rules)} rules; at most {_MOST_RULES}"
        return
    for number, rule in enumerate(rules):
        path = ("emulate", "rules", str(number))
        if not isinstance(rule, Mapping):
            yield path, f"expected a rule (`rule`, `operator` and its parameters), got `{str(rule)[:60]}`"
            continue
        name = rule.get("rule")
        if name == REDRAW:
            if rule.keys() != {"rule", "parameter"} or not isinstance(rule["parameter"], str):
                yield path, f"{REDRAW} takes `parameter`, a pattern of names, and nothing else"
        elif not isinstance(name, str) or name not in read_effects():
            known, given = (*read_effects(), REDRAW), str(name)
            near = did_you_mean(given, known)
            yield (*path, "rule"), f"`{given[:60]}` is no effect; there are {', '.join(known)}.{near}"
        else:
            yield from _check_conditions(rule, path)
            yield from _check_parameters(rule, read_effects()[name].parameters, path)


def _check_conditions(rule: Mapping[str, Any], path: DottedPath) -> PathProblems:
    """Check the keys that every rule has: they say which calls compute otherwise."""
    operator, module, phase = rule.get("operator"), rule.get("module", ""), rule.get("phase", "")
    names = [operator] if isinstance(operator, str) else operator
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        yield (*path, "operator"), "expected aten names or patterns, such as mm|addmm"
    if not isinstance(module, str):
        yield (*path, "module"), "expected a pattern of module names"
    if phase not in ("", *FAULT_PHASES):
        yield (*path, "phase"), f"`{phase}` is not one of {', '.join(FAULT_PHASES)}.{did_you_mean(str(phase), FAULT_PHASES)}"
    elif phase == BACKWARD and module:
        yield (*path, "module"), "no module is running in backward: leave it out"
    if (given := rule.get("inputs", "")) not in ("", *FAULT_INPUTS):
        yield (*path, "inputs"), f"`{given}` is not one of {', '.join(FAULT_INPUTS)}.{did_you_mean(str(given), FAULT_INPUTS)}"
    calls = rule.get("call", [])
    calls = calls if isinstance(calls, list) else [calls]
    if not all(_is_of_kind(call, "int") and call >= 0 for call in calls):
        yield (*path, "call"), "expected numbers of calls, from 0"


def _check_parameters(rule: Mapping[str, Any], known: Mapping[str, inspect.Parameter], path: DottedPath) -> PathProblems:
    listed = ", ".join(known) or "none"
    for key, value in rule.items():
        if key in FAULT_KEYS:
            continue
        if key not in known:
            yield (*path, str(key)), f"is no parameter of {rule['rule']}, which has {listed}.{did_you_mean(str(key), known)}"
        elif expected := _describe_expected(value, ast.parse(known[key].annotation, mode="eval").body):
            yield (*path, key), f"expected {expected}, got `{str(value)[:60]}`"
    for name, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and name not in rule:
            yield path, f"lacks `{name}`, which {rule['rule']} needs"


def _check_user_target(
    path: DottedPath, spec: Mapping[str, Any], *, offered: Sequence[str] = (), may_be_elsewhere: bool = False
) -> PathProblems:
    target = spec.get(TARGET)
    if not isinstance(target, str) or target.startswith(SHIPPED) or "." not in target:
        return
    module, _, name = target.rpartition(".")
    source: Path | None = None
    try:
        source = _find_source(module)
        signature = None if source is None else _look_up(source, module, name)
    except _AbsentError as absent:
        if source is None and may_be_elsewhere:
            return
        yield (*path, TARGET), f"{absent}{did_you_mean(name, absent.near)}"
        return
    if signature is not None:
        yield from _find_misfits(path, spec, signature, offered=offered)


def _find_misfits(
    path: DottedPath, spec: Mapping[str, Any], signature: inspect.Signature, *, offered: Sequence[str]
) -> PathProblems:
    """Yield the arguments that a function does not take, and the required ones that are missing."""
    function = str(spec[TARGET]).rpartition(".")[2]
    parameters = signature.parameters
    if any(parameter.kind is parameter.POSITIONAL_ONLY for parameter in parameters.values()):
        return  # `_target_` passes arguments by name, which these do not take; left to the side
    named = [
        name
        for name, parameter in parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for key in spec:
        if key != TARGET and key not in named and not takes_all:
            free = [name for name in named if name not in spec and name not in offered]
            takes = ", ".join(name for name in named if name not in offered) or "nothing"
            yield (*path, key), f"{function} has no argument `{key}`.{did_you_mean(key, free)}   It takes {takes}"
    for name in named:
        if parameters[name].default is inspect.Parameter.empty and name not in spec and name not in offered:
            yield (*path, name), f"is missing: {function} needs it"


def _describe_expected(value: Any, annotation: ast.expr) -> str:
    """Return what was expected if a value is not of its annotated simple type (or ``Sequence`` of one), else ``""``."""
    text = ast.unparse(annotation)
    if text in _KINDS:
        return "" if _is_of_kind(value, text) else _KINDS[text][1]
    if text.startswith("Literal["):
        allowed = ast.literal_eval(text.removeprefix("Literal"))
        return "" if value in allowed else f"one of {', '.join(map(str, allowed))}"
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Sequence":
        if not isinstance(value, (list, tuple)):
            return "a list"
        wrong = next(filter(None, (_describe_expected(item, annotation.slice) for item in value)), "")
        return wrong and f"a list with {wrong} in each place"
    return ""


def _is_of_kind(value: Any, annotation: str) -> bool:
    # isinstance(True, int) is true in Python; `layers: true` is a mistake all the same.
    return isinstance(value, _KINDS[annotation][0]) and (annotation == "bool" or not isinstance(value, bool))


def _find_source(module: str) -> Path | None:
    """Return the file of a module as a side finds it, installed packages first; ``None`` if it has no Python source here.

    Raises:
        _AbsentError: There is no such module.
    """
    first, *rest = module.split(".")
    spec = _find_top_level(first)
    if spec is None:
        where = f"in {sys.executable}, nor in this folder"
        raise _AbsentError(f"there is no module {first} {where}: install it, or run precflow where it lies")
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    file = None if spec.origin is None else Path(spec.origin)
    package = first
    for part in rest:
        # In Python too a package comes before a module of the same name, and a folder without __init__.py after both.
        candidates = (path for folder in folders for path in (folder / part / _INIT, folder / f"{part}.py", folder / part))
        source = next((path for path in candidates if path.exists()), None)
        if source is None:
            compiled = any(True for folder in folders for _ in folder.glob(f"{part}.*"))
            if compiled or (file is not None and _makes_names_at_run_time(file)):
                return None
            known = {path.stem for folder in folders for path in folder.glob("*") if path.suffix == ".py" or path.is_dir()}
            raise _AbsentError(f"there is no module {part} in {package}.{did_you_mean(part, sorted(known))}")
        folders = [source] if source.is_dir() else [source.parent] if source.name == _INIT else []
        file, package = (source if source.is_file() else None), f"{package}.{part}"
    return file if file is not None and file.suffix == ".py" and file.is_file() else None


def _find_top_level(name: str) -> Any:
    """Return the spec of a top-level module, ``None`` if there is none.

    Installed modules come before those in the working directory, as in a side. In this process it may be the other way round:
    ``python -m precflow`` puts the working directory first.
    """
    working = os.getcwd()  # noqa: PTH109  compared with texts
    installed = PathFinder.find_spec(name, [folder for folder in sys.path if folder not in ("", ".", working)])
    if installed is not None:
        return installed
    with suppress(ValueError, ImportError):  # a module without a spec
        loaded = importlib.util.find_spec(name)
        if loaded is not None:
            return loaded
    return PathFinder.find_spec(name, [working, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])


def _makes_names_at_run_time(file: Path) -> bool:
    source = _read_source(file)
    return _find_names(source) is None or any(sign in source for sign in _AT_RUN_TIME)


def _read_source(file: Path) -> str:
    """Return the text of a module; where it cannot be read, one that is no Python."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return "?"


def _look_up(file: Path, module: str, name: str, hops: int = 0) -> inspect.Signature | None:
    """Return the signature of a function or class of a module; ``None`` if the source does not show it.

    Raises:
        _AbsentError: The module certainly has no such name.
    """
    names = _find_names(_read_source(file))
    if names is None or hops > _HOPS:
        return None
    near = list(names.bound)
    ways = names.bound.get(name, [])  # more than one for `try: from a import f; except ImportError: def f()...`, undecidable
    if len(ways) == 1 and isinstance(ways[0][0], ast.ImportFrom):
        source = _find_imported(ways[0][0], file, module)
        return None if source is None else _look_up(*source, ways[0][1], hops + 1)
    if ways:
        return _read_signature(ways[0][0]) if len(ways) == 1 else None
    for star in names.stars:
        source = _find_imported(star, file, module)
        if source is None:
            return None
        try:
            return _look_up(*source, name, hops + 1)
        except _AbsentError as absent:
            near += absent.near
    if not names.closed or _makes_names_at_run_time(file):
        return None
    raise _AbsentError(f"module {module} has no function {name}.", [each for each in near if not each.startswith("_")])


def _read_signature(statement: ast.stmt) -> inspect.Signature | None:
    """Return the signature of what a statement defines; ``None`` if a decorator, a base or ``__new__`` may change it."""
    if isinstance(statement, ast.FunctionDef) and not statement.decorator_list:
        return _convert_signature(statement)
    if not isinstance(statement, ast.ClassDef) or statement.decorator_list or statement.keywords:
        return None
    methods = [node for node in ast.walk(statement) if isinstance(node, ast.FunctionDef) and node in statement.body]
    own = [node for node in methods if node.name in ("__init__", "__new__")]
    if len(own) != 1 or own[0].name == "__new__" or own[0].decorator_list:
        return None
    signature = _convert_signature(own[0])
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _find_imported(statement: ast.ImportFrom, file: Path, module: str) -> tuple[Path, str] | None:
    """Return file and name of the module that ``from x import y`` reads; ``None`` if its source cannot be found."""
    # Level 1 is `from .x import y`, which starts in the package of this module; each further dot goes one package up.
    if statement.level:
        package = module.split(".") if file.name == _INIT else module.split(".")[:-1]
        package = package[: len(package) - statement.level + 1]
        folder = file.parent
        for _ in range(statement.level - 1):
            folder = folder.parent
        inner = (statement.module or "").split(".") if statement.module else []
        path = folder.joinpath(*inner)
        source_file = next((each for each in (path / _INIT, path.with_suffix(".py")) if each.is_file()), None)
        return None if source_file is None else (source_file, ".".join([*package, *inner]))
    try:
        source = _find_source(statement.module or "")
    except _AbsentError:  # an optional dependency, maybe
        return None
    return None if source is None else (source, statement.module or "")


@lru_cache(maxsize=32)  # a run composes its words again with each change that it proposes
def _find_names(source: str) -> _Names | None:
    """Return the names that a module binds outside of functions and classes, in all branches; ``None`` if it is no Python."""
    try:
        waiting: list[ast.AST] = list(ast.parse(source).body)
    except (SyntaxError, ValueError, RecursionError):
        return None
    names = _Names()
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.bound.setdefault(node.name, []).append((node, node.name))
            names.closed &= node.name != "__getattr__" and not any(isinstance(inner, ast.Global) for inner in ast.walk(node))
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                if alias.name == "*" and isinstance(node, ast.ImportFrom):
                    names.stars.append(node)
                    continue
                bound = alias.asname or alias.name.partition(".")[0]
                names.bound.setdefault(bound, []).append((node, alias.name))
        # A name that is assigned may be anything: `pass` stands for a statement from which no signature can be read.
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.bound.setdefault(node.id, []).append((ast.Pass(), ""))
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            names.bound.setdefault(node.name, []).append((ast.Pass(), ""))
        waiting += ast.iter_child_nodes(node)
    return names


def _convert_signature(node: ast.FunctionDef) -> inspect.Signature:
    """Return the signature of a function definition. Annotations are text; a default is ``None``, whatever its value."""
    arguments, parameters = node.args, []
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    for number, each in enumerate(positional):
        kind = (
            inspect.Parameter.POSITIONAL_ONLY
            if number < len(arguments.posonlyargs)
            else inspect.Parameter.POSITIONAL_OR_KEYWORD
        )
        parameters.append(_parameter(each, kind, optional=number >= required))
    if arguments.vararg:
        parameters.append(_parameter(arguments.vararg, inspect.Parameter.VAR_POSITIONAL))
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parameters.append(_parameter(each, inspect.Parameter.KEYWORD_ONLY, optional=default is not None))
    if arguments.kwarg:
        parameters.append(_parameter(arguments.kwarg, inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(parameters)


def _parameter(node: ast.arg, kind: Any, *, optional: bool = False) -> inspect.Parameter:
    annotation = ast.unparse(node.annotation) if node.annotation else ""
    return inspect.Parameter(node.arg, kind, default=None if optional else inspect.Parameter.empty, annotation=annotation)
