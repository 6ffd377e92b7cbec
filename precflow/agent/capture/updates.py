"""Which parameters a training run updates: trained, held by an optimizer, given a gradient, and moved.

Records cannot tell that: a parameter that is frozen, or that no optimizer holds, leaves no record of a step, whatever is
recorded. So these facts are taken of every parameter of a model that runs, at any detail and in any scope, from a sample of at
most ``ELEMENTS`` elements of each. A weight that does not move on one side alone was not trained there.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

from precflow.agent.contract import join_names
from precflow.agent.measure.content_id import dtype_name

ELEMENTS = 4096
"""Most elements of a parameter that are looked at, evenly spaced."""

_Runs = List[List[int]]


class Owner(NamedTuple):
    """The module that holds a parameter, by its first name, and the parameter's name there."""

    module: str
    class_name: str
    name: str


def find_owners(model: torch.nn.Module, prefix: str = "") -> Dict[int, Owner]:
    """Return ``id(parameter) -> owner`` of every parameter; a shared one belongs to the first module that holds it.

    Args:
        model: The model.
        prefix: Name of the model among several.
    """
    owners: Dict[int, Owner] = {}
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            # The first one stays: embed.weight and head.weight may be one tensor, which then goes by the name of embed.
            owners.setdefault(id(parameter), Owner(join_names(prefix, path), type(module).__name__, name))
    return owners


class _Parameter:
    """What is known of one parameter; it is held, because ``id`` numbers are used again."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.first: Optional[torch.Tensor] = None  # sample before the first recorded step
        self.trained = tensor.requires_grad
        self.given: _Runs = []  # steps in which an optimizer that holds it found a gradient
        self.moved: Dict[str, float] = {}
        self.moved_in_all = 0.0
        self.state: Dict[str, List[int]] = {}


class _Before(NamedTuple):
    """Samples of the weights when a step began, and of the states of optimizers."""

    weights: Dict[str, torch.Tensor]
    states: Dict[Tuple[int, str], torch.Tensor]


class Updates:
    """Follows the parameters of a training run.

    ``begin_step``, ``add`` and ``end_step`` bracket the steps that are recorded; ``before_optimizer`` is called in any step.

    Args:
        active: ``False`` follows nothing: nobody is going to train.
    """

    def __init__(self, *, active: bool) -> None:
        self._active = active
        self._parameters: Dict[str, _Parameter] = {}
        self._names: Dict[int, str] = {}  # id of a parameter, or of the copy that is trained in its place -> its name
        self._held: Dict[int, torch.Tensor] = {}
        self._before: Optional[_Before] = None  # of a recorded step
        self._number = 0

    def begin_step(self, number: int) -> None:
        """Begin a recorded step; the models that run in it are added by :meth:`add`."""
        self._number = number
        self._before = _Before({}, {}) if self._active else None

    def add(self, model: torch.nn.Module, prefix: str = "") -> None:
        """Follow the parameters of a model, before it runs in this step.

        Args:
            model: The model.
            prefix: Its name among several.
        """
        if self._before is None:
            return
        owners = find_owners(model, prefix)
        for parameter in model.parameters():
            owner = owners[id(parameter)]
            name = join_names(owner.module, owner.name)
            if name in self._before.weights:
                continue
            known = self._parameters.get(name)
            if known is None:
                known = self._parameters[name] = _Parameter(parameter)
            known.tensor = parameter
            self._names[id(parameter)] = name
            sample = _sample(parameter)
            if sample is not None:
                self._before.weights[name] = sample
                known.first = sample if known.first is None else known.first

    def name_master(self, master: torch.Tensor, parameter: torch.Tensor) -> None:
        """Let a copy that the optimizer holds in place of a parameter count as that parameter."""
        if id(parameter) in self._names:
            self._names[id(master)] = self._names[id(parameter)]

    def before_optimizer(self, optimizer: torch.optim.Optimizer, number: Optional[int] = None) -> None:
        """Note what an optimizer is about to step.

        Args:
            optimizer: The optimizer.
            number: The step, recorded or not; ``None`` for the one that is recorded now.
        """
        if not self._active:
            return
        number = self._number if number is None else number
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._held[id(parameter)] = parameter
                name = self._names.get(id(parameter))
                if name is not None and parameter.grad is not None:
                    _extend(self._parameters[name].given, number)
        if self._before is not None:
            self._before.states.clear()
            self._before.states.update(_sample_states(optimizer))

    def after_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Note which tensors of an optimizer's state its step has changed; one that is new was zeros before."""
        if self._before is None:
            return
        for (parameter, key), sample in _sample_states(optimizer).items():
            name = self._names.get(parameter)
            if name is None:
                continue
            before = self._before.states.get((parameter, key))
            steps = self._parameters[name].state.setdefault(key, [])
            if _is_changed(before, sample):
                steps.append(self._number)

    def end_step(self) -> None:
        """End a recorded step, when everything that belongs to its update is done."""
        if self._before is None:
            return
        for name, before in self._before.weights.items():
            one = self._parameters[name]
            after = _sample(one.tensor)
            if after is None or one.first is None or not before.shape == after.shape == one.first.shape:
                continue
            one.moved[str(self._number)] = _measure_move(before, after)
            one.moved_in_all = _measure_move(one.first, after)
        self._before = None

    def describe(self) -> Dict[str, Any]:
        """Return name of a parameter -> what is known of it, as the header of a dump has it."""
        held = {self._names.get(each) for each in self._held}
        return {
            name: {
                "dtype": dtype_name(one.tensor.dtype),
                "trained": one.trained,
                "held": name in held,
                "given": one.given,
                "moved": one.moved,
                "moved_in_all": one.moved_in_all,
                "state": one.state,
            }
            for name, one in self._parameters.items()
            if one.moved
        }


