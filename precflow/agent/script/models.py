"""The models of a script, found from the calls of their modules, and the names that their records get."""

from __future__ import annotations

import gc
from types import FrameType
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

import torch

from precflow.agent.capture.wrappers import is_wrapper, unwrap
from precflow.agent.contract import join_names
from precflow.agent.session.user_code import is_user_code


class Model(NamedTuple):
    """A model of the script.

    Attributes:
        name: What stands before the names of its modules: nothing if the script trains only one model and this is it.
        title: Its class, and its name if it has one: ``critic (Sequential)``.
        top: The module that holds all others.
    """

    name: str
    title: str
    top: torch.nn.Module


class Models:
    """The models of a script, in the order of their first call.

    A model is not the module that is called but the top of the tree that this module belongs to, without wrappers: scripts call
    parts (``vae.encode``, the ``self.net(x)`` of Lightning). Models are held, because the globals of a script are freed when it
    ends, and ``id`` numbers are used again.
    """

    def __init__(self) -> None:
        self.known: Dict[int, Model] = {}  # id of the top -> model
        self._models: Dict[int, Model] = {}  # id of a module that was called -> its model
        self._called: List[torch.nn.Module] = []  # keeps the ids valid
        self._trains_one: Optional[bool] = None

    def __iter__(self) -> Iterator[Model]:
        return iter(self.known.values())

    def find(self, module: torch.nn.Module, frame: FrameType) -> Model:
        """Return the model that a module belongs to.

        Args:
            module: A module that is being called, outside of any other.
            frame: A frame inside the call; the variable that the script keeps the model in is looked for from there outwards.
        """
        model = self._models.get(id(module))
        if model is None:
            top = _find_top(module)
            model = self.known.get(id(top))
            if model is None:
                model = self.known[id(top)] = self._name(top, frame)
            self._models[id(module)] = model
            self._called.append(module)
        return model

    def _name(self, top: torch.nn.Module, frame: FrameType) -> Model:
        kind = type(top).__name__
        if self._trains_one is None:
            self._trains_one = _count_trained() <= 1
        # Loss modules, frozen teachers and averaged copies are models too; the one that is trained needs no name beside them.
        is_main = self._trains_one and is_trained(top) and not any(model.name == "" for model in self.known.values())
        variable = _find_variable(top, frame)
        title = "%s (%s)" % (variable, kind) if variable else kind
        if is_main:
            return Model("", title, top)
        name, taken = variable or kind, {model.name for model in self.known.values()}
        number = next(
            count for count in range(1, len(taken) + 3) if (name if count == 1 else "%s#%d" % (name, count)) not in taken
        )
        return Model(name if number == 1 else "%s#%d" % (name, number), title, top)


def is_trained(top: torch.nn.Module) -> bool:
    """Tell whether a model has parameters that a gradient may reach."""
    return any(parameter.requires_grad for parameter in top.parameters())


def is_stepped(top: torch.nn.Module) -> bool:
    """Tell whether an optimizer trains any parameter of a model."""
    given = _list_given()
    return any(id(parameter) in given for parameter in top.parameters())


def list_held() -> Set[int]:
    """Return the id of every parameter that a module holds."""
    return {id(weight) for module in _list_modules() for weight in module.parameters(recurse=False)}


def describe_parameter(parameter: torch.Tensor) -> str:
    """Return the name of a parameter in whatever model holds it, such as ``Net.blocks.0.weight``; its shape if none does."""
    for module in _list_modules():
        for name, weight in module.named_parameters(recurse=False):
            if weight is parameter:
                top = _find_top(module)
                path = next((path for path, each in top.named_modules() if each is module), "")
                return join_names(type(top).__name__, join_names(path, name))
    return "a parameter of shape %s" % (tuple(parameter.shape),)


def list_optimizers() -> List[torch.optim.Optimizer]:
    """Return every optimizer that is alive."""
    # Wrappers of other libraries are optimizers too and have no parameter groups of their own.
    return [
        each for each in gc.get_objects() if issubclass(type(each), torch.optim.Optimizer) and hasattr(each, "param_groups")
    ]


def _list_modules() -> List[torch.nn.Module]:
    # By type(): isinstance() would ask `__class__` of lazy objects of other libraries, which may import something.
    return [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module) and "_modules" in each.__dict__]


def _map_holders() -> Dict[int, List[torch.nn.Module]]:
    """Return id of a module -> the modules that hold it, wrappers on both sides taken off."""
    holders: Dict[int, List[torch.nn.Module]] = {}
    for holder in _list_modules():
        if not is_wrapper(holder):
            for child in holder.__dict__["_modules"].values():
                if child is not None:
                    holders.setdefault(id(unwrap(child)), []).append(holder)
    return holders


def _find_top(module: torch.nn.Module) -> torch.nn.Module:
    """Return the largest module that holds this one, also if it was copied or unpickled: the garbage collector knows all."""
    return _climb(unwrap(module), _map_holders())


def _climb(module: torch.nn.Module, holders: Dict[int, List[torch.nn.Module]]) -> torch.nn.Module:
    seen: Set[int] = set()
    while id(module) not in seen and holders.get(id(module)):
        seen.add(id(module))
        module = max(holders[id(module)], key=lambda each: (sum(1 for _ in each.modules()), type(each).__name__))
    return module


def _list_given() -> Set[int]:
    """Return the id of every parameter that an optimizer was given."""
    return {id(weight) for optimizer in list_optimizers() for group in optimizer.param_groups for weight in group["params"]}


def _count_trained() -> int:
    """Return how many models the optimizers train."""
    given = _list_given()
    holders, tops = _map_holders(), set()
    for module in _list_modules():
        if any(id(weight) in given for weight in module.parameters(recurse=False)):
            tops.add(id(_climb(unwrap(module), holders)))
    return len(tops)


def _find_variable(top: torch.nn.Module, frame: Optional[FrameType]) -> str:
    """Return the name of the variable that holds a model, in the outermost function of the user's code that has one."""
    found = ""
    while frame is not None:
        if is_user_code(frame.f_code.co_filename):
            names: List[Tuple[str, Any]] = list(frame.f_locals.items())
            for name, value in names:
                # By type(), see above. `self` and `_` are no names that tell one model from another.
                if issubclass(type(value), torch.nn.Module) and unwrap(value) is top and name.strip("_") not in ("self", ""):
                    found = name
        frame = frame.f_back
    return found
