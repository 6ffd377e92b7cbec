"""Parameters in training: their gradients as backward leaves them, and what a step of the optimizer makes of them."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

import torch

from precflow.agent.capture.arguments import argument_text
from precflow.agent.capture.call_stack import Frame
from precflow.agent.capture.record_lines import Heading
from precflow.agent.contract import NONE, OUTSIDE

if TYPE_CHECKING:
    from precflow.agent.capture.call_stack import Frames
    from precflow.agent.capture.guard import Guard
    from precflow.agent.capture.nesting import Placed
    from precflow.agent.capture.record_lines import Lines, Record
    from precflow.agent.selection import Choice

Undo = Callable[[], None]

_NO_SITE = -1


class Owner(NamedTuple):
    """The module that holds a parameter, by its first name, and the parameter's name there."""

    module: str
    class_name: str
    name: str


def owners(model: torch.nn.Module) -> Dict[int, Owner]:
    """Return ``id(parameter) -> owner`` of every parameter; one that is shared has its first."""
    found: Dict[int, Owner] = {}
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            found.setdefault(id(parameter), Owner(path, type(module).__name__, name))
    return found


class Parameters:
    """Records gradients of parameters and steps of an optimizer.

    Args:
        lines: Where records go.
        frames: Tells what is kept of them.
        guard: Held while anything is looked at.
        phases: Which of ``gradient`` and ``optimizer`` are recorded.
    """

    def __init__(self, lines: Lines, frames: Frames, guard: Guard, *, phases: Tuple[str, ...]) -> None:
        self._lines = lines
        self._frames = frames
        self._guard = guard
        self._phases = phases
        self._recorded: Tuple[str, ...] = ()
        self._counted: Dict[Tuple[str, int], int] = {}  # phase and parameter -> how often in this step
        self._owners: Dict[int, Owner] = {}
        self._seen: Dict[int, List[Record]] = {}  # gradients that the running step of the optimizer has been given

    def begin(self) -> None:
        """Begin a step."""
        self._counted.clear()

    def attach(self, model: torch.nn.Module) -> List[Undo]:
        """Watch the gradients of a model's parameters; return what takes it off again."""
        self._owners = owners(model) if "gradient" in self._phases or "optimizer" in self._phases else {}
        self._recorded = self._phases
        if "gradient" not in self._phases:
            return []
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad and parameter.is_leaf]
        return [parameter.register_post_accumulate_grad_hook(self._accumulated).remove for parameter in trained]

    def follow(self, optimizer: torch.optim.Optimizer, rest: Undo, go_on: Undo) -> Undo:
        """Watch the steps of an optimizer; return what takes it off again.

        The object's own ``step`` is stood in for, since torch 2.1 calls no step hooks once its compiler has been imported.

        Args:
            optimizer: Whose steps.
            rest: Called before a step: what runs until it is done is the optimizer's own.
            go_on: Called after it.
        """
        own, step = optimizer.__dict__.get("step"), optimizer.step

        def watched(_: torch.optim.Optimizer, *positional: Any, **keywords: Any) -> Any:
            """Take a step of the optimizer, and record what it is given and what it leaves."""
            with self._guard:
                self._before(optimizer)
            rest()
            try:
                result = step(*positional, **keywords)
            finally:
                go_on()
            with self._guard:
                self._after(optimizer)
            return result

        stand_in = types.MethodType(watched, optimizer)  # learning rate schedules want a method

        def take_off() -> None:
            """Let the optimizer step on its own again."""
            if optimizer.__dict__.get("step") is stand_in:  # nobody has wrapped it since
                del optimizer.__dict__["step"]
                if own is not None:
                    optimizer.__dict__["step"] = own
            self._recorded = ()

        optimizer.__dict__["step"] = stand_in
        return take_off

    def _accumulated(self, parameter: torch.Tensor) -> None:
        """Record a gradient, right after backward has added to it."""
        with self._guard:
            owner = self._owners[id(parameter)]
            choice = self._choice(owner, "gradient")
            if self._lines.failed or parameter.grad is None or choice.detail == NONE:
                return
            outputs = self._lines.describe([(owner.name, parameter.grad)], store=True, choice=choice)
            order = self._lines.emit(self._heading(owner, parameter, "gradient", {}), [], outputs)
            self._lines.sources.produced(parameter.grad, (order, owner.name), made=True)

    def _before(self, optimizer: torch.optim.Optimizer) -> None:
        """Read the gradients that the optimizer is given."""
        self._seen = {}
        if "optimizer" not in self._recorded or self._lines.failed:
            return
        for owner, parameter in self._held(optimizer):
            if parameter.grad is not None:
                self._lines.written(parameter.grad)  # a gradient scaler writes without being counted
                choice = self._choice(owner, "optimizer")
                self._seen[id(parameter)] = self._lines.describe([(owner.name, parameter.grad)], store=True, choice=choice)

    def _after(self, optimizer: torch.optim.Optimizer) -> None:
        """Record what the optimizer has made of the parameters that had a gradient."""
        if "optimizer" not in self._recorded or self._lines.failed:
            return
        for owner, parameter in self._held(optimizer):
            given = self._seen.pop(id(parameter), None)
            if given is None:
                continue
            tensors, arguments = _state(owner.name, optimizer.state.get(parameter, {}))
            tensors = [(owner.name, parameter.detach()), *tensors]
            for _, tensor in tensors:  # fused kernels may too
                self._lines.written(tensor)
            outputs = self._lines.describe(tensors, store=True, returned=True, choice=self._choice(owner, "optimizer"))
            self._lines.emit(self._heading(owner, parameter, "optimizer", arguments), given, outputs)

    def _held(self, optimizer: torch.optim.Optimizer) -> Iterator[Tuple[Owner, torch.Tensor]]:
        """Yield the parameters of an optimizer that are recorded, with their owners."""
        for group, settings in enumerate(optimizer.param_groups):
            for number, parameter in enumerate(settings["params"]):
                owner = self._owners.get(id(parameter), Owner(OUTSIDE, "", "%d.%d" % (group, number)))
                if self._choice(owner, "optimizer").detail != NONE:
                    yield owner, parameter

    def _choice(self, owner: Owner, phase: str) -> Choice:
        return self._frames.choice("module", owner.module, owner.class_name, "", phase)

    def _heading(self, owner: Owner, parameter: torch.Tensor, phase: str, arguments: Dict[str, str]) -> Heading:
        key = (phase, id(parameter))
        call = self._counted.get(key, 0)
        self._counted[key] = call + 1
        frame = Frame(owner.module, owner.class_name, call, in_scope=True, compiled=False)
        return Heading("module", frame, "", 0, _NO_SITE, False, arguments, phase)  # noqa: FBT003  a tuple's field


def _state(name: str, state: Dict[str, Any]) -> Tuple[List[Placed], Dict[str, str]]:
    """Return the tensors of an optimizer's state for one parameter, below its name, and its other values as text."""
    tensors = [("%s.%s" % (name, key), value) for key, value in state.items() if isinstance(value, torch.Tensor)]
    others = {key: argument_text(value) for key, value in state.items() if not isinstance(value, torch.Tensor)}
    return tensors, others
