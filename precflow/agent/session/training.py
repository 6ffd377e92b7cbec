"""Steps of the workload: a forward alone, or forward, loss, backward and optimizer as in training."""

from __future__ import annotations

import gc
import inspect
import math
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch._C import DisableTorchFunction

from precflow.agent.capture.wrappers import unwrap
from precflow.agent.contract import BACKWARD, O2, PHASES
from precflow.agent.failures import AgentError
from precflow.agent.session import precision, rank_group
from precflow.agent.session.precision import LossScale, MasterWeights
from precflow.agent.session.workload_model import element_type, place_model
from precflow.agent.workloads import resolve

if TYPE_CHECKING:
    from precflow.agent.request import Request

OF_BACKWARD = PHASES[PHASES.index(BACKWARD) :]  # phases that only a training step has

_KEYWORDS = inspect.Parameter.VAR_KEYWORD
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class ArgumentNames(NamedTuple):
    """The arguments that a function takes by name.

    Attributes:
        known: Names of its parameters.
        required: Those without a default.
        any_name: It takes every name, because it has ``**keywords``.
    """

    known: Tuple[str, ...]
    required: Tuple[str, ...]
    any_name: bool

    def takes(self, name: str) -> bool:
        """Tell whether an input is an argument of the function."""
        return self.any_name or name in self.known


class Training:
    """Runs the steps of a workload, from its first state on.

    Args:
        request: Gives workload, dtype and phases.
        model: The model, on its device.
        where: The device.

    Attributes:
        optimizer: ``None`` if the workload has none.
        losses: One number for each step; empty if steps are forwards alone.
        loss_scale: ``None`` if steps are forwards alone.
        rates_replaced: Largest number of parameter groups that were given another learning rate before a step.

    Raises:
        AgentError: ``bad_request``, ``untrusted`` or ``workload``: loss or optimizer are wrong.
    """

    def __init__(self, request: Request, model: torch.nn.Module, where: torch.device) -> None:
        self.losses: List[float] = []
        self.rates_replaced = 0
        self._model = model
        self._is_training = is_training(request)
        self._loss = _build_loss(request, where) if self._is_training else None
        self._forward_names = read_argument_names(unwrap(model).forward)
        self._loss_names = None if self._loss is None else read_argument_names(self._loss, skipped=1)
        # What the steps call: the ranks of a side train the model together.
        self._called = rank_group.wrap(request, model) if self._is_training else model
        self.optimizer = _build_optimizer(request, model) if self._is_training else None
        self._learning_rate = _read_learning_rate(request)
        self._precision, self._where = request.mixed_precision, where
        self._masters: Optional[MasterWeights] = None
        self.loss_scale = LossScale(request.mixed_precision) if self._is_training else None

    def begin_step(self) -> None:
        """Drop the gradients of the step before: as torch does it, they are ``None`` then, not 0."""
        if self._is_training and self.optimizer is not None and self._masters is None and self._precision.level == O2:
            self._masters = MasterWeights(self.optimizer)  # not before: weights are put back to their first state until here
        if self.optimizer is not None:
            self.optimizer.zero_grad()
        if self._is_training and (self.optimizer is None or self._masters is not None):
            self._model.zero_grad()

    @property
    def masters(self) -> List[Tuple[torch.Tensor, torch.Tensor]]:
        """What the optimizer trains in place of weights in 16 bits: each copy with its weight."""
        return [] if self._masters is None else self._masters.pairs

    def step(self, inputs: Dict[str, Any]) -> Any:
        """Run one step; return what the model returned if the step is a forward alone.

        Args:
            inputs: By name. Those that the model's forward does not take are given to the loss only.

        Raises:
            AgentError: ``workload``: there is no loss to go backward from.
        """
        if not self._is_training:
            with torch.no_grad(), self._compute():
                return self._called(**inputs)
        with torch.enable_grad():
            with self._compute():
                loss = self._forward(inputs)
            self._go_backward(loss)
        if self.optimizer is not None:
            self._train(self.optimizer)
        with DisableTorchFunction():  # reading the loss must not be recorded as operators of the model
            number = loss.detach()
            self.losses.append(math.nan if number.is_meta else float(number))  # a rehearsal computes no values
        return None

    @contextmanager
    def _compute(self) -> Iterator[None]:
        """Hold the contexts of mixed precision."""
        with ExitStack() as stack:
            for context in precision.computing(self._precision, self._where):
                stack.enter_context(context)
            yield

    def _go_backward(self, loss: torch.Tensor) -> None:
        scale = 1.0 if self.loss_scale is None else self.loss_scale.now
        if scale == 1.0:
            loss.backward()
            return
        with DisableTorchFunction():  # a product with the scale would be one more operator than the other side has
            seed = torch.full_like(loss, scale)
        loss.backward(gradient=seed)

    def _train(self, optimizer: torch.optim.Optimizer) -> None:
        """Make a step of the optimizer; a dynamic loss scale skips it if gradients overflowed."""
        if self._masters is not None:
            self._masters.take_gradients()
        scale = self.loss_scale
        made = scale is None or not self._precision.loss_scale or scale.unscale(optimizer)
        if made:
            if self._learning_rate is not None:
                self.rates_replaced = max(self.rates_replaced, set_learning_rate(optimizer, self._learning_rate))
            optimizer.step()
            if self._masters is not None:
                self._masters.give_back()
        if scale is not None:
            scale.update(len(self.losses), made=made)

    def end(self) -> None:
        """Let go of what the ranks trained together: its hooks at the gradients would act in the next run too."""
        if self._called is not self._model:
            self._called = self._model
            gc.collect()  # it refers to itself

    def _forward(self, inputs: Dict[str, Any]) -> torch.Tensor:
        loss_names = self._loss_names or ArgumentNames((), (), any_name=False)
        # An input goes to the forward if that names it, to the loss if that names it, to both if both do. A forward with
        # **keywords takes all others, but not what the loss names: that would often be the labels.
        given = {
            name: value
            for name, value in inputs.items()
            if name in self._forward_names.known or (self._forward_names.any_name and name not in loss_names.known)
        }
        missing = [name for name in loss_names.required if name not in inputs]
        if missing:
            message = "workload.loss wants %s; workload.inputs has %s" % (", ".join(missing), ", ".join(inputs) or "nothing")
            raise AgentError("workload", message, "let the inputs factory return it by that name too")
        unused = [name for name in inputs if name not in given and not loss_names.takes(name)]
        if unused:
            message = "workload.inputs: neither the model's forward nor the loss takes %s" % ", ".join(unused)
            raise AgentError("workload", message, "leave them out, or name them in the loss: def loss(output, %s)" % unused[0])
        output = self._called(**given)
        if self._loss is None:
            return _check_loss(find_own_loss(output), "the model's loss")
        of_loss = {name: value for name, value in inputs.items() if loss_names.takes(name)}
        return _check_loss(self._loss(output, **of_loss), "workload.loss")


