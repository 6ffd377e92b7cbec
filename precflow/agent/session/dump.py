"""Action ``dump``: run the workload under capture, run it once more to see whether it repeats, and seal the dump."""

from __future__ import annotations

import os
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Dict, Iterator, Mapping, Optional, Sequence

import torch

from precflow import __version__
from precflow.agent import redaction
from precflow.agent.capture import autograd
from precflow.agent.capture.recorder import Recorder
from precflow.agent.contract import DUMP_FORMAT, DUMP_SCHEMA, FILLS_VERSION, KEPT
from precflow.agent.dump.finished_steps import index_outputs
from precflow.agent.dump.writer import Writer
from precflow.agent.failures import AgentError
from precflow.agent.measure import value_classes
from precflow.agent.selection import check_scope
from precflow.agent.session import determinism, environment, faults, garbage
from precflow.agent.session.random_numbers import RandomNumbers
from precflow.agent.session.training import Training
from precflow.agent.session.user_code import describe_error
from precflow.agent.session.workload_model import RunContext, Workload, element_type, prepare
from precflow.agent.workloads.resolve import extend_path

if TYPE_CHECKING:
    from precflow.agent.devices.protocol import Device
    from precflow.agent.events import Events
    from precflow.agent.request import Request

_RANK = 0  # this action runs in one process
_LOG = "the traceback is in agent.log and error.json"


def dump(request: Request, device: Device, where: torch.device, events: Events) -> None:
    """Run the request on a started device and write the dump into ``request.output``.

    Raises:
        AgentError: Of every kind. If user code raised an exception, that is its cause, and the records made until then stay
            readable, without a seal.
    """
    settings = request.determinism
    numbers = RandomNumbers(move=settings.random_numbers == "cpu", remove_dropout=settings.dropout == "removed")
    capture = request.capture
    value_classes.know(capture.fills)
    writer = Writer(
        request.output,
        budget_bytes=capture.budget,
        resume=request.resume,
        declared=request.declared,
        # On a CPU, a writing thread would take cores from the model, and every tensor would have to be copied for it.
        background=where.type != "cpu",
        keep_last=capture.keep_last,
    )
    try:
        check_capture(request)
        extend_path(request.import_paths, request.workload)
        with _explain_user_errors():
            header = _record_run(RunContext(request, device, where, events, numbers), writer)
        events.report_progress("seal", "writing the header")
        writer.seal({**header, "seconds": dict(events.seconds)})
    except AgentError as error:
        plain = {"kind": error.kind, "message": error.message, "next_step": error.next_step, "traceback": error.trace}
        writer.abandon(plain)
        raise


def _record_run(run: RunContext, writer: Writer) -> Dict[str, Any]:
    """Run everything and return the header, without what only the writer and the clock know."""
    capture = run.request.capture
    workload = prepare(run)
    check_scope(capture.scope, workload.model, capture.rules)
    selection = capture.selection()
    recorder = Recorder(
        writer,
        levels=capture.level,
        phases=capture.phase,
        selection=selection,
        fine=capture.fine,
        keep_weights=capture.weights == KEPT,
    )
    training = Training(run.request, workload.model, run.where)
    with garbage.collect_rarely():
        contents = _run_steps(run, workload, training, recorder, writer)
        faults.check_acted(run.request)
        repeat = _check_repeat(run, workload, contents)
    with run.events.time_part("facts", "reading the environment"):
        sites = list(recorder.sites)
        draws = []
        for draw in run.numbers.draws:  # a draw refers to its call site by number, as record lines do
            if draw.site not in sites:
                sites.append(draw.site)
            draws.append({**draw._asdict(), "site": sites.index(draw.site)})
        # In a resumed dump a rule may have matched only in steps that were recorded before, so none is called unmatched.
        unmatched = [] if run.request.resume else selection.unmatched
        header = build_header(
            run.request,
            run.device,
            weights=workload.weight_hashes,
            inputs=workload.input_hashes,
            redrawn=workload.redrawn,
            dropouts=workload.dropouts,
            functional_dropouts=run.numbers.removed,
        )
        return {
            **header,
            "capture": {**capture.to_plain(), "unmatched": unmatched},
            "losses": training.losses,
            "repeat": repeat,
            "draws": draws,
            "sites": [redaction.redact_text(site) for site in sites],
        }


