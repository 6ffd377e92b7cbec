"""Action ``whatif``: run the target's workload as it is, then once for each arm with its interventions, in one process.

An arm is a run with something changed. Each is recorded as a dump of its own, in a folder of its name. The first,
``unchanged``, changes nothing: a change that fixes a run proves something only if the same process still fails without it.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ContextManager, Dict, List

import torch

from precflow.agent.contract import UNCHANGED, WHATIF_FILE
from precflow.agent.dump.step_files import write_json
from precflow.agent.dump.write_errors import write_error
from precflow.agent.failures import AgentError
from precflow.agent.measure import value_classes
from precflow.agent.ranks import rank_of
from precflow.agent.recording import check_capture
from precflow.agent.session import determinism, faults, rank_group
from precflow.agent.session.dump import explain_user_errors, make_random_numbers, open_writer, record
from precflow.agent.session.interventions import Interventions
from precflow.agent.session.raised_parts import parts_in
from precflow.agent.session.training import Training
from precflow.agent.session.workload_model import RunContext, Workload, element_type, prepare
from precflow.agent.workloads.resolve import extend_path

if TYPE_CHECKING:
    from precflow.agent.capture.recorder import Recorder
    from precflow.agent.devices.protocol import Device
    from precflow.agent.events import Events
    from precflow.agent.request import Arm, Request

_OF_ARM = ("workload", "unsupported")  # kinds of errors that only say that the workload does not run in this way


def whatif(request: Request, device: Device, where: torch.device, events: Events) -> None:
    """Write one dump for each arm into a subfolder of ``request.output``, and ``whatif.json`` last.

    The file has for each arm ``problem`` (why it did not run; then it has no dump), ``changed`` (number of calls that were
    changed) and ``seconds`` (of each of ``request.rounds`` runs without capture, in turn with those of the other arms, so that
    the n-th of all arms belong together). One more round before them warms up and is left out.

    Raises:
        AgentError: The workload does not run as it is, or a dump cannot be written.
    """
    value_classes.add_constants(request.capture.fills)
    check_capture(request)
    extend_path(request.import_paths, request.workload)
    with explain_user_errors():
        run = RunContext(request, device, where, events, make_random_numbers(request))
        raised = [
            name for arm in request.arms for change in arm.changes if change.kind == "part" for name in parts_in(change.value)
        ]
        workload = prepare(run, uncast=raised)
    arms: Dict[str, Dict[str, Any]] = {}
    for number, arm in enumerate(request.arms):
        events.report_progress("whatif", "with %s" % arm.name)
        with events.nth_of(number, len(request.arms)):
            arms[arm.name] = _record(arm, run, workload)
    sound = [arm for arm in request.arms if not arms[arm.name]["problem"]]
    # In turn, so that a machine that gets slower meanwhile is so for all of them.
    for number in range(request.rounds + 1 if request.rounds else 0):
        for arm in sound:
            seconds = _time(arm, run, workload)
            arms[arm.name]["seconds"] += [seconds] if number else []
    if rank_of(request):  # the first rank writes it for all
        return
    try:
        write_json(os.path.join(request.output, WHATIF_FILE), {"arms": arms, "seconds": dict(events.seconds)})
    except OSError as error:
        raise write_error(error, request.output, 0) from error


def _record(arm: Arm, run: RunContext, workload: Workload) -> Dict[str, Any]:
    """Record one arm; an arm that this torch or device cannot run says so and leaves no dump."""
    folder = os.path.join(run.request.output, arm.name)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise write_error(error, folder, 0) from error
    run = run._replace(numbers=make_random_numbers(run.request))  # it draws what the run before has drawn
    acting: List[Interventions] = []

    def intervene(recorder: Recorder) -> ContextManager[Any]:
        """Return what changes the calls of one step, while the recorder records them."""
        guard = recorder.without_recording()
        acting.append(Interventions(workload.model, arm.changes, lambda: guard.is_held, workload.uncast))
        return acting[0]

    try:
        with open_writer(run.request, run.where, folder) as writer, explain_user_errors():
            header = record(run, workload, writer, intervene)
            acting[0].check_acted()
            rank_group.seal(run.request, writer, {**header, "seconds": dict(run.events.seconds)})
    except AgentError as error:
        if error.kind not in _OF_ARM or arm.name == UNCHANGED:
            raise
        shutil.rmtree(folder, ignore_errors=True)
        return {"problem": error.message, "changed": 0, "seconds": []}
    return {"problem": "", "changed": acting[0].changed, "seconds": []}


def _time(arm: Arm, run: RunContext, workload: Workload) -> float:
    """Return how long the steps take without capture, in seconds."""
    request = run.request
    run = run._replace(numbers=make_random_numbers(request))
    around: ContextManager[Any] = nullcontext()
    if arm.changes:
        around = Interventions(workload.model, arm.changes, uncast=workload.uncast)
    training = Training(request, workload.model, run.where)
    determinism.reseed(request.determinism, run.device)
    workload.restore()
    run.device.synchronize()
    seconds = 0.0
    for _ in range(max(request.capture.step) + 1):
        inputs = workload.copy_inputs(element_type(request.dtype), run.where)
        with run.numbers, faults.follow_modules(request, workload.model), around:
            began = time.perf_counter()
            training.begin_step()
            training.step(inputs)
            run.device.synchronize()
            seconds += time.perf_counter() - began
    return seconds
