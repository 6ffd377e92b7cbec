"""Action ``dump``: run the workload once under capture, once more for repeatability, and seal what was seen."""

from __future__ import annotations

import os
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence

import torch

from precflow import __version__
from precflow.agent import redaction
from precflow.agent.capture import autograd
from precflow.agent.capture.recorder import Recorder
from precflow.agent.contract import DUMP_FORMAT, DUMP_SCHEMA, FILLS_VERSION
from precflow.agent.dump.resumption import outputs_of
from precflow.agent.dump.writer import Writer
from precflow.agent.failures import AgentError
from precflow.agent.measure import value_classes
from precflow.agent.selection import check_scope
from precflow.agent.session import determinism, environment, faults, garbage
from precflow.agent.session.random_numbers import Draw, RandomNumbers
from precflow.agent.session.training import Training
from precflow.agent.session.user_code import error_text
from precflow.agent.session.workload_model import Run, Subject, element_type, prepare
from precflow.agent.workloads.resolve import extend_path

if TYPE_CHECKING:
    from precflow.agent.devices.protocol import Device
    from precflow.agent.events import Events
    from precflow.agent.request import Request


def dump(request: Request, device: Device, where: torch.device, events: Events) -> None:
    """Run the request on a started device and write the dump into ``request.output``.

    Raises:
        AgentError: Of every kind. An exception of the user's code is its cause, and the records made until then stay
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
        background=where.type != "cpu",  # there the model and the thread would share the cores, and every tensor be copied
        compress=capture.compress,
        keep_last=capture.keep_last,
    )
    try:
        check_capture(request)
        extend_path(request.import_paths, request.workload)
        with _explained():
            described = _recorded(Run(request, device, where, events, numbers), writer)
        events.report_progress("seal", "writing the header")
        writer.seal({**described, "seconds": dict(events.seconds)})
    except AgentError as error:
        writer.abandon(_plain_error(error))
        raise


def _recorded(run: Run, writer: Writer) -> Dict[str, Any]:
    """Run everything and return the header, but for what the writer and the clock know."""
    capture = run.request.capture
    subject = prepare(run)
    check_scope(capture.scope, subject.model, capture.rules)
    selection = capture.selection()
    recorder = Recorder(writer, levels=capture.level, phases=capture.phase, selection=selection, fine=capture.fine)
    training = Training(run.request, subject.model, run.where)
    with garbage.spared():
        contents = _steps(run, subject, training, recorder, writer)
        faults.check_acted(run.request)
        repeat = _repeat(run, subject, contents)
    with run.events.time_part("facts", "reading the environment"):
        sites = list(recorder.sites)
        draws = [_plain_draw(draw, sites) for draw in run.numbers.draws]
        asked = {**capture.to_plain(), "unmatched": [] if run.request.resume else selection.unmatched}  # of steps recorded here
        seen = {"capture": asked, "losses": training.losses, "repeat": repeat, "draws": draws}
        seen["sites"] = [redaction.text(site) for site in sites]
        described = header(
            run.request,
            run.device,
            weights=subject.weights,
            inputs=subject.given,
            redrawn=subject.redrawn,
            dropouts=subject.dropouts,
            functional_dropouts=run.numbers.removed,
        )
        return {**described, **seen}


def _steps(
    run: Run, subject: Subject, training: Training, recorder: Recorder, writer: Optional[Writer] = None
) -> Dict[str, str]:
    """Run every step from the same seeds and state; return identity text -> content id (or mark) of all recorded outputs.

    Steps that the writer has, because this dump is gone on with, run for what they leave behind and are not recorded again.
    """
    contents: Dict[str, str] = {}
    steps = run.request.capture.step
    determinism.reseed(run.request.determinism, run.device)
    subject.restore()
    part = ("repeat", "running the model once more") if writer is None else ("forward", "running the model")
    with run.events.time_part(*part):
        for number in range(max(steps) + 1):
            arguments = subject.arguments(element_type(run.request.dtype), run.where)
            finished = writer is not None and writer.complete(number, _RANK)
            wanted = number in steps and not finished
            with run.numbers, faults.watched(run.request, subject.model):
                contents.update(_step(subject.model, training, arguments, recorder if wanted else None, number))
            if writer is not None and finished:
                contents.update(outputs_of(writer.lines(number, _RANK)))
            elif writer is not None and wanted:
                writer.close_step(number, _RANK)
        run.device.synchronize()
    return contents


def _step(
    model: torch.nn.Module, training: Training, arguments: Dict[str, Any], recorder: Optional[Recorder], number: int
) -> Dict[str, str]:
    """Run one step, recorded or not."""
    training.begin_step()
    if recorder is None:
        training.step(arguments)
        return {}
    recorder.begin_step(number)
    with recorder.watch(model, training.optimizer):
        training.step(arguments)
    return recorder.contents


def _repeat(run: Run, subject: Subject, first: Dict[str, str]) -> Dict[str, Any]:
    """Compare a second run with the first; ``different`` lists identities in order of completion.

    Bitwise, but by marks where statistics are all that is kept: ``by`` says it.
    """
    if not run.request.determinism.repeat:
        return {"checked": False, "records": 0, "by": [], "different": []}
    capture = run.request.capture
    selection = capture.selection(repeat=True)
    recorder = Recorder(None, levels=capture.level, phases=capture.phase, selection=selection)
    second = _steps(run, subject, Training(run.request, subject.model, run.where), recorder)
    everything = {**first, **second}
    different = [identity for identity in everything if first.get(identity) != second.get(identity)]
    by = sorted({"statistics" if detail == "statistics" else "bits" for detail in selection.details})
    return {"checked": True, "records": len(everything), "by": by, "different": different}


@contextmanager
def _explained() -> Iterator[None]:
    """Turn what the user's code raises into a failure that names the line; the exception itself stays its cause."""
    try:
        yield
    except AgentError:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # a workload that ends the process ends it here
        refused = isinstance(error, NotImplementedError) or "not implemented for" in str(error)
        kind = "unsupported" if refused else "workload"
        step = "another dtype or device may have this operator; " + _LOG if refused else _LOG
        raise AgentError(kind, "the workload raised " + error_text(error), step, traceback.format_exc()) from error


