"""Action ``rehearse``: run one step of the workload without values, to estimate the size of a dump.

The model is built and run on torch's meta device. Operators there compute shapes and types but no values, so a step of any
model takes about a second and no memory. The lines are those of a dump of every module and operator; the size of a dump in any
detail and scope follows from them. In place of content ids there are numbers, one for each tensor. A dump stores tensors of
equal content once, which cannot be known here: the estimate is an upper limit.
"""

from __future__ import annotations

import importlib
import os
import shutil
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

import torch

from precflow.agent.capture.measurement_cache import NO_CONTENT
from precflow.agent.capture.recorder import Recorder
from precflow.agent.contract import REHEARSAL_FILE
from precflow.agent.devices.cpu import Cpu
from precflow.agent.dump.step_files import write_json
from precflow.agent.dump.write_errors import write_error
from precflow.agent.dump.writer import Writer
from precflow.agent.failures import AgentError
from precflow.agent.measure.ticket import Ticket
from precflow.agent.request import CaptureSection
from precflow.agent.session import determinism
from precflow.agent.session.random_numbers import RandomNumbers
from precflow.agent.session.training import Training
from precflow.agent.session.user_code import describe_error
from precflow.agent.session.workload_model import build_inputs, build_model, copy_to, element_type, map_tensors, place_model
from precflow.agent.workloads.resolve import extend_path

if TYPE_CHECKING:
    from precflow.agent.capture.lineage import TensorState
    from precflow.agent.events import Events
    from precflow.agent.measure.parts import KeptPart
    from precflow.agent.request import Request

_META = torch.device("meta")


def rehearse(request: Request, events: Events) -> None:
    """Run one step without values and write its lines and ``rehearsal.json`` into ``request.output``.

    If the workload cannot run in this way, ``problem`` in the file says why, and there are no lines.

    Raises:
        AgentError: The folder cannot be written to.
    """
    extend_path(request.import_paths, request.workload)
    problem = ""
    try:
        _record(request, events)
    except (Exception, SystemExit) as error:  # a workload may also call sys.exit()
        if isinstance(error, AgentError) and error.kind not in ("workload", "bad_request", "untrusted", "unsupported"):
            raise
        user_error = AgentError("workload", describe_error(error, sentence=True))
        problem = error.message if isinstance(error, AgentError) else user_error.message
        # The lines of a step that failed half-way would give too small a size.
        shutil.rmtree(os.path.join(request.output, "rank0"), ignore_errors=True)
    facts = {"problem": problem, "dtype": request.dtype, "torch": torch.__version__, "seconds": dict(events.seconds)}
    try:
        write_json(os.path.join(request.output, REHEARSAL_FILE), facts)
    except OSError as error:
        raise write_error(error, request.output, 0) from error


class NumberingMeasurer:
    """A measurer that gives each tensor a number instead of a content id; writing to its memory makes it a new one.

    Meta tensors have no bytes, but they do have storages, which views share. Holding the storages costs no memory and keeps
    their addresses unique.
    """

    def __init__(self) -> None:
        self._storages: Dict[int, Any] = {}
        self._tickets: Dict[Tuple[object, ...], Ticket] = {}

    def clear(self) -> None:
        """Keep everything: there is only one step."""

    def note_write(self, tensor: torch.Tensor) -> None:
        """Do nothing: a write changes the tensor's version, and with it the key."""

    def measure(
        self, tensor: torch.Tensor, detail: str, kept: Optional[KeptPart] = None, state: Optional[TensorState] = None
    ) -> Ticket:
        """Return the ticket of a tensor as it is now, with its number as content."""
        del detail, kept, state
        if tensor.layout is not torch.strided:
            return NO_CONTENT
        storage = tensor.untyped_storage()
        address = storage._cdata  # noqa: SLF001  identifies the storage; a meta storage has no data pointer
        self._storages[address] = storage
        # A write raises the version, so the same memory counts as another tensor afterwards. Inference tensors have none.
        version = None if tensor.is_inference() else tensor._version  # noqa: SLF001  documented for autograd's checks
        view = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg())
        key = (address, version, *view)
        ticket = self._tickets.get(key)
        if ticket is None:
            ticket = self._tickets[key] = Ticket("digest", None)
            ticket.content = "number %d" % len(self._tickets)
        return ticket

    @property
    def full(self) -> bool:
        """Nothing ever waits."""
        return False

    def flush(self) -> None:
        """Do nothing: every ticket is filled in."""


def _record(request: Request, events: Events) -> None:
    """Build the workload without values and write the lines of its first step.

    Code that reads the values of a tensor fails on meta tensors. Then the step is tried again on fake tensors, as compilers use
    them: some libraries recognize these and do not read their values.
    """
    with events.time_part("model", "building the model without values"):
        determinism.reseed(request.determinism, Cpu())
        model = _build_without_memory(request)
        inputs = copy_to(build_inputs(request, model), element_type(request.dtype), _META)
        model.train(request.workload.get("mode", "eval") == "train")
        if request.determinism.dropout == "removed":
            determinism.remove_dropout(model)
        place_model(model, element_type(request.dtype), _META)
    with events.time_part("forward", "running the model without values"):
        try:
            _run_step(request, model, inputs)
        except Exception:
            if not _try_fake_tensors(request, model, inputs):
                raise


def _try_fake_tensors(request: Request, model: torch.nn.Module, inputs: Dict[str, Any]) -> bool:
    """Write the lines of a step on fake tensors; return whether it could run on them."""
    try:
        mode: Any = importlib.import_module("torch._subclasses.fake_tensor").FakeTensorMode(allow_non_fake_inputs=True)
        with mode:
            _run_step(request, model, map_tensors(inputs, mode.from_tensor))
    except Exception:  # noqa: BLE001  whatever it is, the error with meta tensors is the one to report: people can look it up
        return False
    return True


def _run_step(request: Request, model: torch.nn.Module, inputs: Dict[str, Any]) -> None:
    """Write the lines of one step."""
    writer = Writer(request.output, declared=request.declared)
    capture = request.capture
    # As with tensors, whose dumps have the most records: weights and state before an optimizer's step are among them.
    recorder = Recorder(
        writer, CaptureSection(level=capture.level, phase=capture.phase, detail="tensors"), measurer=NumberingMeasurer()
    )
    try:
        training = Training(request, model, _META)
        training.begin_step()
        recorder.begin_step(0)
        numbers = RandomNumbers(move=False, remove_dropout=request.determinism.dropout == "removed")
        with numbers, recorder.watch(model, training.optimizer):
            training.step(inputs)
    finally:
        writer.finish()


def _build_without_memory(request: Request) -> torch.nn.Module:
    """Return the model of the workload: without memory if its factory allows that, else as in a real run."""
    try:
        with _META:
            return build_model(request)
    except AgentError:
        raise
    except Exception:  # noqa: BLE001  it reads weights, or computes values that it needs to build the model
        return build_model(request)
