"""Watches a script from outside: global hooks of torch tell when models run and optimizers step, and recording follows them.

Between steps that are recorded, two global hooks are all there is. In a recorded step every module of the models that run has
hooks of its own, as in any other dump, from the first call of the step until its optimizer steps.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from contextlib import ExitStack, nullcontext
from types import FrameType
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    ContextManager,
    Dict,
    FrozenSet,
    List,
    NamedTuple,
    Optional,
    Protocol,
    Set,
    Tuple,
)

import torch
from torch.nn.modules import module as modules
from torch.nn.utils.parametrize import ParametrizationList
from torch.optim import optimizer as optimizers

from precflow.agent.capture import autograd
from precflow.agent.capture.module_hooks import Hook, RunningCall
from precflow.agent.capture.wrappers import is_compiled, is_compiling, unwrap
from precflow.agent.contract import join_names
from precflow.agent.script.launch import Stopper
from precflow.agent.script.loss_data import LossData
from precflow.agent.script.losses import Losses
from precflow.agent.script.models import Model, Models, describe_parameter, is_stepped, is_trained, list_held
from precflow.agent.script.scalers import Scalers
from precflow.agent.script.steps import Steps
from precflow.agent.session import determinism, workload_model
from precflow.agent.session.program import MOST_STEPS, digest_batch

if TYPE_CHECKING:
    from precflow.agent.capture.recorder import Recorder
    from precflow.agent.dump.writer import Writer
    from precflow.agent.script.batches import Batches

_TORCH_MODULES = modules.__file__
_MOST_UNSEEN = 8  # parameters that are named; finding each name takes a tenth of a second


class Settings(NamedTuple):
    """How a script is watched.

    Attributes:
        steps: Steps that are recorded.
        stop: End the script after the last of them.
        evaluation: Calls without gradients in evaluation mode are recorded, each as a step of its own.
        compiles: ``torch.compile`` compiles; if not, the inside of compiled modules is seen.
        dropout: Modules of the script keep their dropout.
        rank: Rank of this process.
    """

    steps: FrozenSet[int]
    stop: bool
    evaluation: bool
    compiles: bool
    dropout: bool
    rank: int = 0


class Listener(Protocol):
    """What is told about a run of a script while it is watched."""

    def meet(self, model: Model) -> None:
        """A model is about to run for the first time."""

    def begin_step(self, number: int) -> None:
        """A step begins, recorded or not."""

    def after_optimizer(self, step: int, call: int, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has stepped in a recorded step; ``call`` counts the steps of all optimizers from 0."""

    def around_recording(self) -> ContextManager[Any]:
        """Return what is entered for the time of a recorded step, below capture."""

    def seal(self) -> None:
        """Seal what was recorded: the script is about to be ended."""


