"""Finds the function that a ``_target_`` of a recipe names and calls it, in the side's own interpreter."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from typing import Any, Callable, Mapping, Optional, Sequence

from precflow.agent.contract import FACTORIES, SHIPPED, is_trusted
from precflow.agent.failures import AgentError

_FACTORIES = "precflow.agent.workloads."  # our own factories
_TARGET = "_target_"


def extend_path(import_paths: Sequence[str], workload: Mapping[str, Any]) -> None:
    """Append import paths to ``sys.path`` if the workload names user code.

    A workload of our own or torch's factories needs nothing from there, so the paths stay off: libraries try to import optional
    modules, and the working folder may be a stranger's that has a module of such a name. For the same reason the paths come
    after everything that is installed.
    """
    targets = [(part, str(spec[_TARGET])) for part, spec in workload.items() if isinstance(spec, dict) and _TARGET in spec]
    if any(not is_trusted("workload.%s" % part, target, ()) for part, target in targets):
        sys.path.extend(path for path in import_paths if path not in sys.path)


def build(spec: Mapping[str, Any], *, key: str, trusted: Sequence[str], **offered: Any) -> Any:
    """Resolve ``_target_``, call it with the other keys, and return what it returns.

    Args:
        spec: The recipe's section: ``_target_`` and arguments by name.
        key: Place in the recipe, for messages, such as ``workload.model``.
        trusted: Packages whose functions may be called.
        offered: Arguments that are passed if the function has a parameter of that name and the recipe gives none.

    Raises:
        AgentError: ``bad_request`` without a target; ``untrusted``; ``workload`` if module or function is missing or the
            arguments do not fit. Exceptions of the function itself pass through.
    """
    if not isinstance(spec.get(_TARGET), str):
        raise AgentError("bad_request", "%s has no _target_" % key, "name a function: %s._target_=my_pkg.my_module.build" % key)
    target = str(spec[_TARGET])
    function = resolve(target, key=key, trusted=trusted)
    arguments = {name: value for name, value in spec.items() if name != _TARGET}
    try:
        signature: Optional[inspect.Signature] = inspect.signature(function)
    except (TypeError, ValueError):  # some built-ins have none
        signature = None
    if signature is not None:
        arguments = {**{name: value for name, value in offered.items() if name in signature.parameters}, **arguments}
        try:  # before the call: a TypeError from inside the function must not look like a mistake of the recipe
            signature.bind(**arguments)
        except TypeError as error:
            message = "%s: %s%s cannot be called: %s" % (key, target, signature, error)
            raise AgentError("workload", message, "give arguments by name below %s" % key) from error
    return function(**arguments)


def resolve(target: str, *, key: str, trusted: Sequence[str]) -> Callable[..., Any]:
    """Return the function with a dotted name.

    Raises:
        AgentError: ``untrusted``, or ``workload`` if there is no such module or function.
    """
    if "." not in target:
        raise AgentError("workload", "%s._target_=%s is not of the form package.module.function" % (key, target))
    if not is_trusted(key, target, trusted):
        raise _untrusted_error(key, target)
    if target.startswith(SHIPPED):
        target = _FACTORIES + target[len(SHIPPED) :]
    module_name, _, name = target.rpartition(".")
    module = _import_module(module_name, key)
    function = getattr(module, name, None)
    if not callable(function):
        near = difflib.get_close_matches(name, [known for known in vars(module) if not known.startswith("_")], n=3)
        hint = "did you mean %s?" % " or ".join(near) if near else ""
        raise AgentError("workload", "%s: module %s has no function %s" % (key, module_name, name), hint)
    return function  # type: ignore[no-any-return]  # whatever is callable


def _untrusted_error(key: str, target: str) -> AgentError:
    package = target.partition(".")[0]
    if target.startswith(SHIPPED):
        message = "%s._target_=%s is no factory of precflow" % (key, target)
        return AgentError("untrusted", message, "there are: %s" % ", ".join(SHIPPED + name for name in FACTORIES))
    message = "%s._target_=%s: package %s is not trusted" % (key, target, package)
    step = "read its code, then: PRECFLOW_TRUST=%s, or `trusted: [%s]` in a site file" % (package, package)
    return AgentError("untrusted", message, step)


def _import_module(name: str, key: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise  # the module exists, but one of its own imports is missing: the traceback says which
        message = "%s: no module %s in this side's interpreter (%s) nor in the import paths" % (key, error.name, sys.executable)
        raise AgentError("workload", message, "install it there, or run precflow in the folder that holds it") from error
