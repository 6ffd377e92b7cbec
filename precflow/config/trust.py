"""What a recipe from somebody else may not do: name code that the user has not trusted, or reach into the machine.

A recipe is data. ``_target_`` is resolved only in ``precflow.workloads``, to torch's own optimizers and losses, and in packages
that a *site* file, the variable ``PRECFLOW_TRUST`` or the user's own ``config.yaml`` trusts by name; interpreters, shell files
and paths come from a site file or the command line. All of it is checked on the raw YAML, before Hydra reads anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from precflow.agent.contract import is_of_torch
from precflow.config.documents import Document, DottedPath, dotted, read, scalars
from precflow.config.places import OPEN_GROUPS, user_folder
from precflow.errors import ConfigError, Problem

SHIPPED = "precflow.workloads"
TARGET = "_target_"

MACHINE_SIDE_KEYS = ("interpreter", "setup", "launcher", "dump")
MACHINE_KEYS = ("site", "store", "runs", "recipe", "executor")
_LOADING_VARIABLES = re.compile(
    r"(LD|DYLD)_.*|PYTHON(PATH|HOME|STARTUP|INSPECT|BREAKPOINT|USERBASE|EXECUTABLE)|PATH|BASH_ENV|ENV|IFS|HOME"
)
_DOTTED_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_DEFAULT_GROUPS = re.compile(r"override +/?(capture|emulate)")


def trusted(sites: Iterable[Document]) -> tuple[str, ...]:
    """Return the packages that the user trusts: from ``PRECFLOW_TRUST``, the user's configuration and the chosen site files.

    Raises:
        ConfigError: The user's configuration file is not usable.
    """
    named = re.split(rf"[,{re.escape(os.pathsep)}\s]+", os.environ.get("PRECFLOW_TRUST", ""))
    for site in sites:
        section = site.data.get("site")
        named += _texts(section.get("trusted") if isinstance(section, Mapping) else None)
    return tuple(dict.fromkeys(name for name in [*named, *_user_trusted()] if name))


def is_trusted(target: str, packages: Iterable[str]) -> bool:
    """Tell whether a dotted name is inside precflow's workloads or a trusted package.

    >>> is_trusted("our_llm.models.build", ["our_llm"]), is_trusted("our_llm2.build", ["our_llm"])
    (True, False)
    """
    return any(target.startswith(f"{package}.") for package in (SHIPPED, *packages))


def targets(data: Mapping[str, Any], packages: Iterable[str]) -> Iterator[tuple[DottedPath, str]]:
    """Yield ``(path, message)`` for every ``_target_`` that may not be resolved, however deep it stands."""
    known = tuple(packages)
    for path, value in scalars(data):
        if TARGET not in path:
            continue
        if path[-1] != TARGET or not isinstance(value, str) or not _DOTTED_NAME.fullmatch(value):
            yield path, f"expected the dotted name of a function, such as my_package.my_module.build, got {value!r}"
        elif not is_trusted(value, known) and not is_of_torch(dotted(path[:-1]), value):
            package = value.split(".")[0]
            how = f"PRECFLOW_TRUST={package}, or `trusted: [{package}]` in a site file"
            yield path, f"{value} is not trusted. If you trust {package}:  {how}"


def forbidden(document: Document) -> Iterator[Problem]:
    """Yield what would make a file more than data: a ``hydra`` section, a foreign package, a resolver, keys of a machine."""
    first = f"{document.marks[('defaults',)].place}" if ("defaults",) in document.marks else str(document.path)
    if "hydra" in document.data:
        yield Problem(_place(document, ("hydra",)), "hydra", "a recipe or site file may not configure Hydra: that runs code")
    allowed = ("", "_global_") if document.group in OPEN_GROUPS else ("", document.group)
    if document.package not in allowed:
        yield Problem(
            first,
            "@package",
            f"`{document.package}` is not possible here: leave the line out"
            + (" or say _global_" if "_global_" in allowed else ""),
        )
    for entry in document.defaults:
        if not _is_plain_default(entry, document.group):
            message = "expected the name of another recipe, `override /capture: NAME`, `override /emulate: NAME` or _self_"
            yield Problem(first, "defaults", f"{message}; got {entry!r}")
    for path, value in scalars(document.data):
        if isinstance(value, str) and re.search(r"\$\{[^}]*:", value):
            yield Problem(
                _place(document, path),
                dotted(path),
                "`${...:...}` would call a resolver: only `${site.paths.NAME}` and other keys are possible",
            )
    if document.group != "site":
        yield from _of_a_machine(document)


def inherited(document: Document) -> tuple[str, ...]:
    """Return the names of the recipes that this one inherits from, as they are looked up."""
    names = (entry for entry in document.defaults if isinstance(entry, str) and entry != "_self_")
    return tuple(name.removeprefix("/").removeprefix("recipe/") if name.startswith("/") else name for name in names)


def absolute(defaults: Iterable[Any]) -> list[Any]:
    """Return the entries of a ``defaults`` list as Hydra reads them the same from anywhere.

    Names are those of ``precflow ls``. Hydra would take them relative to the group for one recipe and relative to the
    recipe's own folder for a stacked one.
    """
    found: list[Any] = []
    for entry in defaults:
        if isinstance(entry, dict):
            found.append({re.sub(r"^override +/?", "override /", key): value for key, value in entry.items()})
        else:
            found.append(entry if entry == "_self_" or entry.startswith("/") else f"/recipe/{entry}")
    return found


def _is_plain_default(entry: Any, group: str) -> bool:
    if isinstance(entry, str):
        return entry == "_self_" or (group == "recipe" and not re.search(r"@|\$\{|\.\.|^hydra/|^/(?!recipe/)", entry))
    if not isinstance(entry, dict) or len(entry) != 1 or group != "recipe":
        return False
    key, value = next(iter(entry.items()))
    return bool(_DEFAULT_GROUPS.fullmatch(key)) and isinstance(value, str) and "$" not in value


def _of_a_machine(document: Document) -> Iterator[Problem]:
    where = "belongs to a machine, not to a recipe: give it on the command line or in a site file"
    for key in MACHINE_KEYS:
        if key in document.data:
            yield Problem(_place(document, (key,)), key, where)
    for side in ("reference", "target", "golden"):
        section = document.data.get(side)
        if not isinstance(section, Mapping):
            continue
        for key in MACHINE_SIDE_KEYS:
            if key in section:
                yield Problem(_place(document, (side, key)), f"{side}.{key}", where)
        variables = section.get("variables")
        for name in variables if isinstance(variables, Mapping) else ():
            if _LOADING_VARIABLES.fullmatch(name):
                yield Problem(
                    _place(document, (side, "variables", name)),
                    f"{side}.variables.{name}",
                    f"decides what code is loaded and {where}",
                )


def _place(document: Document, path: DottedPath) -> str:
    return document.marks[path].place if path in document.marks else str(document.path)


def _texts(value: Any) -> list[str]:
    items = value if isinstance(value, (list, tuple)) else [value]
    return [item for item in items if isinstance(item, str)]


def _user_trusted() -> list[str]:
    file = user_folder() / "config.yaml"
    if not file.is_file():
        return []
    document = read(file, "user", "config")
    if document.problems:
        raise ConfigError("your own configuration of precflow is not usable", problems=document.problems)
    return _texts(document.data.get("trusted"))