def _extend(runs: _Runs, number: int) -> None:
    """Add a step to runs of steps, ``[[first, last], ...]``."""
    if runs and runs[-1][1] >= number - 1:
        runs[-1][1] = number
    else:
        runs.append([number, number])


def _sample(tensor: torch.Tensor) -> Optional[torch.Tensor]:
    """Return some elements of a tensor, on the CPU; ``None`` of one that has none to read, or is no plain tensor of floats."""
    tensor = getattr(tensor, "_local_tensor", tensor)  # this rank's part of a DTensor
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if not plain or tensor.is_meta or not tensor.is_floating_point() or not tensor.numel():
        return None
    values = tensor.detach()
    stride = -(-values.numel() // ELEMENTS)
    if values.is_contiguous():
        return values.reshape(-1)[::stride].clone().cpu()
    # The same elements whatever the layout: the other side may have the weight in channels_last. No copy of the whole is made.
    rest, places = torch.arange(0, values.numel(), stride, device=values.device), []
    for size in reversed(values.shape):
        places.append(rest % size)
        rest = torch.div(rest, size, rounding_mode="floor")
    return values[tuple(reversed(places))].cpu()


def _sample_states(optimizer: torch.optim.Optimizer) -> Dict[Tuple[int, str], torch.Tensor]:
    """Return the samples of the tensors of state that are as large as their parameter."""
    samples = {}
    for parameter, state in optimizer.state.items():
        if isinstance(parameter, torch.Tensor) and isinstance(state, dict):
            for key, value in state.items():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape and value.dim():
                    sample = _sample(value)
                    if sample is not None:
                        samples[id(parameter), str(key)] = sample
    return samples


def _is_changed(before: Optional[torch.Tensor], after: torch.Tensor) -> bool:
    if before is None or before.shape != after.shape:
        return bool(after.ne(0).any())
    return not torch.equal(before, after)


def _measure_move(before: torch.Tensor, after: torch.Tensor) -> float:
    """Return how far a weight has moved, 0 to 2, relative to the larger of its norms; 2 if there is a NaN or infinity."""
    if torch.equal(before, after):
        return 0.0
    one, other = before.double(), after.double()
    size = max(float(one.norm()), float(other.norm()))
    moved = float((other - one).norm()) / size if size else 0.0
    return moved if 0.0 <= moved <= 2.0 else 2.0