def _run_steps(
    run: RunContext, workload: Workload, training: Training, recorder: Recorder, writer: Optional[Writer] = None
) -> Dict[str, str]:
    """Run every step from the same seeds and state; return identity text -> content id (or mark) of all recorded outputs.

    In a resumed dump, steps that the writer has already run too, because the later ones depend on their state, but they are
    not recorded again.
    """
    contents: Dict[str, str] = {}
    steps = run.request.capture.step
    determinism.reseed(run.request.determinism, run.device)
    workload.restore()
    part = ("repeat", "running the model once more") if writer is None else ("forward", "running the model")
    with run.events.time_part(*part):
        for number in range(max(steps) + 1):
            inputs = workload.copy_inputs(element_type(run.request.dtype), run.where)
            finished = writer is not None and writer.complete(number, _RANK)
            wanted = number in steps and not finished
            with run.numbers, faults.follow_modules(run.request, workload.model):
                training.begin_step()
                if wanted:
                    recorder.begin_step(number)
                    with recorder.watch(workload.model, training.optimizer):
                        training.step(inputs)
                    contents.update(recorder.contents)
                else:
                    training.step(inputs)
            if writer is not None and finished:
                contents.update(index_outputs(writer.lines(number, _RANK)))
            elif writer is not None and wanted:
                writer.close_step(number, _RANK)
        run.device.synchronize()
    return contents


def _check_repeat(run: RunContext, workload: Workload, first: Dict[str, str]) -> Dict[str, Any]:
    """Run the steps a second time and compare; ``different`` lists identities in order of completion.

    Contents are compared bit by bit, except those with detail ``statistics``, of which only the marks are compared: ``by``
    says which of the two was done.
    """
    if not run.request.determinism.repeat:
        return {"checked": False, "records": 0, "by": [], "different": []}
    capture = run.request.capture
    selection = capture.selection(repeat=True)
    recorder = Recorder(None, levels=capture.level, phases=capture.phase, selection=selection)
    second = _run_steps(run, workload, Training(run.request, workload.model, run.where), recorder)
    identities = {**first, **second}
    different = [identity for identity in identities if first.get(identity) != second.get(identity)]
    by = sorted({"statistics" if detail == "statistics" else "bits" for detail in selection.details})
    return {"checked": True, "records": len(identities), "by": by, "different": different}


@contextmanager
def _explain_user_errors() -> Iterator[None]:
    """Turn exceptions of user code into an ``AgentError`` that names the line; the exception stays its cause."""
    try:
        yield
    except AgentError:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # a workload may also call sys.exit()
        unsupported = isinstance(error, NotImplementedError) or "not implemented for" in str(error)
        kind = "unsupported" if unsupported else "workload"
        step = "another dtype or device may have this operator; " + _LOG if unsupported else _LOG
        raise AgentError(kind, "the workload raised " + describe_error(error), step, traceback.format_exc()) from error


def check_capture(request: Request) -> None:
    """Make sure that this torch can record what the request asks for.

    Raises:
        AgentError: ``unsupported``: this torch does not show its graph. ``bad_request``: no step, or a negative one.
    """
    if "backward" in request.capture.phase and not autograd.shows_graph():
        message = "torch %s does not show its autograd graph: phase backward cannot be recorded" % torch.__version__
        raise AgentError("unsupported", message, "capture.phase=[forward,gradient,optimizer]")
    if not request.capture.step or min(request.capture.step) < 0:
        raise AgentError("bad_request", "capture.step is %s; expected numbers from 0" % list(request.capture.step))


def build_header(  # noqa: PLR0913  each a fact of the run, by name
    request: Request,
    device: Device,
    *,
    weights: Mapping[str, Any],
    inputs: Mapping[str, Any],
    redrawn: Sequence[str] = (),
    dropouts: Sequence[str] = (),
    functional_dropouts: Sequence[str] = (),
) -> Dict[str, Any]:
    """Return the header of a dump in which nothing was recorded yet: the side, its environment, and what it started from.

    Args:
        request: The request.
        device: The device that it ran on.
        weights: ``digest`` and ``entries`` of the weights.
        inputs: The same of the inputs.
        redrawn: Names of the weights that an emulated fault drew anew.
        dropouts: Names of the modules whose dropout was removed.
        functional_dropouts: Lines of user code where calls of functional dropout were removed.
    """
    facts = environment.collect(device)
    nothing_seen: Dict[str, Any] = {
        "capture": {**request.capture.to_plain(), "unmatched": []},
        "losses": [],
        "repeat": {"checked": False, "records": 0, "by": [], "different": []},
        "draws": [],
        "sites": [],
        "seconds": {},
    }
    return {
        "schema": DUMP_SCHEMA,
        "format": DUMP_FORMAT,
        "id": os.urandom(8).hex(),
        "agent": __version__,
        "side": request.side,
        "recipe": request.recipe,
        "declared": request.declared,
        "device": {name: facts["device"][name] for name in ("name", "kind", "description", "emulated")},
        "dtype": request.dtype,
        "fills": {"version": FILLS_VERSION, "constants": list(value_classes.constants())},
        "emulate": {"name": "", "rules": [], **request.emulate, "redrawn": list(redrawn)},
        "facts": facts,
        "determinism": {
            **request.determinism._asdict(),
            "dropouts_removed": list(dropouts),
            "functional_dropouts_removed": list(functional_dropouts),
        },
        "weights": weights,
        "inputs": inputs,
        **nothing_seen,
    }
