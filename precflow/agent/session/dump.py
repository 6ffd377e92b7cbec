"""Action ``dump``: run the workload under capture, run it once more to see whether it repeats, and seal the dump."""

from __future__ import annotations

import os
import traceback
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Callable, ContextManager, Dict, Iterator, Optional, Sequence, Tuple

import torch

from precflow.agent.capture.recorder import Recorder
from precflow.agent.contract import CHECKED, EMPTY_HEADER
from precflow.agent.dump.finished_steps import index_outputs
from precflow.agent.dump.writer import Writer
from precflow.agent.failures import AgentError
from precflow.agent.measure import value_classes
from precflow.agent.ranks import rank_of
from precflow.agent.recording import OpenDump, check_capture, describe_run, make_writer
from precflow.agent.request import runs_eagerly
from precflow.agent.selection import check_scope
from precflow.agent.session import determinism, faults, garbage, precision, rank_group
from precflow.agent.session.changes import Changed, Seeds
from precflow.agent.session.failed_call import describe_failure
from precflow.agent.session.given_choices import GivenChoices
from precflow.agent.session.given_inputs import give_inputs
from precflow.agent.session.program import find_sources, write_sources
from precflow.agent.session.random_numbers import RandomNumbers
from precflow.agent.session.training import Training
from precflow.agent.session.user_code import describe_error
from precflow.agent.session.workload_model import RunContext, Workload, element_type, hash_inputs, hash_weights, prepare
from precflow.agent.workloads.resolve import extend_path

if TYPE_CHECKING:
    from precflow.agent.capture.trail import Trail
    from precflow.agent.devices.protocol import Device
    from precflow.agent.events import Events
    from precflow.agent.request import Request

_UNDISTURBED: ContextManager[Any] = nullcontext()
_LOG = "the traceback is in agent.log and error.json"


def dump(request: Request, device: Device, where: torch.device, events: Events) -> None:
    """Run the request on a started device and write the dump into ``request.output``.

    Raises:
        AgentError: Of every kind. If user code raised an exception, that is its cause, and the records made until then stay
            readable, without a seal.
    """
    value_classes.add_constants(request.capture.fills)
    with open_writer(request, where, request.output) as writer:
        check_capture(request)
        extend_path(request.import_paths, request.workload)
        with explain_user_errors():
            run = RunContext(request, device, where, events, make_random_numbers(request))
            workload = prepare(run)
            header = record(run, workload, writer)
            if not rank_of(request):
                sources = find_sources([workload.model], [os.getcwd(), *request.import_paths])
                header["facts"]["sources"] = write_sources(request.output, sources)
        events.report_progress("seal", "writing the header")
        rank_group.seal(request, writer, {**header, "seconds": dict(events.seconds)})


def make_random_numbers(request: Request) -> RandomNumbers:
    """Return the mode that draws random numbers as the request wants them drawn."""
    settings = request.determinism
    return RandomNumbers(move=settings.random_numbers == "cpu", remove_dropout=settings.dropout == "removed")


@contextmanager
def open_writer(request: Request, where: torch.device, folder: str) -> Iterator[Writer]:
    """Open a dump in an existing folder; on an error, what was written stays readable, without a seal."""
    rank_group.clear(request, folder)
    writer = make_writer(request, folder, on_cpu=where.type == "cpu", rank=rank_of(request))
    try:
        yield writer
    except AgentError as error:
        plain = {"kind": error.kind, "message": error.message, "next_step": error.next_step, "traceback": error.trace}
        writer.abandon({**plain, "where": error.where})
        raise


