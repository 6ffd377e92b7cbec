"""Collectives, such as ``all_reduce``: what a rank gave, what it got, and which ranks took part.

Python and C++ both call them (``DistributedDataParallel`` reduces gradients from C++), so they are seen where both arrive: as
operators of torch's dispatcher, ``c10d::allreduce_`` and its kin, and the functional ones of ``_c10d_functional``.

A collective returns before it is done, and its result may be overwritten soon after. Waiting for it here would change what runs
at the same time, and two ranks that call two collectives in different order would wait for each other for ever. So nothing
waits: what it gave is copied at the moment when it is done (by a callback of its future), and its line is written when a
recorded call reads the result for the first time (anything, if the function that was called waits for it itself), at the end of
the backward pass that it belongs to, or at the end of the step. These moments do not depend on how fast the ranks are.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch

from precflow.agent.capture import autograd
from precflow.agent.capture.lineage import address_of, version_of
from precflow.agent.capture.record_lines import Heading
from precflow.agent.contract import BACKWARD, FORWARD, NONE

if TYPE_CHECKING:
    from types import FrameType

    from precflow.agent.capture.calls import CaptureContext
    from precflow.agent.capture.nesting import TensorWithPath
    from precflow.agent.capture.record_lines import Record
    from precflow.agent.selection import Choice

Report = Callable[[str, str, int, str], None]

# The dispatcher's name -> ours, which is torch.distributed's. A barrier moves no values and is no record.
NAMES = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "allgather_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "_allgather_base_": "all_gather_into_tensor",
    "allgather_into_tensor_coalesced_": "all_gather_into_tensor",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_tensor",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all_single",
    "gather_": "gather",
    "scatter_": "scatter",
    "send": "send",
    "recv_": "recv",
    "recv_any_source_": "recv",
}
FUNCTIONAL = {
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_gather_into_tensor": "all_gather_into_tensor",
    "all_gather_into_tensor_out": "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced": "all_gather_into_tensor",
    "reduce_scatter_tensor": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
    "all_to_all_single": "all_to_all_single",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
}
NAMESPACES = ("c10d", "_c10d_functional")
_WAIT = "wait_tensor"  # of the functional ones: the result may be read from here on
_INPUTS, _OUTPUTS, _BOTH = (
    ("input_tensors", "input_tensor", "input", "inputs"),
    ("output_tensors", "output_tensor", "output"),
    "tensors",
)
_OF_ROOT = {"gather": "output", "reduce": "output", "scatter": "input"}  # only the root has this part of these
_ROOTS = {"root_rank": "root", "dst": "destination", "src": "source"}
_NOT_FUNCTIONAL: List[Any] = []  # in place of the results of a collective that has a handle
_GRACE, _TICK = 1.0, 0.005  # seconds that one whose outputs were used too early gets to the end, at the end of the step
_EARLY = "before it was done"  # argument `read` of a collective whose outputs were used too early
_PYTHON_FILE = "distributed_c10d.py"  # where the public functions are
_WRAPPER_FILE = "torch/nn/parallel/distributed.py"  # where DistributedDataParallel is
_WRAPPER_FUNCTIONS = ("_pre_forward", "forward")  # where its reducer divides the buckets anew
_GROUP = "__torch__.torch.classes.c10d.ProcessGroup"

core: Any = getattr(torch, "distributed", None)


def is_possible() -> bool:
    """Tell whether this process belongs to a group, so that collectives can run."""
    return core is not None and core.is_available() and core.is_initialized()


@lru_cache(maxsize=1024)
def is_distributed(function: Any) -> bool:
    """Tell whether a function that a function mode sees is one of torch.distributed; what it calls is recorded here."""
    module = str(getattr(function, "__module__", "") or "")
    return module.startswith("torch.distributed.") or module.rpartition(".")[2] in NAMESPACES


class _Running(NamedTuple):
    """A collective whose line is not written yet.

    Attributes:
        heading: What its line says besides the tensors.
        choice: What is kept of them.
        inputs: Records of what this rank gave.
        outputs: Tensors that this rank gets, and their versions when it began.
        work: torch's handle of it; ``None`` if this torch does not give one, and for functional ones.
        results: What functional ones returned to the workload, as far as it was seen: each knows whether it was waited for.
        waits: The function that the workload has called waits for it, so that it is done before anything reads the outputs.
        futures: The future of the work, and that of the copy; none if the backend has no futures.
        copies: The outputs, copied when it was done; empty as long as it runs.
    """

    heading: Heading
    choice: Choice
    inputs: List[Record]
    outputs: List[Tuple[TensorWithPath, Optional[int]]]
    work: Any
    results: List[Any]
    waits: bool
    futures: List[Any]
    copies: List[torch.Tensor]

    @property
    def addresses(self) -> Set[Optional[int]]:
        """Addresses of the outputs."""
        return {address_of(tensor) for (_, tensor), _ in self.outputs}

    @property
    def is_done(self) -> bool:
        """The outputs may be read."""
        if self.results is not _NOT_FUNCTIONAL:
            return any(getattr(result, "completed", True) for result in self.results)
        done = bool(self.futures) and self.futures[0].done()
        return done or self.waits or self.work is None or bool(self.work.is_completed())


class CollectiveRecorder:
    """Records collectives.

    Args:
        context: Where records go, and what else all recorders of calls share.
        level: The level that they are recorded at, one line for each.
        phases: Which of ``forward`` and ``backward`` are recorded.
        report: Called when one begins: name, ranks, how many of these ranks came before, and where.
    """

    def __init__(
        self,
        context: CaptureContext,
        *,
        level: str,
        phases: Sequence[str],
        report: Optional[Report] = None,
    ) -> None:
        self._lines, self._stack, self._sites, self._is_listening, self._guard = context
        self._level = level
        self._phases = phases
        self._report = report
        self._running: List[_Running] = []
        self._begun: Dict[str, int] = {}  # ranks of a group -> how many it has begun
        self._step = 0

    def begin_step(self, step: int) -> None:
        """Begin a step; collectives that the step before left running are written without their outputs."""
        self.end_step()
        self._step = step

    def end_step(self) -> None:
        """Write every line that still waits."""
        with self._guard:
            for running in self._running:
                deadline = time.monotonic() + (_GRACE if "read" in running.heading.arguments else 0.0)
                while not running.is_done and time.monotonic() < deadline:
                    time.sleep(_TICK)  # nobody else may have waited for it, and its thread needs the interpreter
            self._write(list(self._running))

    def call(self, function: Any, positional: Sequence[Any], keywords: Dict[str, Any]) -> Any:
        """Run an operator of torch.distributed and record it; its result and its exceptions reach the caller unchanged.

        Raises:
            WriteError: The dump cannot be written.
        """
        short = function.__name__.partition(".")[0]
        if short == _WAIT:
            return self._wait(function, positional, keywords)
        name = (NAMES if function.namespace == "c10d" else FUNCTIONAL).get(short)
        phase = BACKWARD if autograd.is_in_backward() else FORWARD
        listening = phase in self._phases and (phase == BACKWARD or self._is_listening())
        module_call = self._stack.innermost if phase == FORWARD else self._stack.outside
        if name is None or not listening or self._guard.is_held or self._lines.failed or not module_call.records_operators:
            return function(*positional, **keywords)
        if name == "broadcast" and _agrees_on_buckets(positional):
            return function(*positional, **keywords)
        ordinal = module_call.count_run("%s %s" % (name, phase))
        choice = self._stack.choose(self._level, module_call.module, module_call.class_name, name, phase)
        with self._guard:
            caller = _find_caller()
            given, got, arguments = _read_call(function, positional, keywords, name, caller)
            self._announce(name, arguments, module_call.module)
            if choice.detail == NONE:
                return function(*positional, **keywords)
            site = self._sites.find_number() if phase == FORWARD else -1
            heading = Heading(self._level, module_call, name, ordinal, site, False, arguments, phase)  # noqa: FBT003  a field
            inputs = self._lines.describe(given, store=True, choice=choice)
        result = function(*positional, **keywords)
        with self._guard:
            if function.namespace != "c10d":
                got = [(str(place), each) for place, each in enumerate(_flatten(result))]
            outputs = [(each, version_of(each[1])) for each in got]
            waits = caller is not None and not caller.get("async_op", True)
            results = _NOT_FUNCTIONAL if function.namespace == "c10d" else []
            running = _Running(heading, choice, inputs, outputs, _find_work(result), results, waits, [], [])
            if not got:  # a send: nothing will be read of it
                self._write([running])
                return result
            self._running.append(running)
            self._lines.before_reading = self._write_what_is_read
            if running.work is not None:
                _copy_when_done(running)
        return result

    def _wait(self, function: Any, positional: Sequence[Any], keywords: Dict[str, Any]) -> Any:
        """Run ``wait_tensor``, which the result of a functional collective is given to before it is read."""
        result = function(*positional, **keywords)
        waited = {address_of(tensor) for tensor in positional[:1]}
        for running in self._running:
            if running.results is not _NOT_FUNCTIONAL and waited & running.addresses:
                running.results.append(result)
        return result

    def _announce(self, name: str, arguments: Dict[str, str], module: str) -> None:
        ranks = arguments["group"].strip("[]").replace(" ", "")
        if name in ("send", "recv"):  # between two of them: numbered from one rank to the other
            me = str(core.get_rank())
            ranks = "%s>%s" % (arguments.get("source", me), arguments.get("destination", me))
        number = self._begun.get(ranks, 0)
        self._begun[ranks] = number + 1
        if self._report is not None and ranks:
            self._report(name, ranks, number, "step %d, in %s" % (self._step, module or "(model)"))

    def _write_what_is_read(self, tensors: Sequence[torch.Tensor]) -> None:
        """Write the lines of collectives whose outputs are about to be read, or whose backward pass is over."""
        # The result of a functional collective is a subclass that waits by itself when it is used; `elem` is the tensor in it.
        read = {address_of(getattr(tensor, "elem", tensor)) for tensor in tensors}
        in_backward = autograd.is_in_backward()
        due = []
        for running in self._running:
            if running.addresses & read and running.results is not _NOT_FUNCTIONAL:
                running.results.extend(tensor for tensor in tensors if hasattr(tensor, "elem"))
                due += [running] if running.is_done else []
            elif running.addresses & read:
                # On the CPU that is a fault of the workload: it reads what may not have arrived. Other devices order their work
                # by streams, and it may well be waited for there.
                if not running.is_done and all(tensor.device.type == "cpu" for (_, tensor), _ in running.outputs):
                    running.heading.arguments["read"] = _EARLY  # type: ignore[index]  # made here
                else:
                    due.append(running)
            elif running.waits or (running.heading.phase == BACKWARD and not in_backward):
                due.append(
                    running
                )  # its function has returned: what is recorded after it gets a later line, the module around it too
        self._write(due)

    def _write(self, due: Sequence[_Running]) -> None:
        self._running = [running for running in self._running if not any(running is each for each in due)]
        if not self._running:  # most calls read while no collective runs, and are not asked
            self._lines.before_reading = None
        for running in due:
            records: List[Record] = []
            if running.futures and running.futures[0].done():
                with suppress(RuntimeError):  # without a copy the outputs are read as they are
                    running.futures[1].wait()  # who waits for a future may go on before its callbacks have run
            if not running.copies:  # some works of gloo never say that they are done: that proves nothing
                running.heading.arguments.pop("read", None)  # type: ignore[attr-defined]  # made here
            for (_, tensor), _ in running.outputs:
                self._lines.note_write(tensor)
            if running.is_done:
                copies = running.copies or [tensor for (_, tensor), _ in running.outputs]
                named = [(path, copy) for ((path, _), _), copy in zip(running.outputs, copies)]
                records = self._lines.describe(named, store=True, returned=True, choice=running.choice)
                for record in records:
                    record["source"] = None
            order = self._lines.emit(running.heading, running.inputs, records)
            for (path, tensor), version in running.outputs if records else ():
                if running.waits or version_of(tensor) == version:  # nothing has written to it since
                    self._lines.sources.note_output(tensor, (order, path), wrote=True)


def _copy_when_done(running: _Running) -> None:
    """Have the outputs copied at the moment when the collective is done. Of a torch without futures they are read later."""

    def copy(_: Any) -> None:
        """Copy the outputs; a thread of torch's runs this, in which no mode of ours listens."""
        running.copies.extend(tensor.detach().clone() for (_, tensor), _ in running.outputs)

    with suppress(RuntimeError, NotImplementedError):  # a backend may have no futures
        future = running.work.get_future()
        running.futures.extend((future, future.then(copy)))


