"""Copies of weights that a script keeps for itself, such as their moving average (EMA).

No optimizer steps them and no recorded module computes with them, so that no other record has them, and training itself never
reads them: a wrong decay shows when the average is evaluated or saved. They are found among the variables of the running
functions, and in the attributes of these variables: as a dictionary, as a module, and as a list in the order of the weights::

    average = {name: parameter.clone() for name, parameter in model.named_parameters()}     copy_in_average
    averaged = torch.optim.swa_utils.AveragedModel(model)                                    copy_in_averaged
    self.ema.shadow_params[0]                                                                copy_in_self_ema_shadow_params

Gradients and states of an optimizer that is written by hand have the same names and shapes. A copy is what points where the
weights point.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
from typing import Any, Container, Dict, Iterator, List, Mapping, Optional, Set, Tuple

import torch

from precflow.agent.contract import COPY_IN

_MOST = 3  # copies that are recorded
_DEEP = 2  # attributes of attributes that are looked into
_MOST_FRAMES = 64
_ENOUGH = 0.5  # share of the parameters that a copy has to hold
_ELEMENTS = 4096  # of each that are looked at, to tell whether it resembles its weight
_RESEMBLES = 0.8  # cosine similarity: gradients have some 0, an average that has just begun at zero has 1
_PLAIN = {torch.Tensor, torch.nn.Parameter}
_NO_NAME = re.compile(r"\W+")

Named = Mapping[str, torch.Tensor]
"""Name of a parameter, as the script may have it -> the parameter."""
_Found = Tuple[str, Any, Dict[str, Any]]
"""Name of a variable, its value, and what the value holds, by path."""


def find_copies(
    parameters: Named, watched: Container[int] = (), buffers: Optional[Named] = None
) -> List[Tuple[str, Dict[int, torch.Tensor]]]:
    """Return name of a record and, by ``id`` of the weight, the tensors of each copy of most weights that are trained.

    Args:
        parameters: The weights, by their names in the model and in its order; those that need a gradient are looked for.
        watched: ``id`` of the parameters of modules that are recorded anyway.
        buffers: The model's buffers by name, such as the statistics of a batch norm, which an average of it needs too.
    """
    found: List[Tuple[str, Dict[int, torch.Tensor]]] = []
    trained = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    seen = set()
    for name, value, held in _list_holders():
        if id(value) in seen or len(found) == _MOST:
            continue
        seen.add(id(value))
        if not trained or any(id(each) in watched for each in held.values()):
            continue
        by_name = _name_by_order(held, parameters) if type(value) in (list, tuple) else held
        copies = _match(by_name, trained)
        if len(copies) >= max(2, _ENOUGH * len(trained)) and _resemble(copies, trained):
            beside = _match(by_name, buffers) if buffers else {}
            found.append((COPY_IN + _NO_NAME.sub("_", name), {**copies, **beside}))
    return found


def _name_by_order(held: Dict[str, Any], parameters: Named) -> Dict[str, Any]:
    """Return the elements of a list by the names of the weights, if it has one for each weight, or for each trained one."""
    for names in (list(parameters), [name for name, parameter in parameters.items() if parameter.requires_grad]):
        if len(names) == len(held):
            return dict(zip(names, held.values()))
    return {}


def _match(held: Dict[str, Any], trained: Named) -> Dict[int, torch.Tensor]:
    """Return the copies of weights among named values; all names may have something before them, such as ``module.``."""
    names = list(trained)
    some = {names[0], names[len(names) // 2], names[-1]}
    heads = {path[: -len(name)] for path in held for name in some if path == name or path.endswith("." + name)}
    best: Dict[int, torch.Tensor] = {}
    for head in sorted(heads):
        pairs = [(parameter, held[head + name]) for name, parameter in trained.items() if head + name in held]
        copies = {id(parameter): value.detach() for parameter, value in pairs if _is_copy(value, parameter)}
        best = max(best, copies, key=len)
    return best


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


def _resemble(copies: Dict[int, torch.Tensor], trained: Named) -> bool:
    """Tell whether most copies that are not zero point where their weights point."""
    products: List[torch.Tensor] = []
    for parameter in trained.values():
        if id(parameter) in copies:
            copy, weight = _sample(copies[id(parameter)]), _sample(parameter.detach())
            if copy.device != weight.device:  # an average may lie on the host
                copy, weight = copy.cpu(), weight.cpu()
            products.append(torch.stack([copy @ weight, copy @ copy, weight @ weight]))
    rows = torch.stack([each.to(products[0].device) for each in products]).tolist()  # one wait for the device
    told: List[Tuple[float, float]] = [(dot, (copy * weight) ** 0.5) for dot, copy, weight in rows if copy * weight > 0]
    return 2 * sum(dot > _RESEMBLES * length for dot, length in told) > len(told)


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1)
    return flat[:: max(1, flat.numel() // _ELEMENTS)].float()


def _list_holders() -> Iterator[_Found]:
    """Yield what may hold copies among the variables of the running functions and their attributes."""
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


def _look_into(name: str, value: Any, deep: int) -> Iterator[_Found]:
    if name.startswith("__"):
        return
    kind = type(value)  # not isinstance, nor getattr: an object may answer for another one, and run code of the script
    if issubclass(kind, dict):
        yield name, value, {key: each for key, each in list(dict.items(value)) if type(key) is str and type(each) in _PLAIN}
        return
    if kind in (list, tuple):
        if value and type(value[0]) in _PLAIN:
            yield name, value, {str(number): each for number, each in enumerate(value)}
        return
    if issubclass(kind, torch.nn.Module):
        yield name, value, dict(_list_parameters(value, "", set()))
        return
    if not deep or str(kind.__module__).startswith(("torch", "builtins")) or issubclass(kind, type):
        return
    for attribute, each in list(_attributes_of(value).items()):
        yield from _look_into("%s_%s" % (name, attribute), each, deep - 1)


def _list_parameters(module: Any, path: str, seen: Set[int]) -> Iterator[Tuple[str, Any]]:
    """Yield parameters and buffers of a module and of all inside it, by path, from dictionaries: no code of the script runs."""
    if id(module) in seen:
        return
    seen.add(id(module))
    attributes = _attributes_of(module)
    for kind in ("_parameters", "_buffers"):
        for name, held in list((attributes.get(kind) or {}).items()):
            if held is not None:
                yield path + name, held
    for name, inside in list((attributes.get("_modules") or {}).items()):
        if inside is not None:
            yield from _list_parameters(inside, "%s%s." % (path, name), seen)


def _attributes_of(value: Any) -> Dict[str, Any]:
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return attributes if type(attributes) is dict else {}
