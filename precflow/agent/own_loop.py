"""``precflow.capture``: record a model in a loop that somebody else owns, with no recipe and no judge in the process.

It needs torch and nothing else, so it works from ``precflow-agent.pyz`` in a container where nothing may be installed. The
loop keeps its seeds, data, devices and exceptions; hooks and modes are off again when the block is left.
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
from precflow.agent.contract import ERROR_FILE, FORWARD, HEADER_FILE, PHASES, REQUEST_SCHEMA
from precflow.agent.failures import AgentError
from precflow.agent.request import Request, parse

if TYPE_CHECKING:
    import torch

    from precflow.agent.devices.protocol import Device

Words = Union[str, Sequence[str]]
_OF_A_DUMP = re.compile(r"%s|%s|facts\.json|agent\.log|rank\d+|writer-rank\d+\.lock|.*\.part" % (HEADER_FILE, ERROR_FILE))


def capture(  # noqa: PLR0913  what a recipe's section `capture` may say, by the same names
    model: torch.nn.Module,
    folder: Union[str, os.PathLike[str]],
    *,
    optimizer: Optional[torch.optim.Optimizer] = None,
    side: str = "target",
    name: str = "",
    level: Words = ("module", "api"),
    phase: Optional[Words] = None,
    scope: Words = ("*",),
    step: Union[int, Sequence[int]] = (0,),
    detail: str = "tensors",
    rules: Sequence[Mapping[str, Any]] = (),
    budget: int = 0,
    keep_last: int = 0,
    compress: bool = False,
    fine: bool = False,
    overwrite: bool = False,
) -> Recording:
    """Return a context manager that records what a model computes, and seals it as a dump when its block is left.

    Call ``step()`` of what it gives behind each step of the loop. In a group of processes every rank calls this with the same
    folder, which all of them can write to; rank 0 seals it. Records are named like those of a recipe's side, so the two kinds
    of dump can be compared. No seed, switch, dropout or device is touched: losses, gradients and weights keep their bits.

    Args:
        model: The model, on its device and in its element type.
        folder: Where the dump goes; made if it is not there.
        optimizer: Its steps are recorded too; all phases are then recorded unless ``phase`` says otherwise.
        side: ``reference``, ``target`` or ``golden``.
        name: What the dump belongs to: dumps of two names are not compared, ``""`` fits any.
        level: Some of ``module``, ``api``, ``operator``.
        phase: Some of ``forward``, ``backward``, ``gradient``, ``optimizer``; ``forward`` alone without an optimizer.
        scope: Patterns of module names; nothing outside of them is recorded.
        step: Numbers of the steps that are recorded, from 0.
        detail: ``digest``, ``statistics``, ``sketch`` or ``tensors``.
        rules: Another detail, or a part of each tensor, for the calls that match, as in ``capture.rules`` of a recipe.
        budget: Most bytes that the dump may take; 0 is no limit.
        keep_last: Keep the last steps only, and those around a NaN; 0 keeps all.
        compress: Compress tensors where it pays.
        fine: Sketches resolve differences of 3e-8 of a tensor instead of 3e-7, and take twice the room.
        overwrite: Replace a dump that is in the folder already.

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
            "determinism": {  # the loop's own: nothing is set
                "seed": "script",
                "algorithms": "native",
                "random_numbers": "device",
                "dropout": "kept",
                "repeat": False,
            },
            "capture": {
                "level": _listed(level),
                "phase": _listed(phase if phase is not None else (FORWARD,) if optimizer is None else PHASES),
                "scope": _listed(scope),
                "step": [step] if isinstance(step, int) else list(step),
                "detail": detail,
                "rules": list(rules),
                "budget": budget,
                "keep_last": keep_last,
                "compress": compress,
                "fine": fine,
            },
        }
    )
    check_capture(request)
    check_scope(request.capture.scope, model, request.capture.rules)
    return Recording(model, optimizer, request, device, overwrite=overwrite)


