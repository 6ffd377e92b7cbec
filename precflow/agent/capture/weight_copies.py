"""Copies of weights that a script keeps in a dictionary of its own, such as their moving average (EMA).

No module and no optimizer holds them, so no other record has them, and training itself never reads them: a wrong decay shows
when the average is evaluated or saved. They are found where the optimizer's step is called: among the variables of the
functions that call it, and in the attributes of these variables::

    average = {name: parameter.clone() for name, parameter in model.named_parameters()}     copy_in_average
    self.ema.shadow[name]                                                                    copy_in_self_ema_shadow
"""

from __future__ import annotations

import inspect
import re
import sys
import types
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import torch

from precflow.agent.contract import COPY_IN

_MOST = 3  # dictionaries that are recorded
_DEEP = 2  # attributes of attributes that are looked into
_MOST_FRAMES = 64
_ENOUGH = 0.5  # share of the parameters that a dictionary has to hold
_WRAPPER = "module."  # what DistributedDataParallel puts before each name
_PLAIN = {torch.Tensor, torch.nn.Parameter}
_NO_NAME = re.compile(r"\W+")

Named = Mapping[str, torch.Tensor]
"""Name of a parameter, as the script may have it -> the parameter."""


def find_copies(parameters: Named) -> List[Tuple[str, Dict[int, torch.Tensor]]]:
    """Return name of a record and, by ``id`` of the parameter, the tensors of each dictionary that has copies of most weights.

    Args:
        parameters: Those that an optimizer steps, by their names in the model.
    """
    found: List[Tuple[str, Dict[int, torch.Tensor]]] = []
    seen = set()
    for name, mapping in _list_mappings():
        if id(mapping) in seen or len(found) == _MOST:
            continue
        seen.add(id(mapping))
        copies = _match(mapping, parameters)
        if len(copies) >= max(2, _ENOUGH * len(parameters)):
            found.append((COPY_IN + _NO_NAME.sub("_", name), copies))
    return found


def _match(mapping: Dict[Any, Any], parameters: Named) -> Dict[int, torch.Tensor]:
    copies: Dict[int, torch.Tensor] = {}
    for key, value in list(dict.items(mapping)):
        if type(key) is not str:
            continue
        parameter = parameters.get(key[len(_WRAPPER) :] if key.startswith(_WRAPPER) else key)
        if parameter is not None and _is_copy(value, parameter):
            copies[id(parameter)] = value.detach()
    return copies


def _is_copy(value: Any, parameter: torch.Tensor) -> bool:
    """Tell whether a value is a tensor like the parameter, in memory of its own."""
    return (
        {type(value), type(parameter)} <= _PLAIN  # others, such as shards of a mesh, need not have memory of their own
        and value.layout == torch.strided
        and not value.is_meta
        and value.is_floating_point()
        and value.shape == parameter.shape
        and value.data_ptr() != parameter.data_ptr()
    )


def _list_mappings() -> Iterator[Tuple[str, Dict[Any, Any]]]:
    """Yield the dictionaries that the variables of the running functions are, or have as attributes, with their names."""
    frame: Optional[types.FrameType] = sys._getframe(1)  # noqa: SLF001  CPython's own way to the callers
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith(("precflow.", "torch.")):
            for name, value in _read_variables(frame):
                yield from _look_into(name, value, _DEEP)
        frame = frame.f_back


def _read_variables(frame: types.FrameType) -> List[Tuple[str, Any]]:
    """Return the variables of a running function.

    Before Python 3.13 what ``f_locals`` returns of a function stays with it until it ends: a batch that the script has deleted
    would stay in memory. So it is emptied again. Of a module or a class these are the variables themselves.
    """
    variables = frame.f_locals
    listed = list(variables.items())
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(variables) is dict:
        variables.clear()
    return listed


def _look_into(name: str, value: Any, deep: int) -> Iterator[Tuple[str, Dict[Any, Any]]]:
    if name.startswith("__"):
        return
    kind = type(value)  # not isinstance, nor getattr: an object may answer for another one, and run code of the script
    if issubclass(kind, dict):
        yield name, value
        return
    if not deep or str(kind.__module__).startswith(("torch", "builtins")) or issubclass(kind, (type, torch.nn.Module)):
        return
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return
    if type(attributes) is dict:
        for attribute, each in list(attributes.items()):
            yield from _look_into("%s_%s" % (name, attribute), each, deep - 1)
