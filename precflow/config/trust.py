"""What a recipe may set. Recipes may come from strangers, and none of them may decide which code runs on a machine.

A recipe may set the keys in ``RECIPES_MAY_SET``; every other key belongs to a site file or the command line. ``_target_`` may
name a factory of precflow, one of torch's own optimizers or losses, or a function of a package that the user trusts in a site
file, in ``PRECFLOW_TRUST`` or in the ``config.yaml`` of the user folder.

Two checks enforce this. The text of each file is checked before Hydra reads it (:func:`find_forbidden_text`). Afterwards the
composed values are checked by where each of them came from (:func:`find_forbidden_values`). The text alone is not enough,
because a reference can hide a key::

    target: ${emulate.rules[0].hidden}              # the text sets no launcher, the composed value does
    emulate: {rules: [{hidden: {launcher: [rm]}}]}

docs/recipe-safety.md explains all of this to users.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from precflow.agent import contract
from precflow.agent.variables import SETTABLE, is_switch_value
from precflow.config import key_tree
from precflow.config.documents import Document, DottedPath, Mark, dotted, read, walk_scalars
from precflow.config.interpolation import KEY, REFERENCE
from precflow.config.layers import COMMAND_LINE
from precflow.config.search_path import MACHINE_GROUPS, OPEN_GROUPS, user_folder
from precflow.config.suggestions import did_you_mean
from precflow.errors import ConfigError, Problem
from precflow.metrics import LIMITED

SHIPPED = contract.SHIPPED.rstrip(".")
TARGET = "_target_"
SCRIPT = ("workload", "script")

_LIMITS = f"{' '.join(LIMITED)} metrics.*"
_SIDE = "device dtype variables.* ranks arguments.* migration"
_MIXED_PRECISION = "level dtype float32_modules operators.* loss_scale growth_interval"
_CONVERSION = "runtime exporter opset optimise provider keep_float32"
RECIPES_MAY_SET: Mapping[str, str] = {  # section -> keys; `.*` is everything below a key. A recipe may set no other key
    "about": "title owner needs asks.*",
    "environment": "same",
    "environment.require": "free_disk torch python versions.* device_memory shared_memory checks",
    "workload": "model.* inputs.* loss.* optimizer.* learning_rate mode parts arguments.* compile evaluation stop_early files",
    "reference": _SIDE,
    "reference.mixed_precision": _MIXED_PRECISION,
    "reference.conversion": _CONVERSION,
    "target": _SIDE,
    "target.mixed_precision": _MIXED_PRECISION,
    "target.conversion": _CONVERSION,
    "golden": "device dtype",
    "determinism": "seed algorithms random_numbers dropout repeat data observer as_is",
    "capture": "level phase scope step rank detail budget keep_last fine weights compiled timeout debug device_log",
    "capture.rules": "match class operator level phase step rank detail slices sample because",
    "metrics": "*",
    "tolerance": f"standards fills {_LIMITS}",
    "tolerance.rules": f"match phase because {_LIMITS}",
    "accepted": f"match phase because ticket until {_LIMITS}",
    "pairing.rules": (
        "reference target phase index axis sizes groups permute slices reference_slices pad pair_by reference_batch batch "
        "because"
    ),
    "curves": "*",
    "task_metrics": "*",
    "coverage": "minimum elements",
    "reduce": "*",
    "report": "columns formats language",
    "emulate": "name title rules.*",
    "": "stages whatif",
}
ELSEWHERE = "give it on the command line or in a site file"
_SCRIPTS_OF_RECIPES = (
    "names code that runs here: in a recipe it starts with ${site.code.NAME}/, a folder that the site declares for code, or is "
    "`-m` and a module of a package that you trust"
)
_LISTED = [tuple(f"{section}.{key}".strip(".").split(".")) for section, keys in RECIPES_MAY_SET.items() for key in keys.split()]
# The same as paths: keys that have to match as they are, keys with anything below them, and the sections around both.
_CLOSED = frozenset(path for path in _LISTED if path[-1] != "*")
_OPEN = frozenset(path[:-1] for path in _LISTED if path[-1] == "*")
_ABOVE = frozenset(path[:length] for path in _LISTED for length in range(len(path)))

_DOTTED_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")  # [^\W\d] is a letter of any script, or _
_CODE_PATH = re.compile(r"\$\{site\.code\.[\w-]+\}/[^$]+")
_FOLDERS = (("site", "paths"), ("site", "code"))  # what recipes may read of a site
_DEFAULT_GROUPS = re.compile(r"override +/?(capture|emulate)")


def may_set(path: DottedPath) -> bool:
    """Return whether a recipe may set a key, or keys below it; all entries of a list are alike.

    >>> may_set(("target", "dtype")), may_set(("target", "interpreter")), may_set(("tolerance", "rules", "0", "match"))
    (True, False, True)
    """
    parts = tuple(part for part in path if not part.isdigit())
    return parts in _CLOSED or parts in _ABOVE or any(parts[:length] in _OPEN for length in range(1, len(parts) + 1))


def find_forbidden_values(
    data: Mapping[str, Any],
    read: Mapping[DottedPath, Iterable[DottedPath]],
    mark: Callable[[DottedPath], Mark],
    packages: Iterable[str] = (),
) -> Iterator[tuple[DottedPath, str]]:
    """Yield ``(path, message)`` for every composed value that a recipe may not set and that comes, even in part, from one.

    Args:
        data: Composed values, references replaced.
        read: Path -> the paths that its references read, for values that have references.
        mark: Returns the mark of a path: the file and line that set it.
        packages: Packages that the user trusts.
    """
    known = tuple(packages)
    reported: set[tuple[DottedPath, str]] = set()  # one message for a list, not one for each of its entries
    for path, value in walk_values(data):
        places = {path, *read.get(path, ())}
        marks = {place: mark(place) for place in places}
        # The command line and the files of a machine are the user's own; everything else may come from a stranger.
        theirs = sorted(
            place for place, origin in marks.items() if origin.place != COMMAND_LINE and origin.group not in MACHINE_GROUPS
        )
        if not theirs or not key_tree.is_known(path):
            continue
        refusal = explain_refusal(path, value) if path != SCRIPT else _explain_script(value, data, known)
        # What a recipe may not set it may not read either, except paths of the site.
        not_theirs = next(
            (place for place in sorted(places - {path}) if place[:2] not in _FOLDERS and explain_refusal(place, "")), None
        )
        if not refusal and not_theirs is not None:
            expected = "keys that it may set, to ${site.paths.NAME} and ${site.code.NAME}"
            refusal = f"may not read {dotted(not_theirs)}: a recipe refers to {expected}"
        if refusal and len(places) > 1:
            refusal += f". The value comes by a reference, from {mark(theirs[-1]).place}"
        if refusal and (_shortest_refused(path), refusal) not in reported:
            reported.add((_shortest_refused(path), refusal))
            yield _shortest_refused(path), refusal


def find_untrusted_targets(data: Mapping[str, Any], packages: Iterable[str]) -> Iterator[tuple[DottedPath, str]]:
    """Yield ``(path, message)`` for every ``_target_``, at any depth, whose function may not be used."""
    known = tuple(packages)
    for path, value in walk_scalars(data):
        if TARGET not in path:
            continue
        if path[-1] != TARGET or not isinstance(value, str) or not _DOTTED_NAME.fullmatch(value):
            yield path, f"expected the dotted name of a function, such as my_package.my_module.build, got {value!r}"
        elif not contract.is_trusted(dotted(path[:-1]), value, known):
            yield path, _explain_untrusted(value)


def list_trusted_packages() -> tuple[str, ...]:
    """Return the packages that the user trusts on this machine: from ``PRECFLOW_TRUST`` and the user's ``config.yaml``.

    Raises:
        ConfigError: The user's configuration file is not usable.
    """
    named = re.split(rf"[,{re.escape(os.pathsep)}\s]+", os.environ.get("PRECFLOW_TRUST", ""))
    file = user_folder() / "config.yaml"
    if file.is_file():
        document = read(file, "user", "config")
        if document.problems:
            raise ConfigError("your own configuration of precflow is not usable", problems=document.problems)
        trusted = document.data.get("trusted")
        named += [item for item in (trusted if isinstance(trusted, list) else [trusted]) if isinstance(item, str)]
    return tuple(dict.fromkeys(filter(None, named)))


def find_forbidden_text(document: Document) -> Iterator[Problem]:
    """Yield what a file may not have, whatever it is combined with: settings of Hydra, resolvers, keys of a machine."""
    first = f"{document.marks[('defaults',)].place}" if ("defaults",) in document.marks else str(document.path)
    if "hydra" in document.data:
        yield Problem(
            _find_place(document, ("hydra",)), "hydra", "a recipe or site file may not configure Hydra: that runs code"
        )
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
            yield Problem(first, "defaults", f"{message}; got {_shorten(entry)}")
    package = () if document.group in OPEN_GROUPS else (document.group,)
    reported = set()
    for path, value in walk_values(document.data):
        full = (*package, *path)
        message = _explain_more_than_text(path, value)
        if not message and document.group not in MACHINE_GROUPS and key_tree.is_known(full):
            path = _shortest_refused(full)[len(package) :]  # noqa: PLW2901  the key that the message is about
            # Whether a module is of a package that the user trusts is seen when everything is composed.
            may_be_trusted = full == SCRIPT and (contract.script_module(str(value)) or _CODE_PATH.fullmatch(str(value)))
            if not may_be_trusted or _leaves_folder(str(value)):
                message = explain_refusal(full, "" if "${" in str(value) else value)
        if message and (path, message) not in reported:
            reported.add((path, message))
            yield Problem(_find_place(document, path), dotted((*package, *path)), message)


def walk_values(value: Any, path: DottedPath = ()) -> Iterator[tuple[DottedPath, Any]]:
    """Yield ``(path, value)`` of every scalar and of every empty map and list."""
    if isinstance(value, (Mapping, list, tuple)) and value:
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from walk_values(item, (*path, str(key)))
    elif path:
        yield path, value


def list_parents(document: Document) -> tuple[str, ...]:
    """Return the names of the recipes that this one inherits from, without ``/recipe/`` in front."""
    names = (entry for entry in document.defaults if isinstance(entry, str) and entry != "_self_")
    return tuple(name.removeprefix("/").removeprefix("recipe/") if name.startswith("/") else name for name in names)


def list_choices(document: Document) -> list[tuple[str, str]]:
    """Return group and name of each file that a recipe's ``defaults`` choose, as ``override /capture: digest`` does."""
    pairs = (pair for entry in document.defaults if isinstance(entry, dict) for pair in entry.items())
    return [(match[1], str(name)) for key, name in pairs if (match := _DEFAULT_GROUPS.fullmatch(key))]