def is_training(request: Request) -> bool:
    """Tell whether steps include a backward: the workload has a loss or an optimizer, or a phase asks for it."""
    named = any(request.workload.get(part) for part in ("loss", "optimizer"))
    return named or any(phase in OF_BACKWARD for phase in request.capture.phase)


def _read_learning_rate(request: Request) -> Optional[float]:
    """Return the learning rate that the request wants in every step; ``None`` leaves it to the optimizer.

    Raises:
        AgentError: ``bad_request``: it is no number from 0 up.
    """
    rate = request.workload.get("learning_rate")
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate < math.inf:
        raise AgentError("bad_request", "workload.learning_rate is %r; expected a number from 0 up" % (rate,))
    return float(rate)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> int:
    """Set the learning rate of every parameter group, right before a step: a schedule may have changed it since the last.

    Returns:
        The number of groups that had another one.
    """
    others = sum(float(group["lr"]) != rate for group in optimizer.param_groups)
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):  # a compiled step holds the tensor itself
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
    return others


def read_argument_names(function: Any, *, skipped: int = 0) -> ArgumentNames:
    """Return the names of the arguments that a function takes.

    Args:
        function: A function, or a module, whose forward is read.
        skipped: Number of leading parameters to leave out, because they are passed by position.
    """
    # The signature of a module is that of its __call__, which takes anything.
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = list(inspect.signature(called).parameters.values())[skipped:]
    except (TypeError, ValueError):  # some built-ins have none
        return ArgumentNames((), (), any_name=True)
    named = [each for each in parameters if each.kind in _BY_NAME]
    required = tuple(each.name for each in named if each.default is inspect.Parameter.empty)
    any_name = any(each.kind == _KEYWORDS for each in parameters)
    return ArgumentNames(tuple(each.name for each in named), required, any_name=any_name)


def find_own_loss(output: Any) -> Any:
    """Return the loss that a model computes itself: ``loss`` of its output, or a single number; ``None`` if there is none."""
    if isinstance(output, torch.Tensor):
        return output if output.dim() == 0 else None
    # The outputs of transformers are mappings and have an attribute too; other libraries return a dict or a plain object.
    loss = output.get("loss") if isinstance(output, Mapping) else None
    return getattr(output, "loss", None) if loss is None else loss


def _check_loss(loss: Any, who: str) -> torch.Tensor:
    """Return the loss if it is one number that backward can start from; ``who`` names what computed it.

    Raises:
        AgentError: ``workload``: it is not.
    """
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


def _build_loss(request: Request, where: torch.device) -> Any:
    """Return the function that the workload's loss factory makes, on the side's device; ``None`` without a factory."""
    spec = request.workload.get("loss")
    if not spec:
        return None
    loss = resolve.build(spec, key="workload.loss", trusted=request.trusted)
    if not callable(loss):
        returned = type(loss).__name__
        message = "workload.loss: %s returned a %s; expected a function loss(output, ...)" % (spec["_target_"], returned)
        raise AgentError("workload", message, "let it return the function, not what the function computes")
    if isinstance(loss, torch.nn.Module):  # it may have weights of its own, such as the weight of each class
        place_model(loss, element_type(request.dtype), where)
    return loss


def _build_optimizer(request: Request, model: torch.nn.Module) -> Optional[torch.optim.Optimizer]:
    spec = request.workload.get("optimizer")
    if not spec:
        if "optimizer" in request.capture.phase:
            step = "workload.optimizer._target_=torch.optim.AdamW workload.optimizer.lr=1e-3"
            raise AgentError("bad_request", "capture.phase has optimizer, and workload.optimizer is not set", step)
        return None
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # Torch's own optimizers call it `params`. A factory of the user may ask for the model, to group its weights by name.
    offered = {"params": trained, "parameters": trained, "model": model}
    optimizer = resolve.build(spec, key="workload.optimizer", trusted=request.trusted, **offered)
    if not isinstance(optimizer, torch.optim.Optimizer):
        returned = type(optimizer).__name__
        message = "workload.optimizer: %s returned a %s; expected a torch.optim.Optimizer" % (spec["_target_"], returned)
        raise AgentError("workload", message, "let it take `params` or `model` and return the optimizer")
    if read_argument_names(optimizer.step).required:
        message = "workload.optimizer: %s calls the step itself (a closure), which cannot be recorded" % spec["_target_"]
        raise AgentError("unsupported", message, "choose one whose step() takes nothing")
    return optimizer