def record(
    run: RunContext,
    workload: Workload,
    writer: Writer,
    disturb: Callable[[Recorder], ContextManager[Any]] = lambda _: _UNDISTURBED,
) -> Dict[str, Any]:
    """Run a workload under capture and return the header of its dump, without what only the writer and the clock know.

    Args:
        run: What it runs with.
        workload: The workload.
        writer: Where records and tensors go.
        disturb: Returns a context manager in which each step runs, below capture.
    """
    capture = run.request.capture
    check_scope(capture.scope, workload.model, capture.rules)
    choices = GivenChoices.read(run.request.choices) if run.request.choices else None
    substitute = None if choices is None else choices.substitute
    recording = OpenDump(run.request, run.device, writer, events=run.events, substitute=substitute)
    recorder = recording.recorder
    training = Training(run.request, workload.model, run.where)
    with garbage.collect_rarely():
        runs = 2 if run.request.determinism.repeat else 1
        with run.events.nth_of(0, runs):
            watched: Dict[str, str] = {}
            seeds = Seeds(run.request.determinism, run.device)
            determinism.reseed(run.request.determinism, run.device)  # as each run of the steps begins
            seeds.begin()
            with explain_user_errors(recorder.trail, [("", workload.model)]):
                contents = _run_steps(run, workload, training, recorder, writer, disturb(recorder), watched)
            seeded = seeds.find_used()
        faults.check_acted(run.request)
        given = [] if choices is None else list(choices.replaced)
        repeat = _check_repeat(run, workload, contents, choices)
        observer = _check_observer(run, workload, watched)
    with run.events.time_part("facts", "reading the environment"):
        eager = recorder.describe_compiled()["eager"]
        header = recording.describe(
            weights=workload.weight_hashes,
            inputs=workload.input_hashes,
            changed=Changed(
                redrawn=workload.redrawn,
                dropouts=workload.dropouts,
                functional_dropouts=run.numbers.removed,
                seeded=seeded,
                more={
                    "choices": len(given),
                    "compiled": len(eager),
                    "learning_rate": training.rates_replaced,
                },
            ),
            draws=run.numbers.draws,
        )
        return {
            **header,
            "determinism": {**header["determinism"], **({} if choices is None else {"choices_given": given})},
            "dtype": precision.run_type(run.request.mixed_precision, run.request.dtype),
            "facts": {
                **header["facts"],
                **precision.describe(run.request.mixed_precision, workload.float32_modules, training.loss_scale),
            },
            "losses": training.losses,
            # A workload has no end of its own: it is ended after the last recorded step.
            "ran": [describe_run(steps=max(capture.step) + 1, whole=False)],
            "repeat": repeat,
            "observer": observer,
        }


def run_unrecorded(run: RunContext, workload: Workload, around: ContextManager[Any]) -> None:
    """Run every step of a workload from its own seeds and state, within a context manager, and record nothing."""
    with garbage.collect_rarely():
        _run_steps(run, workload, Training(run.request, workload.model, run.where), None, around=around)


def _run_steps(  # noqa: PLR0913, PLR0917  what a run is made of
    run: RunContext,
    workload: Workload,
    training: Training,
    recorder: Optional[Recorder],
    writer: Optional[Writer] = None,
    around: ContextManager[Any] = _UNDISTURBED,
    left: Optional[Dict[str, str]] = None,
) -> Dict[str, str]:
    """Run every step from the same seeds and state; return identity text -> content id (or mark) of all recorded outputs.

    Without a recorder nothing is recorded. If determinism.observer asks for it, ``left`` is filled with what the first step to
    be recorded leaves behind; nothing is run beyond it then.

    In a resumed dump, steps that the writer has already run too, because the later ones depend on their state, but they are
    not recorded again.
    """
    contents: Dict[str, str] = {}
    steps, rank = run.request.capture.step, rank_of(run.request)
    determinism.reseed(run.request.determinism, run.device)
    workload.restore()
    last = min(steps) if recorder is None and left is not None else max(steps)
    part = ("repeat", "running the model once more") if writer is None else ("forward", "running the model")
    with run.events.time_part(*part):
        for number in range(last + 1):
            inputs = workload.copy_inputs(element_type(run.request.dtype), run.where)
            finished = writer is not None and writer.complete(number, rank)
            wanted = recorder is not None and number in steps and not finished
            given = give_inputs(run.request.inputs, workload.model)
            with run.numbers, faults.follow_modules(run.request, workload.model), around, given:
                training.begin_step()
                if recorder is not None and wanted:
                    recorder.begin_step(number)
                    with recorder.watch(workload.model, training.optimizer, training.masters):
                        output = training.step(inputs)
                    recorder.end_step()
                    contents.update(recorder.contents)
                else:
                    output = training.step(inputs)
            compares = run.request.determinism.observer == CHECKED and number == min(steps) and not finished
            if left is not None and compares:
                left.update(_describe_what_is_left(run, workload, training, output))
            del output
            if writer is not None and finished:
                contents.update(index_outputs(writer.lines(number, rank)))
            elif writer is not None and wanted:
                writer.close_step(number, rank)
            run.events.report_amount(number + 1, last + 1, "steps")
        run.device.synchronize()
    training.end()
    return contents