def make_defaults_absolute(defaults: Iterable[Any]) -> list[Any]:
    """Return the entries of a ``defaults`` list with absolute names, which Hydra reads the same from anywhere.

    Recipes use the names of ``precflow ls``. Hydra would look them up in the group for a recipe that is chosen, but in the
    recipe's own folder for one that is inherited.
    """
    absolute: list[Any] = []
    for entry in defaults:
        if isinstance(entry, dict):
            absolute.append({re.sub(r"^override +/?", "override /", key): value for key, value in entry.items()})
        else:
            absolute.append(entry if entry == "_self_" or entry.startswith("/") else f"/recipe/{entry}")
    return absolute


def explain_refusal(path: DottedPath, value: Any) -> str:
    """Return why a recipe may not give a key this value, ``""`` if it may. References are replaced already."""
    if path == SCRIPT:
        return f"{_SCRIPTS_OF_RECIPES}. Else {ELSEWHERE}"
    if not may_set(path):
        return f"belongs to a machine, not to a recipe: {ELSEWHERE}"
    parts = tuple(part for part in path if not part.isdigit())
    if parts[1:2] == ("variables",):
        name = path[2] if len(path) > 2 else ""
        if name not in SETTABLE:
            return f"is no switch that a recipe may set (they are in docs/recipe-safety.md): {ELSEWHERE}"
        if isinstance(value, str) and not is_switch_value(value):
            expected = "a recipe gives a switch a number or plain words, at most 100 characters"
            return f"is {_shorten(value)}: {expected}. Else {ELSEWHERE}"
    return ""