def _find_work(result: Any) -> Any:
    """Return torch's handle of a running collective; ``None`` if this torch does not give it to Python."""
    boxed = result[-1] if isinstance(result, (tuple, list)) and result else result
    unbox = getattr(getattr(core, "Work", None), "unbox", None)
    return unbox(boxed) if unbox is not None and isinstance(boxed, torch.ScriptObject) else None


def _read_call(
    function: Any, positional: Sequence[Any], keywords: Dict[str, Any], name: str, caller: Optional[Dict[str, Any]]
) -> Tuple[List[TensorWithPath], List[TensorWithPath], Dict[str, str]]:
    """Return what a rank gives, what it gets, and the ranks, the reduction and the root as texts."""
    schema = function._schema  # noqa: SLF001  the declaration has no public name
    values = dict(zip([each.name for each in schema.arguments], positional))
    values.update(keywords)
    group = _find_group(values, caller)
    arguments = {"group": str(group) if group else "[]"}
    reduction = values.get("reduce_op") if isinstance(values.get("reduce_op"), str) else (caller or {}).get("op")
    if "reduce_op" in values:
        arguments["reduction"] = str(reduction).rpartition(".")[2].lower() if reduction is not None else ""
    for key, word in _ROOTS.items():
        if isinstance(values.get(key), int):
            arguments[word] = str(group[values[key]] if values[key] < len(group) else values[key])
    given = [tensor for key in (*_INPUTS, _BOTH) for tensor in _flatten(values.get(key))]
    got = [tensor for key in (*_OUTPUTS, _BOTH) for tensor in _flatten(values.get(key))]
    is_root = arguments.get("root", "") == str(core.get_rank())
    if name in _OF_ROOT and not is_root:  # torch allows anything there on the other ranks
        given, got = (given, []) if _OF_ROOT[name] == "output" else ([], got)
    if name in ("send", "recv"):
        given, got = (given, []) if name == "send" else ([], got)
    return _with_paths(given), _with_paths(got), arguments