class Recording:
    """A context manager that :func:`capture` makes; it can be entered once.

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
        self._rank, self._ranks = _place_in_group()
        self._inputs: Dict[str, Any] = {}
        self._calls = 0
        self._whole = ExitStack()  # what is undone when the block is left
        self._watching = ExitStack()  # what is undone when a recorded step ends

    @property
    def records(self) -> int:
        """Number of records so far: tensors that went into or came out of a recorded call."""
        return self._recorder.records

    @property
    def done(self) -> bool:
        """Every step that was asked for has been recorded, so that the loop may end."""
        return self.number > max(self._wanted)

    def __enter__(self) -> Recording:  # noqa: PYI034  Self came with Python 3.11
        """Begin step 0.

        Raises:
            AgentError: The folder cannot be written to, or holds something else.
        """
        from precflow.agent.capture.recorder import Recorder
        from precflow.agent.dump.writer import Writer
        from precflow.agent.session import garbage
        from precflow.agent.session import workload_model as holdings

        capturing = self._request.capture
        _prepare(self.folder, overwrite=self._overwrite)
        self._writer = Writer(
            self.folder,
            budget_bytes=capturing.budget,
            rank=self._rank,
            background=self._device.name != "cpu",
            compress=capturing.compress,
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
            )
            self._weights = holdings.of_model(self._model)
            self._whole.enter_context(garbage.spared())
            self._begin_step()
        except BaseException as error:
            self._abandon(error)
            raise
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        """End the step that runs and seal the dump; after an exception it stays without a seal, as far as it went.

        Raises:
            AgentError: The dump cannot be written, nothing was recorded, or a step that was asked for never came.
        """
        if error is not None:
            self._abandon(error)
            return
        try:
            if self.number in self._wanted:
                self._end_step()
                self.number += 1
            self._whole.close()
            self._check_seen()
            self._seal()
        except BaseException as problem:
            self._abandon(problem)
            raise

    def step(self) -> None:
        """Say that a step of the loop has ended.

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
        self._watching.callback(self._model.register_forward_pre_hook(self._note_inputs, with_kwargs=True).remove)
        self._recorder.begin_step(self.number)
        self._watching.enter_context(self._recorder.watch(self._model, self._optimizer))

    def _end_step(self) -> None:
        if self.number in self._wanted:
            self._watching.close()
            self._writer.close_step(self.number, self._rank)

    def _note_inputs(self, module: torch.nn.Module, arguments: Tuple[Any, ...], keywords: Dict[str, Any]) -> None:
        """Hash what the model is called with: two dumps are compared only if both sides were fed the same."""
        from precflow.agent.session import workload_model as holdings

        try:
            given = dict(inspect.signature(module.forward).bind(*arguments, **keywords).arguments)
        except (TypeError, ValueError):  # where they do not fit, the call itself says so
            given = {**{str(place): value for place, value in enumerate(arguments)}, **keywords}
        place = "rank%d." % self._rank if self._rank else ""
        place += "step%d" % self.number + (".call%d" % self._calls if self._calls else "")
        with self._recorder.without_recording():
            self._inputs.update(holdings.of_inputs({place: given})["entries"])
        self._calls += 1

    def _check_seen(self) -> None:
        missed = sorted(number for number in self._wanted if number >= self.number)
        if missed:
            steps = "step %d" % missed[0] if len(missed) == 1 else "steps %s" % ", ".join(map(str, missed))
            message = "%s should have been recorded, but the loop ended after %d" % (steps, self.number)
            raise AgentError("workload", message, "call step() behind each step of the loop, or ask for fewer: step=[0]")
        if not self.records:
            message = "nothing was recorded: no call of %s was seen inside the block" % type(self._model).__name__
            raise AgentError("workload", message, "give the model whose forward the loop calls; look at level, phase and scope")

    def _seal(self) -> None:
        from precflow.agent.session import workload_model as holdings
        from precflow.agent.session.dump import header

        inputs = dict(self._inputs)
        if self._rank:
            self._writer.finish()
        for other in _gathered(self._inputs):  # every rank has finished behind this, but for the first
            inputs.update(other)
        if self._rank:
            return
        described = header(self._request, self._device, weights=self._weights, inputs=holdings.joined(inputs))
        described["capture"] = {**self._request.capture.to_plain(), "unmatched": self._selection.unmatched}
        described["sites"] = [redaction.text(site) for site in self._recorder.sites]
        self._writer.seal(described, ranks=range(1, self._ranks))

    def _abandon(self, error: BaseException) -> None:
        """Take everything off and leave what was recorded readable, with the error in the seal's place."""
        for undone in (self._watching, self._whole):
            with contextlib.suppress(Exception):  # the error that is under way counts
                undone.close()
        kind, message, step = "workload", "the loop raised %s: %s" % (type(error).__name__, error), ""
        if isinstance(error, AgentError):
            kind, message, step = error.kind, error.message, error.next_step
        self._writer.abandon({"kind": kind, "message": message, "next_step": step, "traceback": traceback.format_exc()})


def _listed(words: Words) -> List[str]:
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
    return DEVICES["emulated" if kinds[0] == "npu" and emulated.installed() else kinds[0]]


def _dtype_of(model: torch.nn.Module) -> str:
    """Return the floating point type of most of the weights, ``float32`` for a model without any."""
    counts: Dict[str, int] = {}
    for weight in model.parameters():
        if weight.is_floating_point():
            dtype = str(weight.dtype).rpartition(".")[2]
            counts[dtype] = counts.get(dtype, 0) + weight.numel()
    return max(counts, key=lambda dtype: counts[dtype]) if counts else "float32"


def _prepare(folder: str, *, overwrite: bool) -> None:
    """Make the folder, unless it holds a dump that may not be replaced, or what is no dump at all."""
    from precflow.agent.dump.write_errors import write_error

    try:
        os.makedirs(folder, exist_ok=True)
        names = sorted(os.listdir(folder))
    except OSError as problem:
        raise write_error(problem, folder, 0) from problem
    foreign = [name for name in names if not _OF_A_DUMP.fullmatch(name)]
    if foreign:
        message = "%s holds other files than a dump's, such as %s" % (folder, foreign[0])
        raise AgentError("bad_request", message, "name a folder that is empty or not there yet")
    if HEADER_FILE in names and not overwrite:
        raise AgentError("bad_request", "%s holds a sealed dump" % folder, "name another folder, or say overwrite=True")


def _place_in_group() -> Tuple[int, int]:
    """Return this process's rank and the number of processes."""
    import torch.distributed as group

    if not group.is_available() or not group.is_initialized():
        return 0, 1
    return group.get_rank(), group.get_world_size()


def _gathered(mine: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Return what every rank brings; nobody goes on before all are here."""
    import torch.distributed as group

    _, ranks = _place_in_group()
    if ranks == 1:
        return [mine]
    everyone: List[Any] = [None] * ranks
    group.all_gather_object(everyone, mine)
    return everyone
