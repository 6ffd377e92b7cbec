"""Runs a checked request: imports torch, starts the device, and hands over to the action."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, Dict, Mapping, Tuple

from precflow.agent.contract import FACTS_FILE
from precflow.agent.failures import AgentError
from precflow.agent.request import runs_eagerly

if TYPE_CHECKING:
    import torch

    from precflow.agent.devices.protocol import Device
    from precflow.agent.events import Events
    from precflow.agent.request import Request

OLDEST_TORCH = (2, 1)


def run(request: Request, events: Events) -> None:
    """Do what the request asks.

    Actions and devices are imported here one by one, since most of them import torch.

    Raises:
        AgentError: It could not be done.
    """
    if not os.path.isdir(request.output):
        raise AgentError("bad_request", "output %r is not a folder; it must exist" % request.output)
    if request.action == "machine":
        _write_facts(request, _describe_machine(request, events))
        return
    import_torch(events)
    if request.action == "rehearse":  # runs without values, so it needs no device
        from precflow.agent.session.rehearse import rehearse

        rehearse(request, events)
        return
    if request.action == "evaluate":  # runs on the CPU, whatever the device
        from precflow.agent.replay.evaluate import evaluate

        evaluate(request, events)
        return
    with events.time_part("device", "starting the device"):
        device, where = _choose_device(request)
    events.report_progress("device", "%s of %s" % (device.kind, ", ".join(request.device)))
    if request.action == "environment":
        from precflow.agent.session import environment

        _write_facts(request, environment.collect(device))
        return
    from precflow.agent.capture.wrappers import compile_nothing

    # A script compiles nothing from its own beginning on.
    with compile_nothing(unless=bool(request.workload.get("script")) or not runs_eagerly(request)):
        _act(request, device, where, events)


def _act(request: Request, device: Device, where: torch.device, events: Events) -> None:
    """Do what a request asks for on a started device."""
    if request.action == "replay":
        from precflow.agent.replay.replay import replay

        replay(request, device, where, events)
    elif request.action == "unary":
        from precflow.agent.replay.unary import unary

        unary(request, device, where, events)
    else:
        _run_workload(request, device, where, events)


def import_torch(events: Events) -> None:
    """Import torch, which takes seconds.

    Raises:
        AgentError: ``workload``: it cannot be imported. ``unsupported``: it is too old.
    """
    with events.time_part("torch", "importing torch"):
        try:
            import torch
        except ImportError as error:
            message = "this interpreter cannot import torch: %s" % error
            raise AgentError("workload", message, "pip install 'torch>=2.1' there") from error
        except RuntimeError as error:  # torch imports what is installed beside it, such as torch_npu without its libraries
            reason = "%s (%s)" % (str(error).splitlines()[0], error.__cause__) if error.__cause__ else str(error)
            raise AgentError("workload", "torch does not load here: %s" % reason) from error
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST_TORCH:
        raise AgentError("unsupported", "torch %s is too old; expected 2.1 or newer" % torch.__version__)


def _run_workload(request: Request, device: Device, where: torch.device, events: Events) -> None:
    """Do a request that runs the workload of a side."""
    if request.action == "noise" and not request.workload.get("script"):
        from precflow.agent.session.noise import noise

        noise(request, device, where, events)
    elif request.action == "whatif":
        from precflow.agent.session.whatif import whatif

        whatif(request, device, where, events)
    elif request.action == "as_is":
        from precflow.agent.script.as_is import run_as_is

        run_as_is(request, device, where, events)
    elif request.conversion.runtime:
        from precflow.agent.converted.dump import dump as dump_converted

        dump_converted(request, device, where, events)
    elif request.workload.get("script"):
        from precflow.agent.script import dump as watched
        from precflow.agent.script import plain

        of_action = {"plain": plain.run_plain, "noise": watched.disturb_script}
        of_action.get(request.action, watched.dump_script)(request, device, where, events)
    else:
        from precflow.agent.session.dump import dump

        dump(request, device, where, events)


def _choose_device(request: Request) -> Tuple[Device, torch.device]:
    from precflow.agent.devices.choose import choose

    device = choose(request.device, ci=request.ci, side=request.side)
    return device, _start_device(request, device)


def _describe_machine(request: Request, events: Events) -> Dict[str, Any]:
    """Return the facts of this side and the state of its machine.

    That torch does not load, or that no device can be used, is a fact too: ``refused``, with the facts that there are without.
    """
    from precflow.agent.session import environment, machine

    refused: Dict[str, str] = {}
    facts: Dict[str, Any] = {}
    try:
        import_torch(events)
        facts = environment.collect(_choose_device(request)[0])
    except AgentError as error:
        refused = {"message": error.message, "next_step": error.next_step}
    facts = facts or environment.collect(None)
    return {**facts, "machine": machine.collect(request.output, started=not refused), "refused": refused}


def _start_device(request: Request, device: Device) -> torch.device:
    """Start the device, then set faults, switches and seeds; return torch's name for the device.

    The workload is not imported before that: a module that draws or allocates when it is imported does so under these settings.
    """
    from precflow.agent.session import determinism, faults

    try:
        where = device.start()
    except RuntimeError as error:
        raise AgentError("device_missing", "device %s does not start: %s" % (device.kind, error)) from error
    faults.configure(request, device)
    determinism.apply(request.determinism, device)
    return where


def _write_facts(request: Request, facts: Mapping[str, Any]) -> None:
    from precflow.agent.dump.step_files import write_json

    path = os.path.join(request.output, FACTS_FILE)
    try:
        write_json(path, facts)
    except OSError as error:
        raise AgentError(
            "disk_full" if error.errno == errno.ENOSPC else "unwritable", "cannot write %s: %s" % (path, error.strerror)
        ) from error