def is_code_folder(folder: str) -> bool:
    """Tell whether a text can be one of ``site.code``: an absolute path, and not the root, below which everything lies.

    >>> [is_code_folder(folder) for folder in ("/opt/megatron", "~/code", "", "code", "/")]
    [True, True, False, False, False]
    """
    whole = os.path.normpath(os.path.expanduser(folder)) if folder.strip() else ""  # noqa: PTH111  Path refuses some texts
    return os.path.isabs(whole) and os.path.dirname(whole) != whole  # noqa: PTH117, PTH120


def _explain_script(value: Any, data: Mapping[str, Any], packages: Sequence[str]) -> str:
    """Return why a recipe may not run a script, ``""`` if it may: it lies in ``site.code``, or is of a trusted package."""
    text = str(value)
    module = contract.script_module(text)
    if module:
        if any(module == package or module.startswith(f"{package}.") for package in packages):
            return ""
        return f"{module} is not trusted. If you trust it:  PRECFLOW_TRUST={module.partition('.')[0]}. Else {ELSEWHERE}"
    site = data.get("site", {})
    for folder in site.get("code", {}).values():
        if not is_code_folder(str(folder)) or not text.startswith(f"{str(folder).rstrip('/')}/") or _leaves_folder(text):
            continue
        try:
            real, root = (os.path.realpath(os.path.expanduser(path)) for path in (text, str(folder)))  # noqa: PTH111
        except ValueError:  # a NUL: no file has such a name
            continue
        if real.startswith(f"{root}{os.sep}"):
            return ""
        return f"is a link to {real}, outside of {folder}: only what lies in a folder of site.code is run. Else {ELSEWHERE}"
    if any(folder and text.startswith(f"{str(folder).rstrip('/')}/") for folder in site.get("paths", {}).values()):
        return f"lies in site.paths, whose folders have data; {_SCRIPTS_OF_RECIPES}. Else {ELSEWHERE}"
    return explain_refusal(SCRIPT, value)


