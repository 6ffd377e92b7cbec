"""How a step of the workload is run: a forward alone, or forward, loss, backward and optimizer as in training."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch._C import DisableTorchFunction

from precflow.agent.contract import BACKWARD, PHASES
from precflow.agent.failures import AgentError
from precflow.agent.session.workload_model import element_type, place_model
from precflow.agent.workloads import resolve

if TYPE_CHECKING:
    from precflow.agent.request import Request

OF_BACKWARD = PHASES[PHASES.index(BACKWARD) :]  # phases that only a training step has

_KEYWORDS = inspect.Parameter.VAR_KEYWORD
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Names(NamedTuple):
    """Which inputs a function takes by name; ``every`` one where it has ``**keywords``."""

    known: Tuple[str, ...]
    required: Tuple[str, ...]
    every: bool

    def takes(self, name: str) -> bool:
        """Tell whether an input is an argument of the function."""
        return self.every or name in self.known


class Training:
    """The steps of one run of the workload, from its first state on.

    Args:
        request: Its workload, dtype and phases count.
        model: Placed on its device.
        where: Its device.

    Attributes:
        optimizer: ``None`` where the workload has none.
        losses: One number a step; empty where steps are forwards alone.

    Raises:
        AgentError: ``bad_request``, ``untrusted`` or ``workload``: loss or optimizer are not what they should be.
    """

    def __init__(self, request: Request, model: torch.nn.Module, where: torch.device) -> None:
        self.losses: List[float] = []
        self._model = model
        self._trains = trains(request)
        self._loss = _loss(request, where) if self._trains else None
        self._of_forward = names_of(model.forward)
        self._of_loss = None if self._loss is None else names_of(self._loss, skipped=1)
        self.optimizer = _optimizer(request, model) if self._trains else None

    def begin_step(self) -> None:
        """Forget the gradients of the step before, as torch does: they are absent then, not 0."""
        if self.optimizer is not None:
            self.optimizer.zero_grad()
        elif self._trains:
            self._model.zero_grad()

    def step(self, inputs: Dict[str, Any]) -> None:
        """Run one step.

        Args:
            inputs: By name. Those that the model's forward does not take are the loss's alone.

        Raises:
            AgentError: ``workload``: there is no loss to go backward from.
        """
        if not self._trains:
            with torch.no_grad():
                self._model(**inputs)
            return
        with torch.enable_grad():
            loss = self._forward(inputs)
            loss.backward()
        if self.optimizer is not None:
            self.optimizer.step()
        with DisableTorchFunction():  # reading is nobody's operator
            number = loss.detach()
            self.losses.append(math.nan if number.is_meta else float(number))  # a rehearsal has no values

    def _forward(self, inputs: Dict[str, Any]) -> torch.Tensor:
        of_loss = self._of_loss or Names((), (), every=False)
        given = {
            name: value
            for name, value in inputs.items()
            if name in self._of_forward.known or (self._of_forward.every and name not in of_loss.known)
        }
        missing = [name for name in of_loss.required if name not in inputs]
        if missing:
            message = "workload.loss wants %s; workload.inputs has %s" % (", ".join(missing), ", ".join(inputs) or "nothing")
            raise AgentError("workload", message, "let the inputs factory return it by that name too")
        unused = [name for name in inputs if name not in given and not of_loss.takes(name)]
        if unused:
            message = "workload.inputs: neither the model's forward nor the loss takes %s" % ", ".join(unused)
            raise AgentError("workload", message, "leave them out, or name them in the loss: def loss(output, %s)" % unused[0])
        output = self._model(**given)
        if self._loss is None:
            return _checked(own_loss(output), "the model's loss")
        return _checked(self._loss(output, **{name: inputs[name] for name in inputs if of_loss.takes(name)}), "workload.loss")


def trains(request: Request) -> bool:
    """Tell whether steps go backward: the workload says how, or a phase asks for it."""
    named = any(request.workload.get(part) for part in ("loss", "optimizer"))
    return named or any(phase in OF_BACKWARD for phase in request.capture.phase)


def names_of(function: Any, *, skipped: int = 0) -> Names:
    """Return the names that a function takes, without its first ones.

    Args:
        function: A function, or a module, whose forward counts.
        skipped: How many leading parameters are given by position.
    """
    written = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = list(inspect.signature(written).parameters.values())[skipped:]
    except (TypeError, ValueError):  # some built-ins have none
        return Names((), (), every=True)
    named = [each for each in parameters if each.kind in _BY_NAME]
    required = tuple(each.name for each in named if each.default is inspect.Parameter.empty)
    return Names(tuple(each.name for each in named), required, every=any(each.kind == _KEYWORDS for each in parameters))


def own_loss(output: Any) -> Any:
    """Return the loss that a model computes itself: ``loss`` of its output, or a single number; ``None`` without one."""
    if isinstance(output, torch.Tensor):
        return output if output.dim() == 0 else None
    found = output.get("loss") if isinstance(output, Mapping) else None
    return getattr(output, "loss", None) if found is None else found


def _checked(loss: Any, who: str) -> torch.Tensor:
    """Return a loss as one number; ``who`` has computed it."""
    if loss is None and who != "workload.loss":
        message = "there is no loss to go backward from: the model's output has no `loss`, and workload.loss is not set"
        raise AgentError("workload", message, "workload.loss._target_=my_pkg.my_module.build, returning loss(output, labels)")
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        what = "%s of shape %s" % (loss.dtype, list(loss.shape)) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise AgentError("workload", "%s is %s; expected one floating point number" % (who, what), "such as its .mean()")
    if not loss.requires_grad:
        message = "%s depends on no parameter that is trained" % who
        raise AgentError("workload", message, "look for detach(), torch.no_grad() and frozen parameters")
    return loss.reshape(())


def _loss(request: Request, where: torch.device) -> Any:
    """Return the function that the workload's loss factory makes, on the side's device; ``None`` without a factory."""
    spec = request.workload.get("loss")
    if not spec:
        return None
    made = resolve.build(spec, key="workload.loss", trusted=request.trusted)
    if not callable(made):
        message = "workload.loss: %s returned a %s; expected a function loss(output, ...)" % (
            spec["_target_"],
            type(made).__name__,
        )
        raise AgentError("workload", message, "let it return the function, not what the function computes")
    if isinstance(made, torch.nn.Module):
        place_model(made, element_type(request.dtype), where)
    return made


def _optimizer(request: Request, model: torch.nn.Module) -> Optional[torch.optim.Optimizer]:
    spec = request.workload.get("optimizer")
    if not spec:
        if "optimizer" in request.capture.phase:
            step = "workload.optimizer._target_=torch.optim.AdamW workload.optimizer.lr=1e-3"
            raise AgentError("bad_request", "capture.phase has optimizer, and workload.optimizer is not set", step)
        return None
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    offered = {"params": trained, "parameters": trained, "model": model}
    made = resolve.build(spec, key="workload.optimizer", trusted=request.trusted, **offered)
    if not isinstance(made, torch.optim.Optimizer):
        message = "workload.optimizer: %s returned a %s; expected a torch.optim.Optimizer" % (
            spec["_target_"],
            type(made).__name__,
        )
        raise AgentError("workload", message, "let it take `params` or `model` and return the optimizer")
    if names_of(made.step).required:
        message = "workload.optimizer: %s calls the step itself (a closure), which cannot be recorded" % spec["_target_"]
        raise AgentError("unsupported", message, "choose one whose step() takes nothing")
    return made