def _with_paths(tensors: Sequence[torch.Tensor]) -> List[TensorWithPath]:
    return [(str(place), tensor) for place, tensor in enumerate(tensors)]


def _flatten(value: Any) -> List[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for each in value for tensor in _flatten(each)] if isinstance(value, (list, tuple)) else []


def _find_group(values: Dict[str, Any], caller: Optional[Dict[str, Any]]) -> List[int]:
    """Return the ranks of the group; none if this torch does not tell."""
    boxed = values.get("process_group")
    unbox = getattr(getattr(core, "ProcessGroup", None), "unbox", None)
    group: Any = None
    if boxed is not None and unbox is not None:
        group = unbox(boxed)
    elif isinstance(values.get("group_name"), str):
        find = getattr(core.distributed_c10d, "_resolve_process_group", None)  # the only way from a name to its group
        group = find(values["group_name"]) if find is not None else None
    elif caller is not None:
        group = caller.get("group") or core.group.WORLD
    return list(core.get_process_group_ranks(group)) if group is not None else []


def _find_caller() -> Optional[Dict[str, Any]]:
    """Return the arguments of the function of torch.distributed that is running; ``None`` if C++ has called.

    The dispatcher is not told of the kind of a reduction in a way that Python can read: the function's own arguments say it.
    """
    frame: Optional[FrameType] = sys._getframe(2)  # noqa: SLF001  documented
    while frame is not None:
        if frame.f_code.co_filename.endswith(_PYTHON_FILE) and frame.f_code.co_name in _PUBLIC:
            return frame.f_locals
        frame = frame.f_back
    return None


def _agrees_on_buckets(positional: Sequence[Any]) -> bool:
    """Tell whether a wrapper agrees with the other ranks on which gradients share a bucket.

    These numbers are of the wrapper, and no value of the model: they differ wherever two sides have buckets of other sizes. Its
    C++ sends them straight from the function below; what sends buffers has functions of its own between.
    """
    if any(tensor.is_floating_point() or tensor.is_complex() for tensor in _flatten(list(positional[:1]))):
        return False
    frame: Optional[FrameType] = sys._getframe(2)  # noqa: SLF001  documented
    while frame is not None:
        if frame.f_code.co_filename.replace("\\", "/").endswith(_WRAPPER_FILE):
            return frame.f_code.co_name in _WRAPPER_FUNCTIONS
        frame = frame.f_back
    return False


_PUBLIC = frozenset((*NAMES.values(), "all_reduce_coalesced", "all_gather_coalesced", "isend", "irecv", "batch_isend_irecv"))