class Watcher:
    """Watches one run of a script.

    Args:
        settings: How.
        recorder: Records the chosen steps; ``None`` if the script is only followed.
        writer: Closes each step when it has ended.
        listener: Told what happens; ``None`` for nobody.
        batches: Keeps or replaces what models are given, up to the last recorded step; ``None`` leaves everything as it is.

    Attributes:
        settings: The settings.
        steps: The steps so far.
        models: The models so far.
        calls: Name of a model that has weights -> its calls so far, recorded or not, in training and in evaluation.
        in_evaluation: Step -> number of calls that compute gradients in evaluation mode. Only models count that compute
            something else in that mode.
        evaluations: Number of calls that were taken for evaluation and not recorded.
        elsewhere: Number of calls of models in other threads, which are not recorded.
        unseen: Names of parameters that got a gradient though no module that holds them was seen to run.
        weights: Entries of the weights before the first step, by name; a model without them was met later.
        devices: Kinds of devices that weights were on in calls that were recorded.
        inputs: Entries of the inputs of each recorded call of a model, by name.
        order: Step -> digest of the first batch that a model was given in it, of the first steps.
        losses: Losses of the recorded steps: step -> each number that ``backward`` was called on, one for a micro batch.
        dropouts: Names of the modules whose dropout was removed and would have acted: they ran in training mode.
    """

    def __init__(
        self,
        settings: Settings,
        recorder: Optional[Recorder] = None,
        writer: Optional[Writer] = None,
        listener: Optional[Listener] = None,
        batches: Optional[Batches] = None,
    ) -> None:
        self.steps = Steps()
        self.models = Models()
        self.calls: Dict[str, int] = {}
        self.in_evaluation: Dict[int, int] = {}
        self._act_in_training: Set[int] = set()  # ids of models that compute something else in evaluation
        self.evaluations = self.elsewhere = 0
        self.unseen: List[str] = []
        self.weights: Dict[str, Any] = {}
        self.devices: Set[str] = set()
        self.inputs: Dict[str, Any] = {}
        self.order: Dict[str, str] = {}
        self.losses: Dict[int, List[float]] = {}
        self.dropouts: List[str] = []
        self._idle_dropouts: Dict[str, torch.nn.Module] = {}  # whose dropout was removed, and that have not run in training yet
        self.settings, self._recorder, self._writer, self._listener = settings, recorder, writer, listener
        self._batches = batches
        quiet: ContextManager[Any] = nullcontext() if recorder is None else recorder.without_recording()
        self._loss_data = None if batches is None else LossData(batches, quiet, self._is_outside)
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._global = ExitStack()  # hooks of the whole run
        self._step = ExitStack()  # what a recorded step has set up
        self._recording: Optional[int] = None  # the step whose records are open
        self._attached: Dict[int, Model] = {}  # id of the top -> model with hooks in this step
        self._seen: Set[str] = set()  # names of modules that ran in a recorded step, and of models that ran at all
        self._outermost: Optional[torch.nn.Module] = None  # the module whose call is outermost now
        self._is_ignored = False  # the outermost call is an evaluation
        self._is_loss = False  # the outermost call is that of a module without parameters
        self._calls = 0  # of models in this step, where their inputs are hashed
        self._exchanged = 0  # the same, where batches are kept or replaced
        self._optimizer_calls = 0  # from the beginning of the script
        self._scalers = Scalers()
        self._depth = 0  # optimizers that call other optimizers
        self._in_closure = False
        self._is_sealed = False  # the script was asked to end
        self._stopper = Stopper()

    # On and off

    def __enter__(self) -> Watcher:  # noqa: PYI034  Self came with Python 3.11
        """Set the global hooks."""
        for remove in (
            optimizers.register_optimizer_step_pre_hook(self._before_step).remove,
            optimizers.register_optimizer_step_post_hook(self._after_step).remove,
        ):
            self._global.callback(remove)
        self._listen()
        return self

    def __exit__(self, *error: object) -> None:
        """Take every hook off; the step that is open ends."""
        self._global.close()
        if self._loss_data is not None and error[0] is None:
            self._loss_data.finish_step()
        self._end_step()

    def _listen(self) -> None:
        for remove in (
            modules.register_module_forward_pre_hook(self._before_forward).remove,  # type: ignore[arg-type]  # it may return new arguments
            modules.register_module_forward_hook(self._after_forward, always_call=True).remove,
        ):
            self._global.callback(remove)

    # Modules

    def _before_forward(self, module: torch.nn.Module, positional: Tuple[Any, ...]) -> Optional[Tuple[Any, ...]]:
        # First of all lines: what is traced by a compiler folds this away, and neither breaks nor compiles again.
        if is_compiling() or self._outermost is not None or not self._is_mine():
            return None
        frame = sys._getframe(1)  # noqa: SLF001  the frame of torch that runs this hook: a global hook is given no keywords
        if _is_made_by_compiler(module) or (not self._optimizer_calls and _is_construction(module, frame)):
            self._outermost, self._is_ignored = module, True  # no module of the script, or none that is used as a model
            return None
        if not self._in_closure:
            self._depth = 0  # an optimizer that raised was never seen to end
        model = self._find_model(module, frame)
        self._end_skipped_step()
        self._stop_if_done()
        self._note_dropouts(model)
        is_evaluation = self._is_evaluation(module, model)
        self._outermost, self._is_ignored = module, is_evaluation and not self.settings.evaluation
        self._is_loss = not any(True for _ in model.top.parameters())
        if self._is_ignored:
            self.evaluations += 1
            if self._recording is not None and self._recorder is not None:
                self._recorder.pause()
            return None
        if is_evaluation:  # recorded, each call of a model as a step of its own; a loss module belongs to the call before it
            if any(True for _ in model.top.parameters()):
                self.steps.begin()
                self._begin_step()
        elif self.steps.begin_forward():
            self._begin_step()
        self._seen.add(model.name)
        self._note_mode(model)
        call = RunningCall(module, positional, _find_keywords(frame))
        if self._recording is None:
            self._note_order(model, call)
        return self._take_call(model, call) if self._recording is not None or self._batches is not None else None

    def _after_forward(self, module: torch.nn.Module, positional: Any, result: Any) -> None:
        del positional
        if is_compiling() or module is not self._outermost or not self._is_mine():
            return
        self._outermost = None
        if self._loss_data is not None and not (self._is_ignored or self._is_loss):
            self._loss_data.note_output(result)
        if self._is_ignored and self._recording is not None and self._recorder is not None and not self.steps.has_stepped:
            self._recorder.resume()
        if self.settings.evaluation and not self._is_ignored and not torch.is_grad_enabled():
            self.steps.end_optimizer()  # the step of an evaluation ends with its call

    def _take_call(self, model: Model, call: RunningCall) -> Optional[Tuple[Any, ...]]:
        """Record an outermost call, after its batch was kept or replaced; return its new positional arguments, if any."""
        changed = None
        # A loss module is given what a model has computed.
        is_shared = self.steps.number <= max(self.settings.steps) and any(True for _ in model.top.parameters())
        if self._batches is not None and is_shared:
            with ExitStack() if self._recording is None or self._recorder is None else self._recorder.without_recording():
                changed = self._batches.exchange(self.steps.number, self._exchanged, call.positional, call.keywords)
            self._exchanged += 1
        if self._recording is not None:
            self._record_call(model, call if changed is None else call._replace(positional=changed))
        return changed

    def _find_model(self, module: torch.nn.Module, frame: FrameType) -> Model:
        """Return the model whose call begins, and count the call."""
        known = len(self.models.known)
        model = self.models.find(module, frame)
        if len(self.models.known) > known:
            self._meet(model)
        if any(True for _ in model.top.parameters()):
            self.calls[model.name] = self.calls.get(model.name, 0) + 1
        return model

    def _meet(self, model: Model) -> None:
        """Get to know a model before its first forward."""
        if self._listener is not None:
            self._listener.meet(model)
        if any(weight.requires_grad for weight in model.top.parameters()) and determinism.acts_in_training(model.top):
            self._act_in_training.add(id(model.top))
        if not self.settings.dropout:
            removed = determinism.remove_dropout(model.top)
            self._idle_dropouts.update({join_names(model.name, name): each for name, each in removed.items()})
        # After a step, a model that no optimizer trains may be an average of one: then its weights are results, and no start.
        if not self._optimizer_calls or is_stepped(model.top):
            entries = workload_model.hash_weights(model.top, rounded=True)["entries"]
            self.weights.update({join_names(model.name, name): entry for name, entry in entries.items()})
        trained = [weight for weight in model.top.parameters() if weight.requires_grad and weight.is_leaf]
        for weight in {id(each): each for each in (*trained[:1], *trained[-1:])}.values():
            self._global.callback(weight.register_hook(Hook(self._on_gradient, weight)).remove)

    def _note_mode(self, model: Model) -> None:
        """Count a call in evaluation mode that computes gradients, of a model that then computes something else."""
        if not model.top.training and id(model.top) in self._act_in_training and torch.is_grad_enabled():
            self.in_evaluation[self.steps.number] = self.in_evaluation.get(self.steps.number, 0) + 1

    def _note_dropouts(self, model: Model) -> None:
        """Note which removed dropouts of a model that is about to run would have acted."""
        if not self._idle_dropouts:
            return
        inside = {id(module) for module in model.top.modules()}
        acting = [name for name, module in self._idle_dropouts.items() if module.training and id(module) in inside]
        self.dropouts += acting
        for name in acting:
            del self._idle_dropouts[name]

    @staticmethod
    def _is_evaluation(module: torch.nn.Module, model: Model) -> bool:
        """Tell whether a call is evaluation: no gradients, and a model that is trained but not now, or a loss beside one.

        A frozen teacher is part of the training step.
        """
        if torch.is_grad_enabled():
            return False
        return (is_trained(model.top) and not module.training) or not any(True for _ in model.top.parameters())

    def _record_call(self, model: Model, call: RunningCall) -> None:
        recorder = self._recorder
        assert recorder is not None
        self.devices.update(weight.device.type for weight in model.top.parameters())
        with recorder.without_recording():
            self._hash_inputs(model, call)
        if id(model.top) not in self._attached:
            self._attached[id(model.top)] = model
            top = model.top
            if self.settings.compiles and is_compiled(call.module):
                top = call.module  # the wrapper stands for the model: what is inside it cannot be seen
            recorder.add_model(top, model.name, call)

    def _hash_inputs(self, model: Model, call: RunningCall) -> None:
        """Hash what a model is given: sides that were fed different batches cannot be compared."""
        entries = self._read_batch(model, call)
        if not entries:
            return
        self._note_batch(entries)
        name = ("rank%d." % self.settings.rank if self.settings.rank else "") + "step%d" % self.steps.number
        name += ".call%d" % self._calls if self._calls else ""
        self._calls += 1
        prefix = join_names(name, model.name)
        self.inputs.update({join_names(prefix, path): entry for path, entry in entries.items()})

    @staticmethod
    def _read_batch(model: Model, call: RunningCall) -> Dict[str, Any]:
        """Return the entries of what a model is given, by path; none for a loss, which is given what a model has computed."""
        if not any(True for _ in model.top.parameters()):
            return {}
        given: Dict[Any, Any]
        try:
            given = dict(inspect.signature(unwrap(call.module).forward).bind(*call.positional, **call.keywords).arguments)
        except (TypeError, ValueError):  # the arguments do not fit; the call itself will raise the error
            given = {**dict(enumerate(call.positional)), **call.keywords}
        entries: Dict[str, Any] = workload_model.hash_inputs(given)["entries"]
        return entries

    def _note_order(self, model: Model, call: RunningCall) -> None:
        """Note the first batch of a step that is not recorded."""
        if self.steps.number < MOST_STEPS and "step %04d" % self.steps.number not in self.order:
            with self._quietly():
                self._note_batch(self._read_batch(model, call))

    def _note_batch(self, entries: Dict[str, Any]) -> None:
        """Note the digest of the first batch of a step: two sides that read their data in another order are told apart."""
        step = "step %04d" % self.steps.number
        if entries and self.steps.number < MOST_STEPS and step not in self.order:
            self.order[step] = digest_batch(entries)

    # Steps

    def _begin_step(self) -> None:
        """Begin the step that ``steps`` has just counted."""
        self._end_step()
        number, self._calls, self._exchanged = self.steps.number, 0, 0
        with self._quietly():
            self._scalers.find() if number <= 1 else self._scalers.begin_step()  # some are made after the first forward
        if self._batches is not None:
            self._batches.begin_step()
            self._begin_loss_data(number)
        if self._listener is not None:
            self._listener.begin_step(number)
        if self._recorder is None or number not in self.settings.steps:
            return
        self._recording = number
        if self._listener is not None:
            self._step.enter_context(self._listener.around_recording())
        self._recorder.begin_step(number)
        self._step.enter_context(self._recorder.listen())
        for model in self.models:
            # The generator of a GAN has run in the critic's step, and is trained in its own without another call.
            if model.name in self._seen and is_trained(model.top):
                self._recorder.add_parameters(model.top, model.name)
        check = {} if self._batches is None else {"check": self._batches.check_loss}
        losses = Losses(self._recorder.without_recording(), find_scale=self._scalers.find_scale, **check)
        self._step.callback(self._note_loss, losses)
        losses.start()
        self._step.callback(losses.stop)

    def _begin_loss_data(self, number: int) -> None:
        """Listen to what losses are computed with, up to the last recorded step."""
        if self._loss_data is None:
            return
        self._loss_data.begin_step(number)
        if number == 0:
            self._loss_data.start()
            self._global.callback(self._loss_data.stop)
        elif number > max(self.settings.steps):
            self._loss_data.stop()

    def _is_outside(self) -> bool:
        """Tell whether the script itself computes, or a loss module, and no model and no optimizer."""
        in_model = self._outermost is not None and (self._is_ignored or not self._is_loss)
        return not in_model and not self._depth and self._is_mine()

    def _end_skipped_step(self) -> None:
        """End a step that a gradient scaler has skipped, when the next iteration begins."""
        if not self.steps.awaits_optimizer:
            return
        with self._quietly():
            skipped = self._scalers.have_skipped()
        if skipped:
            self.steps.skip()
            if self._recording is not None:
                self._end_recording()

    def _quietly(self) -> ContextManager[Any]:
        """Return what is held while the watcher computes with tensors of the script."""
        return ExitStack() if self._recorder is None else self._recorder.without_recording()

    def _note_loss(self, losses: Losses) -> None:
        if losses.values and self._recording is not None:
            self.losses[self._recording] = losses.values

    def _end_recording(self) -> None:
        """Take the hooks and modes of a step off; further optimizers may still step in it."""
        self._step.close()
        self._attached.clear()

    def _end_step(self) -> None:
        if self._recording is None:
            return
        self._end_recording()
        assert self._recorder is not None
        self._recorder.end_step()
        self._recorder.flush()
        if self._writer is not None:
            self._writer.close_step(self._recording, self.settings.rank)
        self._recording = None

    # Gradients and optimizers

    def _on_gradient(self, weight: torch.Tensor, gradient: torch.Tensor) -> None:
        del gradient
        if os.getpid() == self._process:
            self.steps.note_gradient(id(weight), first=weight.grad is None and not self._in_closure)

    def _before_step(self, optimizer: torch.optim.Optimizer, positional: Any, keywords: Dict[str, Any]) -> Any:
        if os.getpid() != self._process:
            return None
        self._depth += 1
        if self._depth > 1:
            return None
        if self.steps.has_stepped:
            self._stop_if_done(again=id(optimizer))
        if self.steps.begin_optimizer(id(optimizer)):
            self._begin_step()
        # torch gives the optimizer itself as the first of the positional arguments.
        closure = positional[1] if len(positional) > 1 else keywords.get("closure")
        if closure is None:
            self._read_gradients(optimizer)
            return None
        watched = self._watch_closure(optimizer, closure)
        if len(positional) > 1:
            return (positional[0], watched, *positional[2:]), keywords
        return positional, {**keywords, "closure": watched}

    def _watch_closure(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return a closure that is recorded: forward and backward run inside the step, and leave the gradients behind."""

        def watched() -> Any:
            """Run the closure as part of the step, and read the gradients that it leaves."""
            depth, self._depth, self._in_closure = self._depth, 0, True
            if self._recording is not None and self._recorder is not None:
                self._recorder.resume()
            try:
                result = closure()
            finally:
                self._depth, self._in_closure = depth, False
            self._read_gradients(optimizer)
            return result

        return watched

    def _read_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        if self._recorder is None:
            return
        if self._recording is None:
            self._recorder.updates.before_optimizer(optimizer, self.steps.number)
            return
        self._recorder.pause()  # the operators of the optimizer itself are not recorded
        self._note_unseen(optimizer)
        self._recorder.read_gradients(optimizer)

    def _after_step(self, optimizer: torch.optim.Optimizer, positional: Any, keywords: Any) -> None:
        del positional, keywords
        if os.getpid() != self._process:
            return
        self._depth -= 1
        if self._depth:
            return
        self.steps.end_optimizer()
        self._optimizer_calls += 1
        if self._recording is not None and self._recorder is not None:
            self._recorder.record_optimizer(optimizer)
            if self._listener is not None:
                with self._recorder.without_recording():
                    self._listener.after_optimizer(self._recording, self._optimizer_calls - 1, optimizer)
            if self._outermost is None:  # a hook that is taken off during its own call would run once more, without keywords
                self._end_recording()

    def _note_unseen(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the parameters that have a gradient though no module around them was seen to run.

        That is how modules look that are compiled in place, called by compiled code, or replaced by functions. What no module
        holds was left out by none: a factor of the loss that is learned, or the copies in float32 of weights in 16 bits.
        """
        seen = {id(weight) for model in self.models if model.name in self._seen for weight in model.top.parameters()}
        given = [weight for group in optimizer.param_groups for weight in group["params"]]
        strange = [weight for weight in given if weight.grad is not None and id(weight) not in seen]
        held = list_held() if strange else set()
        for weight in strange:
            if id(weight) in held and len(self.unseen) < _MOST_UNSEEN:
                name = describe_parameter(weight)
                self.unseen += [name] if name not in self.unseen else []

    # The end

    def _stop_if_done(self, again: int = 0) -> None:
        """End the script if everything is recorded.

        Args:
            again: The optimizer that is about to step; it belongs to the step before if it has not stepped in it.
        """
        if not (self.settings.stop and self.steps.has_stepped and self.steps.number >= max(self.settings.steps)):
            return
        if again and not self.steps.has_optimizer(again):
            return
        if not self._is_sealed:
            self._is_sealed = True
            if self._loss_data is not None:
                self._loss_data.finish_step()
            self._end_step()
            if self._listener is not None:
                self._listener.seal()
        self._stopper.stop()

    def _is_mine(self) -> bool:
        """Tell whether the script itself runs: not a forked worker, another thread, or what a checkpoint computes again."""
        if os.getpid() != self._process:
            return False
        if threading.get_ident() != self._thread:
            self.elsewhere += not autograd.is_in_backward()
            return False
        return not autograd.is_in_backward()


def _is_made_by_compiler(module: torch.nn.Module) -> bool:
    return type(module).__name__ == "GraphModule" and not any(True for _ in module.parameters())


def _is_construction(module: torch.nn.Module, frame: Optional[FrameType]) -> bool:
    """Tell whether a module runs because a model is made, and not as a model.

    Spectral and weight norm compute a weight when they are put on, and whenever it is read (``init.normal_(layer.weight)``). An
    ``__init__`` may run a part to see which shape it returns. All of that is before the data are made.
    """
    if isinstance(module, ParametrizationList):
        return True
    while frame is not None:
        code = frame.f_code
        made = frame.f_locals.get(code.co_varnames[0]) if code.co_name == "__init__" and code.co_argcount else None
        if issubclass(type(made), torch.nn.Module):
            return True
        frame = frame.f_back
    return False


def _find_keywords(frame: Optional[FrameType]) -> Dict[str, Any]:
    """Return the keyword arguments of the module call that torch runs in a frame."""
    for _ in range(3):  # newer versions run hooks in a function inside the one that has the arguments
        if frame is None or frame.f_code.co_filename != _TORCH_MODULES:
            break
        keywords = frame.f_locals.get("kwargs")
        if isinstance(keywords, dict):
            return keywords
        frame = frame.f_back
    return {}
