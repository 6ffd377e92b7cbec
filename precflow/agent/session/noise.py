"""Action ``noise``: run the workload of the reference again, each time with a disturbance as small as rounding.

Two correct devices round in other places and add up in another order. How far that carries depends on the model, so it is
measured: the workload runs once with each of the disturbances below, and each run is recorded as a dump of its own, in a folder
of that name. The judge compares these dumps with the reference's. The largest difference of a record is its noise floor.

``jitter``   every result that an operator rounds is moved by one unit in the last place (ulp), up or down at random; in float32
             and float64 one element of 16 by two
``chunks``   matrix products and convolutions are computed in four parts, which are added up in float32 or wider; in float32
             with an accumulator that rounds towards zero, and with the errors of convolutions by tiles (Winograd)
``weights``  every weight is moved in the same way

If the first of them chooses anything (:mod:`precflow.agent.session.choices`), the workload runs once more without a disturbance
and without a dump, only to keep what it chooses then, and the first one is repeated.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Callable, Dict, Optional

import torch

from precflow.agent.contract import NOISE_FILE, NOISES, OPERATOR
from precflow.agent.dump.step_files import write_json
from precflow.agent.dump.write_errors import write_error
from precflow.agent.failures import AgentError
from precflow.agent.measure import value_classes
from precflow.agent.ranks import rank_of
from precflow.agent.recording import check_capture
from precflow.agent.session import garbage, rank_group
from precflow.agent.session.choices import Choices
from precflow.agent.session.disturbance import Chunks, Directions, Disturbance, Jitter, RoundedOnce
from precflow.agent.session.dump import (
    explain_user_errors,
    make_random_numbers,
    open_writer,
    record,
    run_unrecorded,
)
from precflow.agent.session.workload_model import RunContext, Workload, prepare
from precflow.agent.workloads.resolve import extend_path

if TYPE_CHECKING:
    from precflow.agent.capture.guard import Guard
    from precflow.agent.devices.protocol import Device
    from precflow.agent.events import Events
    from precflow.agent.request import Request

OF_WORKLOAD = ("workload", "unsupported", "memory")  # kinds of errors that only say that the workload does not run in this way


def noise(request: Request, device: Device, where: torch.device, events: Events) -> None:
    """Write one dump for each disturbance into a subfolder of ``request.output``, and ``noise.json`` last.

    The request's element type is that of the target, in which the reference's device may lack an operator. If the workload
    does not run, ``problem`` in the file says why, and there are no dumps: the run can still be judged by fixed limits.

    Raises:
        AgentError: Of every kind but those of ``OF_WORKLOAD``.
    """
    value_classes.add_constants(request.capture.fills)
    check_capture(request)
    extend_path(request.import_paths, request.workload)
    problem = ""
    try:
        with explain_user_errors():
            run = RunContext(request, device, where, events, make_random_numbers(request))
            workload = prepare(run, hashed=False)
            with garbage.collect_rarely():  # once for all runs: a full collection walks through every imported library
                # Of several ranks some may choose and others not, but all have to run equally often.
                choices = None if request.ranks == 1 else _keep_choices(run, workload)
                for number, name in enumerate(NOISES):
                    with events.nth_of(number, len(NOISES)):
                        if choices is None:
                            choices = _make_choices(request)
                            _record_disturbed(name, run, workload, choices)
                            if not choices.are_made:
                                continue
                            choices = _keep_choices(run, workload)
                            shutil.rmtree(os.path.join(request.output, name))
                        choices.follow()
                        _record_disturbed(name, run, workload, choices)
    except AgentError as error:
        if error.kind not in OF_WORKLOAD:
            raise
        problem = error.message
        for name in NOISES:
            shutil.rmtree(os.path.join(request.output, name), ignore_errors=True)
    write_outcome(request, problem, events)


def write_outcome(request: Request, problem: str, events: Events) -> None:
    """Write what became of disturbed runs; the first rank does it for all.

    Args:
        request: Its output is the folder.
        problem: Why the workload does not run in this way, in words; ``""`` if it does.
        events: Has the seconds.

    Raises:
        WriteError: The file cannot be written.
    """
    if rank_of(request):
        return
    try:
        facts = {
            "problem": problem,
            "noises": [request.noise] if request.noise else list(NOISES),
            "seconds": dict(events.seconds),
        }
        write_json(os.path.join(request.output, NOISE_FILE), facts)
    except OSError as error:
        raise write_error(error, request.output, 0) from error


def _make_choices(request: Request) -> Choices:
    return Choices(by_operator=OPERATOR in request.capture.level)


def _keep_choices(run: RunContext, workload: Workload) -> Choices:
    """Run the workload as it is, unrecorded, and return what it chose."""
    choices = _make_choices(run.request)
    run.events.report_progress("noise", "choices")
    run_unrecorded(run._replace(numbers=make_random_numbers(run.request)), workload, Disturbance(lambda: False, choices))
    return choices


def _record_disturbed(name: str, run: RunContext, workload: Workload, choices: Choices) -> None:
    """Record the workload with one disturbance. That of the weights stays in the model, so it comes last."""
    folder = os.path.join(run.request.output, name)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise write_error(error, folder, 0) from error
    if name == "weights":
        workload = _move_weights(workload)
    # Each run draws from generators that are as they were before the reference's run.
    run = run._replace(numbers=make_random_numbers(run.request))
    with open_writer(run.request, run.where, folder) as writer:
        run.events.report_progress("noise", "with other %s" % name)
        header = record(run, workload, writer, lambda recorder: disturb_below(recorder.without_recording(), name, choices))
        rank_group.seal(run.request, writer, {**header, "seconds": dict(run.events.seconds)})


def disturb_below(guard: Guard, name: str, choices: Optional[Choices] = None) -> Disturbance:
    """Return the context manager in which a step runs with a disturbance, which is out of capture's way while it works.

    Args:
        guard: That of capture, held while it works.
        name: One of ``NOISES``.
        choices: Those of the plain run, if they were kept.
    """
    mode = disturb(name, lambda: guard.is_held, choices)
    guard.modes.append(mode)
    return mode


def disturb(name: str, is_quiet: Callable[[], bool], choices: Optional[Choices] = None) -> Disturbance:
    """Return the context manager in which a step runs with this disturbance; that of the weights is in the model already.

    Args:
        name: One of ``NOISES``.
        is_quiet: Tells whether capture works at the moment, whose operators are left alone.
        choices: Those of the plain run, if they were kept.
    """
    if name == "jitter":
        return Jitter(is_quiet, Directions(), choices)
    return Chunks(is_quiet, Directions(), choices) if name == "chunks" else RoundedOnce(is_quiet, choices)


def _move_weights(workload: Workload) -> Workload:
    """Move every weight by one ulp and return the workload that starts from such weights."""
    directions = Directions()
    trained: Dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for name, parameter in workload.model.named_parameters():
            if name in workload.trained:  # an earlier run has trained it
                parameter.copy_(workload.trained[name])
            directions.move(parameter.data)
            if name in workload.trained:
                trained[name] = parameter.detach().cpu().clone()
    return workload._replace(trained=trained)