def check_capture(request: Request) -> None:
    """Make sure that what is to be captured can be.

    Raises:
        AgentError: ``unsupported``: this torch does not show its graph. ``bad_request``: no step, or a negative one.
    """
    if "backward" in request.capture.phase and not autograd.shows_graph():
        message = "torch %s does not show its autograd graph: phase backward cannot be recorded" % torch.__version__
        raise AgentError("unsupported", message, "capture.phase=[forward,gradient,optimizer]")
    if not request.capture.step or min(request.capture.step) < 0:
        raise AgentError("bad_request", "capture.step is %s; expected numbers from 0" % list(request.capture.step))


def header(  # noqa: PLR0913  each a fact of the run, by name
    request: Request,
    device: Device,
    *,
    weights: Mapping[str, Any],
    inputs: Mapping[str, Any],
    redrawn: Sequence[str] = (),
    dropouts: Sequence[str] = (),
    functional_dropouts: Sequence[str] = (),
) -> Dict[str, Any]:
    """Return what a header says of a run besides what was captured: the side, its environment, and what it started from.

    Args:
        request: What was asked for.
        device: Where it ran.
        weights: ``digest`` and ``entries`` of them.
        inputs: The same of the inputs.
        redrawn: Names of the weights that an emulated fault drew anew.
        dropouts: Names of the modules whose dropout was removed.
        functional_dropouts: Where calls of functional dropout were removed.
    """
    found = environment.collect(device)
    shown = ("name", "kind", "description", "emulated")
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
        "device": {name: found["device"][name] for name in shown},
        "dtype": request.dtype,
        "fills": {"version": FILLS_VERSION, "constants": list(value_classes.constants())},
        "emulate": {"name": "", "rules": [], **request.emulate, "redrawn": list(redrawn)},
        "facts": found,
        "determinism": {
            **request.determinism._asdict(),
            "dropouts_removed": list(dropouts),
            "functional_dropouts_removed": list(functional_dropouts),
        },
        "weights": weights,
        "inputs": inputs,
        **nothing_seen,
    }


def _plain_draw(draw: Draw, sites: List[str]) -> Dict[str, Any]:
    if draw.site not in sites:
        sites.append(draw.site)
    return {"operator": draw.operator, "site": sites.index(draw.site), "device": draw.device, "moved": draw.moved}


def _plain_error(error: AgentError) -> Dict[str, Any]:
    return {"kind": error.kind, "message": error.message, "next_step": error.next_step, "traceback": error.trace}


_RANK = 0
_LOG = "the traceback is in agent.log and error.json"
