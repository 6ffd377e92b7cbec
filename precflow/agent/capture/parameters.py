"""Parameters in training: their gradients after backward, and the new values after a step of the optimizer."""

from __future__ import annotations

import types
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Optional, Set, Tuple

import torch

from precflow.agent.capture.arguments import format_argument
from precflow.agent.capture.call_stack import ModuleCall
from precflow.agent.capture.record_lines import Heading
from precflow.agent.capture.updates import Owner, find_owners
from precflow.agent.capture.weight_copies import find_copies
from precflow.agent.contract import BEFORE, NONE, OUTSIDE, join_names
from precflow.agent.selection import Choice

if TYPE_CHECKING:
    from precflow.agent.capture.call_stack import CallStack
    from precflow.agent.capture.guard import Guard
    from precflow.agent.capture.nesting import TensorWithPath
    from precflow.agent.capture.record_lines import Lines, Record
    from precflow.agent.capture.updates import Updates

Undo = Callable[[], None]

_NO_SITE = -1  # gradients of parameters and steps of an optimizer have no call site
_NOT_SETTINGS = frozenset(("params", "param_names"))  # of a parameter group


class ParameterRecorder:
    """Records gradients of parameters and steps of an optimizer.

    Args:
        lines: Where records go.
        stack: Tells what is kept of them.
        guard: Held while capture reads tensors.
        updates: Told of models and of steps of optimizers, whatever is recorded of them.
        phases: Which of ``gradient`` and ``optimizer`` are recorded.
    """

    def __init__(self, lines: Lines, stack: CallStack, guard: Guard, *, updates: Updates, phases: Tuple[str, ...]) -> None:
        self._lines = lines
        self._stack = stack
        self._guard = guard
        self._updates = updates
        self._phases = phases
        self._active_phases: Tuple[str, ...] = ()  # none after the optimizer was released
        self._runs: Dict[Tuple[str, int], int] = {}  # phase and parameter -> how often it was recorded in this step
        self._owners: Dict[int, Owner] = {}
        self._hooked: Set[int] = set()  # ids of the parameters whose gradients are watched
        self._given: Dict[int, List[Record]] = {}  # gradients that the running optimizer step began with, by parameter
        self._weights: Dict[int, torch.Tensor] = {}  # parameters of the watched models
        self._models: Dict[int, str] = {}  # by parameter: the name of the model that holds it
        self._buffers: Dict[str, Dict[str, torch.Tensor]] = {}  # of each of these models, by name
        self._copies: Optional[Dict[int, List[Record]]] = None  # by parameter; None: not read since the last optimizer step

    def begin_step(self) -> None:
        """Begin a step."""
        self._runs.clear()
        self._copies = None

    def forget(self) -> None:
        """Forget the models of the step before."""
        self._owners = {}
        self._hooked = set()
        self._weights, self._models, self._buffers = {}, {}, {}

    def attach(self, model: torch.nn.Module, prefix: str = "") -> List[Undo]:
        """Watch the gradients of a model's parameters; return functions that take the hooks off again.

        A parameter that is watched already is not watched twice.
        """
        with self._guard:
            self._updates.add(model, prefix)
        if "gradient" in self._phases or "optimizer" in self._phases:
            self._owners = {**find_owners(model, prefix), **self._owners}
            for parameter in model.parameters():
                self._weights[id(parameter)] = parameter
                self._models.setdefault(id(parameter), prefix)
            self._buffers.setdefault(prefix, {}).update(model.named_buffers())
        self._active_phases = self._phases
        if "gradient" not in self._phases:
            return []
        # torch accepts this hook only on leaves that require a gradient.
        trained = [
            parameter
            for parameter in model.parameters()
            if parameter.requires_grad and parameter.is_leaf and id(parameter) not in self._hooked
        ]
        self._hooked.update(map(id, trained))
        return [parameter.register_post_accumulate_grad_hook(self._on_gradient).remove for parameter in trained]

    def name_masters(self, masters: Iterable[Tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Let master weights go by the names of the weights that they are copies of."""
        for master, parameter in masters:
            self._updates.name_master(master, parameter)
            if id(parameter) in self._owners:
                self._owners[id(master)] = self._owners[id(parameter)]

    def watch_optimizer(self, optimizer: torch.optim.Optimizer, pause: Undo, resume: Undo) -> Undo:
        """Watch the steps of an optimizer; return a function that ends it.

        The ``step`` of the object itself is replaced, because torch 2.1 calls no step hooks once its compiler was imported.

        Args:
            optimizer: The optimizer.
            pause: Called before a step: the operators that the optimizer runs are not recorded.
            resume: Called after it.
        """
        original, step = optimizer.__dict__.get("step"), optimizer.step

        def watched(_: torch.optim.Optimizer, *positional: Any, **keywords: Any) -> Any:
            """Run a step of the optimizer, and record the gradients before and the parameters after it."""
            self.read_gradients(optimizer)
            pause()
            try:
                result = step(*positional, **keywords)
            finally:
                resume()
            self.record_step(optimizer)
            return result

        replacement = types.MethodType(watched, optimizer)  # learning rate schedulers need a method, not a function

        def release() -> None:
            """Put the original step back, unless somebody has wrapped ours since."""
            if optimizer.__dict__.get("step") is replacement:
                del optimizer.__dict__["step"]
                if original is not None:
                    optimizer.__dict__["step"] = original
            self._active_phases = ()

        optimizer.__dict__["step"] = replacement
        return release

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        """Record a gradient, right after backward has added to it."""
        with self._guard:
            owner = self._owners[id(parameter)]
            choice = self._choose(owner, "gradient")
            if self._lines.failed or parameter.grad is None or choice.detail == NONE:
                return
            outputs = self._lines.describe([(owner.name, parameter.grad)], store=True, choice=choice)
            order = self._lines.emit(self._heading(owner, parameter, "gradient", {}), [], outputs)
            self._lines.sources.note_output(parameter.grad, (order, owner.name), wrote=True)

    def read_copies(self) -> None:
        """Read the script's own copies of the weights, such as a moving average, when the forward of a step begins.

        All that the end of the last step did to them is done by then, and nothing that comes before the optimizer of this one:
        an average that is updated before the weights in place of after them lags behind here, and nowhere else.
        """
        if self._copies is None and torch.is_grad_enabled() and "optimizer" in self._active_phases and not self._lines.failed:
            with self._guard:
                self._copies = self._describe_copies([(self._owners[key], each) for key, each in self._weights.items()])

    def _describe_copies(self, parameters: Iterable[Tuple[Owner, torch.Tensor]]) -> Dict[int, List[Record]]:
        """Return the records of the script's copies of some parameters, by ``id`` of the parameter."""
        recorded = [(owner, each) for owner, each in parameters if self._choose(owner, "optimizer").detail != NONE]
        models: Dict[str, Dict[str, torch.Tensor]] = {}  # each has copies of its own, with names that do not begin with its own
        for owner, parameter in recorded:
            model = self._models.get(id(parameter), "")
            name = join_names(owner.module, owner.name)
            models.setdefault(model, {})[name[len(model) + 1 :] if model else name] = parameter
        found: List[Tuple[str, Dict[int, torch.Tensor]]] = []
        beside: Dict[Optional[int], List[Tuple[str, int]]] = defaultdict(
            list
        )  # by parameter: buffers of its module, which go with it
        for model, named in models.items():
            buffers = self._buffers.get(model, {})
            found += find_copies(named, self._owners, buffers)
            first = {
                name.rpartition(".")[0]: id(named[name]) for name in reversed(list(named))
            }  # by module: its first parameter
            for name, buffer in buffers.items():
                module, _, own = name.rpartition(".")
                beside[first.get(module)].append((own, id(buffer)))
        copies: Dict[int, List[Record]] = {}
        for owner, parameter in recorded if found else ():
            choice = self._choose(owner, "optimizer")
            # Nothing computes with them, so that a sketch is enough.
            some = Choice("sketch", None) if choice.detail == "tensors" else choice
            wanted = [("", id(parameter)), *((".%s" % own, buffer) for own, buffer in beside[id(parameter)])]
            held = [
                ("%s.%s%s" % (owner.name, name, own), those[key])
                for name, those in found
                for own, key in wanted
                if key in those
            ]
            copies[id(parameter)] = self._lines.describe(held, store=True, choice=some)
            for record in copies[id(parameter)]:
                record["source"] = None
        return copies

    def read_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Read what the optimizer begins with: gradients and, so that its step can be computed again, weights and state."""
        with self._guard:
            self._given = {}
            self._updates.before_optimizer(optimizer)
            if "optimizer" not in self._active_phases or self._lines.failed:
                return
            for owner, parameter in self._recorded_parameters(optimizer):
                if parameter.grad is not None:
                    self._lines.note_write(parameter.grad)  # a gradient scaler writes without raising the version counter
                    choice = self._choose(owner, "optimizer")
                    given = self._lines.describe([(owner.name, parameter.grad)], store=True, choice=choice)
                    if choice.detail == "tensors" and self._lines.keeps_weights:
                        given += self._describe_before(optimizer, owner, parameter, choice)
                    self._given[id(parameter)] = given

    def _describe_before(
        self, optimizer: torch.optim.Optimizer, owner: Owner, parameter: torch.Tensor, choice: Choice
    ) -> List[Record]:
        """Return the records of a weight and of its state before the step."""
        tensors: List[TensorWithPath] = [("%s.%s" % (owner.name, BEFORE), parameter.detach())]
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                tensors.append(("%s.%s" % (owner.name, key), value))
        records = self._lines.describe(tensors, store=True, choice=choice)
        for record in records:  # like weights they outlive a step: no call of this step made them
            name = record["index"] if record["index"] != tensors[0][0] else owner.name
            record["weight"] = "%s.%s" % (owner.module, name) if owner.module else name
            record["source"] = None
        return records

    def record_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Record the parameters that had a gradient when the step began, and the optimizer's state of each."""
        with self._guard:
            self._updates.after_optimizer(optimizer)
            if "optimizer" in self._active_phases and not self._lines.failed:
                self._record_step(optimizer)

    def _record_step(self, optimizer: torch.optim.Optimizer) -> None:
        settings = [_describe_settings(optimizer, group) for group in optimizer.param_groups]
        groups = {id(parameter): number for number, group in enumerate(optimizer.param_groups) for parameter in group["params"]}
        recorded = list(self._recorded_parameters(optimizer))
        # Without a forward since the last step they are read here.
        copies = self._describe_copies(recorded) if self._copies is None else self._copies
        self._copies = None
        for owner, parameter in recorded:
            given = self._given.pop(id(parameter), None)
            if given is None:  # without a gradient, the optimizer leaves the parameter alone
                continue
            tensors: List[TensorWithPath] = [(owner.name, parameter.detach())]
            arguments = dict(settings[groups[id(parameter)]])
            for key, value in optimizer.state.get(parameter, {}).items():  # such as exp_avg, exp_avg_sq and step of Adam
                if isinstance(value, torch.Tensor):
                    tensors.append(("%s.%s" % (owner.name, key), value))
                elif isinstance(value, int):  # a count; other numbers and lists (of LBFGS) are results, which rounding moves
                    arguments[key] = format_argument(value)
            for _, tensor in tensors:  # fused kernels may write without raising the version counter
                self._lines.note_write(tensor)
            choice = self._choose(owner, "optimizer")
            outputs = self._lines.describe(tensors, store=True, returned=True, choice=choice)
            outputs += copies.get(id(parameter), [])
            self._lines.emit(self._heading(owner, parameter, "optimizer", arguments), given, outputs)

    def _recorded_parameters(self, optimizer: torch.optim.Optimizer) -> Iterator[Tuple[Owner, torch.Tensor]]:
        """Yield the parameters of an optimizer whose steps are recorded; those of no watched module belong to ``(outside)``."""
        for group, settings in enumerate(optimizer.param_groups):
            for number, parameter in enumerate(settings["params"]):
                owner = self._owners.get(id(parameter), Owner(OUTSIDE, "", "%d.%d" % (group, number)))
                if self._choose(owner, "optimizer").detail != NONE:
                    yield owner, parameter

    def _choose(self, owner: Owner, phase: str) -> Choice:
        return self._stack.choose("module", owner.module, owner.class_name, "", phase)

    def _heading(self, owner: Owner, parameter: torch.Tensor, phase: str, arguments: Dict[str, str]) -> Heading:
        key = (phase, id(parameter))
        number = self._runs.get(key, 0)
        self._runs[key] = number + 1
        module_call = ModuleCall(owner.module, owner.class_name, number, in_scope=True, compiled=False)
        return Heading("module", module_call, "", 0, _NO_SITE, False, arguments, phase)  # noqa: FBT003  a tuple's field


def _describe_settings(optimizer: torch.optim.Optimizer, group: Dict[str, Any]) -> Dict[str, str]:
    """Return the optimizer's class and the settings of a parameter group, as arguments of the step."""
    settings = {"optimizer": format_argument(_name_class(type(optimizer)))}
    for key, value in group.items():
        if key not in _NOT_SETTINGS:
            # A learning rate may be a tensor, which a compiled step needs.
            number = isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_meta
            settings[key] = format_argument(value.item() if number else value)
    return settings


def _name_class(kind: type) -> str:
    """Return the name of an optimizer's class, and behind it the class of torch that it is made of: ``Trainer(AdamW)``."""
    base = next((each.__name__ for each in kind.__mro__ if each.__module__.startswith("torch.optim")), "")
    return kind.__name__ if base in (kind.__name__, "", "Optimizer") else "%s(%s)" % (kind.__name__, base)