def _leaves_folder(path: str) -> bool:
    return ".." in re.split(r"[/\\]", path)


def _explain_more_than_text(path: DottedPath, value: Any) -> str:
    """Return what is wrong with a key or a value that is more than text and plain references, else ``""``."""
    if any("${" in part for part in path):
        return "a key is written out: only values may have references"
    if not isinstance(value, str) or "${" not in value:
        return ""
    if TARGET in path:
        return "is written out: it may not be a reference"
    if "${" in REFERENCE.sub(lambda match: "" if KEY.fullmatch(match[1].strip()) else match[0], value):
        return "`${...:...}` would call a resolver: only `${site.paths.NAME}`, `${site.code.NAME}` and other keys are possible"
    return ""


def _explain_untrusted(target: str) -> str:
    if target.startswith(contract.SHIPPED):
        ours = [contract.SHIPPED + name for name in contract.FACTORIES]
        return f"there is no factory {target} here.{did_you_mean(target, ours) or ' There are: ' + ', '.join(ours)}"
    package = target.split(".", maxsplit=1)[0]
    how = f"PRECFLOW_TRUST={package}, or `trusted: [{package}]` in a site file"
    return f"{target} is not trusted. If you trust {package}:  {how}"


def _is_plain_default(entry: Any, group: str) -> bool:
    if isinstance(entry, str):  # a recipe's name: no package (a@b), no reference, no folder above, no other group
        return entry == "_self_" or (group == "recipe" and not re.search(r"@|\$\{|\.\.|^hydra/|^/(?!recipe/)", entry))
    if not isinstance(entry, dict) or len(entry) != 1 or group != "recipe":
        return False
    key, value = next(iter(entry.items()))
    return bool(_DEFAULT_GROUPS.fullmatch(key)) and isinstance(value, str) and "$" not in value


def _shortest_refused(path: DottedPath) -> DottedPath:
    """Return the shortest part of a path that a recipe may not set: ``site`` for ``site.trusted.0``."""
    return next((path[:length] for length in range(1, len(path)) if not may_set(path[:length])), path)


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _find_place(document: Document, path: DottedPath) -> str:
    return next(
        (document.marks[path[:length]].place for length in range(len(path), 0, -1) if path[:length] in document.marks),
        str(document.path),
    )
