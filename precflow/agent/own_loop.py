"""``precflow.capture``: record a model inside a training loop of your own, without a recipe and without the judge.

It needs only torch, so it works from ``precflow-agent.pyz`` in a container where nothing may be installed. Seeds, data, devices
and exceptions of the loop are left alone; all hooks and modes are off again when the block ends::

    with precflow.capture(model, "dumps/target", optimizer=optimizer, step=[0, 1]) as recording:
        for batch in batches:
            train(model, optimizer, batch)
            recording.step()
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import traceback
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type, Union

from precflow.agent.contract import API, ERROR_FILE, FORWARD, HEADER_FILE, PHASES, REQUEST_SCHEMA
from precflow.agent.failures import AgentError
from precflow.agent.request import Request, parse, runs_eagerly

if TYPE_CHECKING:
    import torch

    from precflow.agent.devices.protocol import Device

_MOST_LETTERS = 60  # of a text that an error repeats
OneOrMore = Union[str, Sequence[str]]
_DUMP_FILES = re.compile(
    r"%s|%s|facts\.json|agent\.log|rank\d+|(writer-rank\d+\.lock)|(last-call-rank\d+)|.*\.part" % (HEADER_FILE, ERROR_FILE)
)


def capture(  # noqa: PLR0913  what a recipe's section `capture` may say, by the same names
    model: torch.nn.Module,
    folder: Union[str, os.PathLike[str]],
    *,
    optimizer: Optional[torch.optim.Optimizer] = None,
    side: str = "target",
    name: str = "",
    level: OneOrMore = ("module", "api"),
    phase: Optional[OneOrMore] = None,
    scope: OneOrMore = ("*",),
    step: Union[int, Sequence[int]] = (0,),
    detail: str = "tensors",
    rules: Sequence[Mapping[str, Any]] = (),
    budget: int = 0,
    keep_last: int = 0,
    fine: bool = False,
    weights: str = "kept",
    compiled: str = "kept",
    overwrite: bool = False,
) -> Recording:
    """Return a context manager that records what a model computes, and seals the dump when its block ends.

    Call ``step()`` on it after each step of the loop. In a group of processes, every rank calls this function with the same
    folder, which all of them can write to; rank 0 seals it. Records have the same names as those of a recipe, so the two kinds
    of dump can be compared. No seed, switch, dropout or device is changed: losses, gradients and weights keep their bits.

    Args:
        model: The model, on its device and in its element type.
        folder: Where the dump goes; created if it does not exist.
        optimizer: Record its steps too. With an optimizer, all phases are recorded unless ``phase`` says otherwise.
        side: ``reference``, ``target`` or ``golden``.
        name: Name of what is compared: dumps with two different names are refused, ``""`` goes with any.
        level: Some of ``module``, ``api``, ``operator``.
        phase: Some of ``forward``, ``backward``, ``gradient``, ``optimizer``; ``forward`` alone without an optimizer.
        scope: Patterns of module names; only these modules are recorded.
        step: Numbers of the steps that are recorded, from 0.
        detail: ``digest``, ``statistics``, ``sketch`` or ``tensors``.
        rules: Another detail, or only a part of each tensor, for calls that match, as in ``capture.rules`` of a recipe.
        budget: Largest size of the dump in bytes; 0 means no limit.
        keep_last: Number of steps that are kept: the last ones, and those around a NaN; 0 keeps all.
        fine: Sketches resolve relative differences of 3e-8 instead of 3e-7, at twice the size.
        weights: ``left_out`` keeps weights that go into a call out of detail ``tensors``, which stores each once.
        compiled: ``eager`` runs compiled modules and functions as they were written while the block lasts, so that their inside
            is recorded; ``kept`` records them at their boundary.
        overwrite: Replace a dump that is already in the folder.

    Raises:
        AgentError: ``bad_request``: an argument is wrong, a pattern matches no module, or the folder holds something else.
    """
    import torch

    from precflow.agent.capture.wrappers import is_compiled, runs_compiled_code_eagerly, unwrap
    from precflow.agent.recording import check_capture
    from precflow.agent.selection import check_scope

    if side not in ("reference", "target", "golden"):
        raise AgentError("bad_request", "side is %r; expected reference, target or golden" % (side,))
    _check_kinds(model, folder, optimizer)
    device = _device_of(model)
    request = parse(
        {
            "schema": REQUEST_SCHEMA,
            "action": "dump",
            "side": side,
            "recipe": name,
            "output": os.fspath(folder),
            "device": [device.kind],
            "dtype": _dtype_of(model),
            # The loop sets its own seeds and switches. These values say in the header that nothing was changed.
            "determinism": {
                "seed": "script",
                "algorithms": "native",
                "random_numbers": "device",
                "dropout": "kept",
                "repeat": False,
            },
            "capture": {
                "level": _as_list(level),
                "phase": _as_list(phase if phase is not None else (FORWARD,) if optimizer is None else PHASES),
                "scope": _as_list(scope),
                "step": [step] if isinstance(step, int) else list(step),
                "detail": detail,
                "rules": list(rules),
                "budget": budget,
                "keep_last": keep_last,
                "fine": fine,
                "weights": weights,
                "compiled": compiled,
            },
        }
    )
    check_capture(request)
    check_scope(request.capture.scope, unwrap(model), request.capture.rules)
    if runs_eagerly(request) and not runs_compiled_code_eagerly() and any(map(is_compiled, model.modules())):
        message = "compiled='eager', and torch %s cannot run a compiled model as it was written" % torch.__version__
        raise AgentError("unsupported", message, "capture the model before torch.compile, or use torch 2.6 or newer")
    return Recording(model, optimizer, request, device, overwrite=overwrite)


class Recording:
    """The context manager that :func:`capture` returns; it can be entered once.

    Attributes:
        folder: Where the dump is written.
        number: The step that runs now, from 0.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optional[torch.optim.Optimizer],
        request: Request,
        device: Device,
        *,
        overwrite: bool = False,
    ) -> None:
        self.folder = request.output
        self.number = 0
        self._model, self._optimizer, self._request, self._device = model, optimizer, request, device
        self._overwrite = overwrite
        self._wanted = frozenset(request.capture.step)
        self._rank, self._ranks = _rank_and_size()
        self._inputs: Dict[str, Any] = {}
        self._losses: Dict[int, List[float]] = {}  # step -> what backward was called on, one number for each micro batch
        self._calls = 0  # of the model in this step
        self._calls_in_all = 0
        self._calls_before = 0  # of any module, before this step
        self._empty: List[int] = []  # recorded steps without a call of the model or any record
        self._is_open = self._was_open = False
        self._asked_whether_done = False  # the loop was told that it may end
        self._block = ExitStack()  # undone when the block ends
        self._watching = ExitStack()  # undone when a recorded step ends

    @property
    def records(self) -> int:
        """Number of records so far: tensors that went into or came out of a recorded call."""
        return self._recorder.records

    @property
    def done(self) -> bool:
        """Every requested step has been recorded, so the loop may end."""
        is_done = self.number > max(self._wanted)
        self._asked_whether_done |= is_done
        return is_done

    def __enter__(self) -> Recording:  # noqa: PYI034  Self came with Python 3.11
        """Begin step 0.

        Raises:
            AgentError: The folder cannot be written to, or holds something else; or the block was entered before.
        """
        from precflow.agent.capture.module_hooks import watch_calls
        from precflow.agent.capture.wrappers import compile_nothing, find_boundary, unwrap
        from precflow.agent.recording import OpenDump, make_writer
        from precflow.agent.session import garbage, workload_model

        if self._was_open:
            message = "this recording has had its block, which can be entered once"
            raise AgentError("bad_request", message, "call precflow.capture(...) anew for each `with` block")
        _prepare_folder(self.folder, overwrite=self._overwrite)
        self._writer = make_writer(self._request, self.folder, on_cpu=self._device.name == "cpu", rank=self._rank)
        try:
            self._dump = OpenDump(self._request, self._device, self._writer, rank=self._rank)
            self._recorder = self._dump.recorder
            self._weights = workload_model.hash_weights(self._model, rounded=True)
            self._block.enter_context(garbage.collect_rarely())
            eager = runs_eagerly(self._request)
            self._block.enter_context(compile_nothing(unless=not eager))
            self._block.callback(watch_calls(unwrap(self._model) if eager else find_boundary(self._model), self._before_call))
            self._is_open = self._was_open = True
            self._begin_step()
        except BaseException as error:
            self._abandon(error)
            raise
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        """End the running step and seal the dump. After an exception the dump keeps what was recorded, without a seal.

        Raises:
            AgentError: The dump cannot be written, nothing was recorded, or a requested step never came.
        """
        if error is not None:
            self._abandon(error)
            return
        try:
            if self._has_run:  # the last step, which step() has not ended
                self._end_step()
                self.number += 1
            self._is_open = False
            self._watching.close()
            self._block.close()
            self._check_complete()
            self._seal()
        except BaseException as problem:
            self._abandon(problem)
            raise

    def step(self) -> None:
        """Note that a step of the loop has ended.

        Raises:
            AgentError: The dump cannot be written any further, or the block has not begun or is over.
        """
        if not self._is_open:
            state = "is over" if self._was_open else "has not begun"
            message = "step() was called outside of the block of precflow.capture, which %s: nothing would be recorded" % state
            raise AgentError("bad_request", message, "with precflow.capture(...) as recording: ... recording.step()")
        self._end_step()
        self.number += 1
        self._begin_step()

    def _begin_step(self) -> None:
        self._calls = 0
        if self.number not in self._wanted:
            return
        self._calls_before = self._recorder.module_calls
        self._recorder.begin_step(self.number)
        self._watching.enter_context(self._recorder.watch(self._model, self._optimizer))
        if set(self._request.capture.phase) != {FORWARD}:
            self._read_losses()

    def _read_losses(self) -> None:
        from precflow.agent.script.losses import Losses

        losses = Losses(self._recorder.without_recording())
        self._losses[self.number] = losses.values
        losses.start()
        self._watching.callback(losses.stop)

    @property
    def _has_run(self) -> bool:
        """The model, or a module of it, was called in the step that runs now."""
        return bool(self._calls) or (self.number in self._wanted and self._recorder.module_calls > self._calls_before)

    def _end_step(self) -> None:
        if self.number in self._wanted:
            if not self._has_run:
                self._empty.append(self.number)
            self._watching.close()
            self._recorder.end_step()
            self._writer.close_step(self.number, self._rank)

    def _before_call(self, module: torch.nn.Module, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Count a call of the model, in any step, and hash what it is given in a recorded one.

        It is called before any hook of the recorder, so that the inputs are those that the loop passes.
        """
        from precflow.agent.capture import autograd

        if autograd.is_in_backward():  # a checkpoint around the model computes it again
            return
        if self.number in self._wanted:
            self._hash_inputs(module, arguments, keywords)
        self._calls += 1
        self._calls_in_all += 1

    def _hash_inputs(self, module: torch.nn.Module, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Hash the inputs of a call of the model: two dumps are compared only if both sides were given the same."""
        from precflow.agent.capture.wrappers import unwrap
        from precflow.agent.session import workload_model

        try:
            given: Dict[Any, Any] = dict(inspect.signature(unwrap(module).forward).bind(*arguments, **keywords).arguments)
        except (TypeError, ValueError):  # the arguments do not fit; the call itself will raise the error
            given = {**dict(enumerate(arguments)), **keywords}
        name = "rank%d." % self._rank if self._rank else ""
        name += "step%d" % self.number + (".call%d" % self._calls if self._calls else "")
        with self._recorder.without_recording():
            self._inputs.update(workload_model.hash_inputs(given, name)["entries"])

    def _check_complete(self) -> None:
        """Make sure that each requested step was recorded, in the phases that were asked for.

        Raises:
            AgentError: ``workload``: what is missing, and what to do.
        """
        kind = type(self._model).__name__
        if not self._recorder.module_calls and not self._calls_in_all:
            message = "nothing was recorded: no call of %s was seen inside the block" % kind
            step = "pass the model whose forward the loop calls; if compiled code calls it, compiled='eager' shows its inside"
            raise AgentError("workload", message, step)
        missed = sorted(number for number in self._wanted if number >= self.number)
        if missed:
            message = "%s should have been recorded, but the loop ended after %d" % (_steps_in_words(missed), self.number)
            raise AgentError("workload", message, "call step() after each step of the loop, or ask for fewer: step=[0]")
        if self._empty:
            message = "%s should have been recorded, and no call of %s was seen there" % (_steps_in_words(self._empty), kind)
            raise AgentError("workload", message, "call step() once after each step of the loop, or ask for other steps")
        if not self.records:
            message = "nothing was recorded of the %d calls of %s inside the block" % (self._calls_in_all, kind)
            raise AgentError("workload", message, "check level, phase and scope")
        of_training = [phase for phase in self._request.capture.phase if phase != FORWARD]
        if of_training and not self._recorder.phases.intersection(of_training):
            phases = " and ".join(filter(None, (", ".join(of_training[:-1]), of_training[-1])))
            if set(self._request.capture.level) == {API}:  # functions run in the forward alone
                message = "phase %s should have been recorded, and level api alone records the forward" % phases
                step = "level=['module', 'api'] records all phases; or phase='forward' without an optimizer"
                raise AgentError("workload", message, step)
            message = "phase %s should have been recorded, and no backward ran in a recorded step" % phases
            step = "call loss.backward() inside the block, before step(); or phase='forward' without an optimizer"
            raise AgentError("workload", message, step)

    def _seal(self) -> None:
        from precflow.agent.measure.content_id import add_digest
        from precflow.agent.recording import describe_run
        from precflow.agent.session.changes import Changed
        from precflow.agent.session.rank_group import merge_weights, name_of_rank

        inputs: Dict[str, Any] = {}
        if self._rank:
            self._writer.finish()
        # Every other rank has finished its files before it arrives here, so rank 0 seals a complete dump.
        own = {
            "weights": self._weights,
            "inputs": self._inputs,
            "losses": {step: sum(each) for step, each in self._losses.items() if each},
            # A loop that has asked whether it is done ends then, where another one goes on.
            "ran": describe_run(
                steps=self.number,
                micro_batches=0,  # a loop does not say which calls are one
                calls={"": self._calls_in_all},
                whole=not self._asked_whether_done,
            ),
            "updates": name_of_rank(self._rank, self._recorder.updates.describe()),
        }
        of_ranks = _gather(own)
        updates: Dict[str, Any] = {}
        for other in of_ranks:
            inputs.update(other["inputs"])
            updates.update(other["updates"])
        if self._rank:
            return
        losses = [facts["losses"] for facts in of_ranks]
        steps = sorted(step for step in losses[0] if all(step in each for each in losses))
        eager = self._recorder.describe_compiled()["eager"]
        header = self._dump.describe(
            weights=merge_weights([facts["weights"] for facts in of_ranks]),
            inputs=add_digest(inputs),
            changed=Changed(more={"compiled": len(eager)}),
        )
        header["ran"] = [facts["ran"] for facts in of_ranks]
        header["losses"] = [sum(each[step] for each in losses) / len(losses) for step in steps]  # their mean, as of any ranks
        header["loss_steps"] = steps
        header["updates"] = updates
        self._writer.seal(header, ranks=range(1, self._ranks))

    def _abandon(self, error: BaseException) -> None:
        """Remove all hooks and leave what was recorded readable, with the error in place of the seal."""
        for stack in (self._watching, self._block):
            with contextlib.suppress(Exception):  # the first error is the one to report
                stack.close()
        kind, message, step = "workload", "the loop raised %s: %s" % (type(error).__name__, error), ""
        if isinstance(error, AgentError):
            kind, message, step = error.kind, error.message, error.next_step
        self._writer.abandon({"kind": kind, "message": message, "next_step": step, "traceback": traceback.format_exc()})


def _check_kinds(model: Any, folder: Any, optimizer: Any) -> None:
    """Make sure that model, folder and optimizer are what they should be.

    Raises:
        AgentError: ``bad_request``: one of them is not.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        message = "model is %s; expected the torch.nn.Module that the loop calls" % _describe_value(model)
        raise AgentError("bad_request", message, 'precflow.capture(model, "dumps/target"): the model itself, and then a folder')
    if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder):
        message = "folder is %s; expected a path" % _describe_value(folder)
        raise AgentError("bad_request", message, 'precflow.capture(model, "dumps/target")')
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        message = "optimizer is %s; expected the torch.optim.Optimizer that the loop steps" % _describe_value(optimizer)
        raise AgentError("bad_request", message, "a wrapper of a library holds one, often as its attribute `optimizer`")


def _describe_value(value: Any) -> str:
    """Return a value for people: a short text itself, of anything else its class."""
    return repr(value) if isinstance(value, str) and len(value) <= _MOST_LETTERS else "a %s" % type(value).__name__


def _steps_in_words(numbers: Sequence[int]) -> str:
    return "step %d" % numbers[0] if len(numbers) == 1 else "steps %s" % ", ".join(map(str, numbers))


def _as_list(words: OneOrMore) -> List[str]:
    return [words] if isinstance(words, str) else list(words)


def _device_of(model: torch.nn.Module) -> Device:
    """Return the device that holds the model's weights."""
    from precflow.agent import emulated
    from precflow.agent.devices.choose import DEVICES

    kinds = sorted({weight.device.type for weight in (*model.parameters(), *model.buffers())}) or ["cpu"]
    if len(kinds) > 1 or kinds[0] not in DEVICES:
        known = ", ".join(kind for kind in DEVICES if kind != "emulated")
        message = "the weights of %s are on %s; expected one device of %s" % (type(model).__name__, " and ".join(kinds), known)
        raise AgentError("unsupported", message, "move the model before it is captured")
    return DEVICES["emulated" if kinds[0] == "npu" and emulated.is_installed() else kinds[0]]


def _dtype_of(model: torch.nn.Module) -> str:
    """Return the floating point type of most of the weights, ``float32`` for a model without any."""
    counts: Dict[str, int] = {}
    for weight in model.parameters():
        if weight.is_floating_point():
            dtype = str(weight.dtype).rpartition(".")[2]
            counts[dtype] = counts.get(dtype, 0) + weight.numel()
    return max(counts, key=lambda dtype: counts[dtype]) if counts else "float32"


def _prepare_folder(folder: str, *, overwrite: bool) -> None:
    """Create the folder; refuse one that holds a dump (unless it may be replaced) or other files."""
    from precflow.agent.dump.write_errors import write_error

    try:
        os.makedirs(folder, exist_ok=True)
        names = sorted(os.listdir(folder))
    except OSError as problem:
        raise write_error(problem, folder, 0) from problem
    foreign = [name for name in names if not _DUMP_FILES.fullmatch(name)]
    if foreign:
        message = "%s holds other files than a dump's, such as %s" % (folder, foreign[0])
        raise AgentError("bad_request", message, "name a folder that is empty or does not exist yet")
    if HEADER_FILE in names and not overwrite:
        raise AgentError("bad_request", "%s holds a sealed dump" % folder, "name another folder, or say overwrite=True")


def _rank_and_size() -> Tuple[int, int]:
    """Return this process's rank and the number of processes."""
    import torch.distributed as group

    if not group.is_available() or not group.is_initialized():
        return 0, 1
    return group.get_rank(), group.get_world_size()


def _gather(mine: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Return the dictionaries of all ranks; waits until all of them have arrived."""
    import torch.distributed as group

    _, ranks = _rank_and_size()
    if ranks == 1:
        return [mine]
    gathered: List[Any] = [None] * ranks
    group.all_gather_object(gathered, mine)
    return gathered