def _check_repeat(
    run: RunContext, workload: Workload, first: Dict[str, str], choices: Optional[GivenChoices]
) -> Dict[str, Any]:
    """Run the steps a second time and compare; ``different`` lists identities in order of completion.

    Contents are compared bit by bit, except those with detail ``statistics``, of which only the marks are compared: ``by``
    says which of the two was done.
    """
    if not run.request.determinism.repeat:
        return {"checked": False, "records": 0, "by": [], "different": []}
    capture = run.request.capture
    selection = capture.selection(repeat=True)
    recorder = Recorder(
        None,
        capture._replace(detail="tensors", fine=False),
        selection=selection,
        rank=rank_of(run.request),
        substitute=None if choices is None else choices.substitute,
        compiles=not runs_eagerly(run.request),
    )
    with run.events.nth_of(1, 2):
        second = _run_steps(run, workload, Training(run.request, workload.model, run.where), recorder)
    identities = {**first, **second}
    different = [identity for identity in identities if first.get(identity) != second.get(identity)]
    by = sorted({"statistics" if detail == "statistics" else "bits" for detail in selection.details})
    return {"checked": True, "records": len(identities), "by": by, "different": different}


def _describe_what_is_left(run: RunContext, workload: Workload, training: Training, output: Any) -> Dict[str, str]:
    """Return what a step leaves behind, by name: its loss or output, weights and buffers, and the states of the generators."""
    left = {"loss": training.losses[-1].hex()} if training.losses else {}
    outputs, weights = hash_inputs(output, "output")["entries"], hash_weights(workload.model)["entries"]
    left.update({name: entry["content"] for name, entry in outputs.items()})
    left.update({"weight " + name: entry["content"] for name, entry in weights.items()})
    generators = determinism.read_generators(run.device)
    return {**left, **{"generator of " + name: state for name, state in generators.items()}}


def _check_observer(run: RunContext, workload: Workload, watched: Dict[str, str]) -> Dict[str, Any]:
    """Run the first recorded step without a recorder, and compare what it leaves behind bit by bit."""
    if not watched:
        return dict(EMPTY_HEADER["observer"])
    plain: Dict[str, str] = {}
    _run_steps(run, workload, Training(run.request, workload.model, run.where), None, left=plain)
    different = [name for name in {**watched, **plain} if watched.get(name) != plain.get(name)]
    return {"checked": True, "step": min(run.request.capture.step), "different": different}


@contextmanager
def explain_user_errors(trail: Optional[Trail] = None, models: Sequence[Tuple[str, torch.nn.Module]] = ()) -> Iterator[None]:
    """Turn exceptions of user code into an ``AgentError`` that names line, module and operator; the exception stays its cause.

    Args:
        trail: What the recording remembers, if something is recorded.
        models: The models by name.
    """
    try:
        yield
    except AgentError:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # a workload may also call sys.exit()
        where = describe_failure(error, trail, models)
        unsupported = isinstance(error, NotImplementedError) or bool(where["missing"])
        kind = "memory" if where["memory"] else "unsupported" if unsupported else "workload"
        step = "another dtype or device may have this operator; " + _LOG if kind == "unsupported" else _LOG
        raise AgentError(kind, "the workload raised " + describe_error(error), step, traceback.format_exc(), where) from error
