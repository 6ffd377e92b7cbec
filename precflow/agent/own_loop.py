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

from precflow.agent import redaction
from precflow.agent.contract import ERROR_FILE, FORWARD, HEADER_FILE, KEPT, PHASES, REQUEST_SCHEMA
from precflow.agent.failures import AgentError
from precflow.agent.request import Request, parse

if TYPE_CHECKING:
    import torch

    from precflow.agent.devices.protocol import Device

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
        overwrite: Replace a dump that is already in the folder.

    Raises:
        AgentError: ``bad_request``: an argument is wrong, a pattern matches no module, or the folder holds something else.
    """
    from precflow.agent.selection import check_scope
    from precflow.agent.session.dump import check_capture

    if side not in ("reference", "target", "golden"):
        raise AgentError("bad_request", "side is %r; expected reference, target or golden" % (side,))
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
            },
        }
    )
    check_capture(request)
    check_scope(request.capture.scope, model, request.capture.rules)
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
        self._calls = 0
        self._block = ExitStack()  # undone when the block ends
        self._watching = ExitStack()  # undone when a recorded step ends

    @property
    def records(self) -> int:
        """Number of records so far: tensors that went into or came out of a recorded call."""
        return self._recorder.records

    @property
    def done(self) -> bool:
        """Every requested step has been recorded, so the loop may end."""
        return self.number > max(self._wanted)

    def __enter__(self) -> Recording:  # noqa: PYI034  Self came with Python 3.11
        """Begin step 0.

        Raises:
            AgentError: The folder cannot be written to, or holds something else.
        """
        from precflow.agent.capture.recorder import Recorder
        from precflow.agent.dump.writer import Writer
        from precflow.agent.session import garbage, workload_model

        capturing = self._request.capture
        _prepare_folder(self.folder, overwrite=self._overwrite)
        self._writer = Writer(
            self.folder,
            budget_bytes=capturing.budget,
            rank=self._rank,
            background=self._device.name != "cpu",
            keep_last=capturing.keep_last,
        )
        try:
            self._selection = capturing.selection()
            self._recorder = Recorder(
                self._writer,
                levels=capturing.level,
                phases=capturing.phase,
                selection=self._selection,
                rank=self._rank,
                fine=capturing.fine,
                keep_weights=capturing.weights == KEPT,
            )
            self._weights = workload_model.hash_weights(self._model)
            self._block.enter_context(garbage.collect_rarely())
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
            if self.number in self._wanted:
                self._end_step()
                self.number += 1
            self._block.close()
            self._check_complete()
            self._seal()
        except BaseException as problem:
            self._abandon(problem)
            raise

    def step(self) -> None:
        """Note that a step of the loop has ended.

        Raises:
            AgentError: The dump cannot be written any further.
        """
        self._end_step()
        self.number += 1
        self._begin_step()

    def _begin_step(self) -> None:
        if self.number not in self._wanted:
            return
        self._calls = 0
        # Before the recorder sets its own hooks: the inputs are hashed as the loop passes them.
        self._watching.callback(self._model.register_forward_pre_hook(self._hash_inputs, with_kwargs=True).remove)
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

    def _end_step(self) -> None:
        if self.number in self._wanted:
            self._watching.close()
            self._writer.close_step(self.number, self._rank)

    def _hash_inputs(self, module: torch.nn.Module, arguments: Tuple[Any, ...], keywords: Dict[str, Any]) -> None:
        """Hash the inputs of a call of the model: two dumps are compared only if both sides were given the same."""
        from precflow.agent.session import workload_model

        try:
            given: Dict[Any, Any] = dict(inspect.signature(module.forward).bind(*arguments, **keywords).arguments)
        except (TypeError, ValueError):  # the arguments do not fit; the call itself will raise the error
            given = {**dict(enumerate(arguments)), **keywords}
        name = "rank%d." % self._rank if self._rank else ""
        name += "step%d" % self.number + (".call%d" % self._calls if self._calls else "")
        with self._recorder.without_recording():
            self._inputs.update(workload_model.hash_inputs(given, name)["entries"])
        self._calls += 1

    def _check_complete(self) -> None:
        missed = sorted(number for number in self._wanted if number >= self.number)
        if missed:
            steps = "step %d" % missed[0] if len(missed) == 1 else "steps %s" % ", ".join(map(str, missed))
            message = "%s should have been recorded, but the loop ended after %d" % (steps, self.number)
            raise AgentError("workload", message, "call step() after each step of the loop, or ask for fewer: step=[0]")
        if not self.records:
            message = "nothing was recorded: no call of %s was seen inside the block" % type(self._model).__name__
            raise AgentError("workload", message, "pass the model whose forward the loop calls; check level, phase and scope")

    def _seal(self) -> None:
        from precflow.agent.session import workload_model
        from precflow.agent.session.dump import build_header

        inputs: Dict[str, Any] = {}
        if self._rank:
            self._writer.finish()
        # Every other rank has finished its files before it arrives here, so rank 0 seals a complete dump.
        of_ranks = _gather({"inputs": self._inputs, "losses": {step: sum(each) for step, each in self._losses.items() if each}})
        for other in of_ranks:
            inputs.update(other["inputs"])
        if self._rank:
            return
        losses = [facts["losses"] for facts in of_ranks]
        steps = sorted(step for step in losses[0] if all(step in each for each in losses))
        header = build_header(self._request, self._device, weights=self._weights, inputs=workload_model.add_digest(inputs))
        header["capture"] = {**self._request.capture.to_plain(), "unmatched": self._selection.unmatched}
        header["losses"] = [sum(each[step] for each in losses) / len(losses) for step in steps]  # their mean, as of any ranks
        header["loss_steps"] = steps
        header["sites"] = [redaction.redact_text(site) for site in self._recorder.sites]
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
