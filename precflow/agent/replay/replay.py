"""Action ``replay``: run recorded operator calls once more on this side's device, alone and in their own element types.

It reads ``calls.jsonl`` like action ``evaluate`` and writes ``replayed.jsonl``, a line for each output of each call::

    {"call": "...", "index": "0", "kind": "matmul", "replayed": true, "why": "",
     "runs": {"reference": {...}, "target": {...}}, "same_bits": true}

``runs`` holds the numbers (:mod:`~precflow.agent.replay.numbers`) of what the device returns for the inputs of each side,
against float64 at the same inputs; arguments are the reference's. ``same_bits`` tells whether the run with the target's inputs
gives what the target has recorded, ``null`` if that was not kept. An operator that is wrong in the run and right here is not
wrong by itself: the layout of its inputs, another stream, or a state that something left behind made the difference.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Tuple

import torch

from precflow.agent.contract import REPLAYED_FILE
from precflow.agent.replay import operators
from precflow.agent.replay.calls import CannotCompute, RecordedCall, TensorFiles
from precflow.agent.replay.computation import (
    Computation,
    SideValues,
    check_size,
    float64_defaults,
    measure_output,
    output_indices,
    read_side,
)
from precflow.agent.replay.evaluate import write_results
from precflow.agent.replay.readings import Exact, choose_tolerance, measure_distance, outputs_of, run_closest

if TYPE_CHECKING:
    from precflow.agent.devices.protocol import Device
    from precflow.agent.events import Events
    from precflow.agent.request import Request

Line = Dict[str, Any]

TARGET = "target"


def replay(request: Request, device: Device, where: torch.device, events: Events) -> None:
    """Run every call of the request's folder on the device and write the results.

    Args:
        request: The request.
        device: The device, started.
        where: torch's name for it.
        events: Gets progress.

    Raises:
        AgentError: ``calls.jsonl`` cannot be read, or the results cannot be written.
    """
    files = TensorFiles()
    with events.time_part("replay", "running recorded operators on %s" % device.kind):
        count = write_results(
            request.output, REPLAYED_FILE, lambda call: replay_call(call, files, where, device.synchronize), events
        )
    events.report_progress("replay", "%d calls" % count)


def replay_call(
    call: RecordedCall, files: TensorFiles, where: torch.device, wait: Callable[[], None] = lambda: None
) -> List[Line]:
    """Return a line for each output of a call; never raises because of what the call is.

    Args:
        call: The call.
        files: Reads its tensors.
        where: The device.
        wait: Waits until the device is done.
    """
    kind = operators.kind_of(call)
    try:
        return _replay(call, kind, files, where, wait)
    except CannotCompute as error:
        why = str(error)
    except MemoryError:
        why = "the memory is not enough"
    except Exception as error:  # noqa: BLE001  a call is data: whatever the device makes of it, the others still run
        why = "%s: %s" % (type(error).__name__, str(error).partition("\n")[0][:200])
    return [_line(call, index, kind, why) for index in output_indices(call)]


def _line(call: RecordedCall, index: str, kind: str, why: str) -> Line:
    """Return the line of an output; without the reason why not, it is still to be filled in."""
    return {
        "call": call.call,
        "index": index,
        "kind": kind,
        "replayed": not why,
        "why": why,
        "runs": {},
        "same_bits": None,
    }


def _replay(call: RecordedCall, kind: str, files: TensorFiles, where: torch.device, wait: Callable[[], None]) -> List[Line]:
    if kind == operators.RANDOM:
        raise CannotCompute("it draws random numbers, which were not recorded")
    check_size(call)
    sides = {name: read_side(tensors, files) for name, tensors in call.sides.items()}
    computation = Computation(call, kind)
    on_device = _OnDevice(call, where, wait)
    outputs: Dict[str, Dict[str, torch.Tensor]] = {}
    exact: Dict[str, Exact] = {}
    for name in sorted(sides):  # the reference before the target
        with float64_defaults(), torch.no_grad():
            exact[name] = computation.run(sides[name])
        outputs[name] = on_device.run(sides[name], exact[name])
    lines = []
    for index in output_indices(call):
        measured = {name: _measure(found, exact[name], index) for name, found in outputs.items()}
        why = next((line["why"] for line in measured.values() if "why" in line), "")
        same = _are_same(outputs.get(TARGET, {}).get(index), sides[TARGET].outputs.get(index) if TARGET in sides else None)
        lines.append({**_line(call, index, kind, why), "runs": {} if why else measured, "same_bits": same})
    return lines


def _measure(outputs: Mapping[str, torch.Tensor], exact: Exact, index: str) -> Line:
    if index not in outputs:
        return {"why": "output %s does not come back" % index}
    return measure_output(outputs[index], exact, index)


def _are_same(output: Optional[torch.Tensor], recorded: Optional[torch.Tensor]) -> Optional[bool]:
    """Tell whether two tensors have the same bits; ``None`` without one of them."""
    if output is None or recorded is None:
        return None
    if output.dtype != recorded.dtype or output.shape != recorded.shape:
        return False
    here, there = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (output, recorded))
    return bool(torch.equal(here, there))


class _OnDevice:
    """Runs a call on a device as it was recorded. The first inputs that it is given choose how its name is read.

    Args:
        call: The call.
        where: The device.
        wait: Waits until the device is done.
    """

    def __init__(self, call: RecordedCall, where: torch.device, wait: Callable[[], None]) -> None:
        # `torch.zeros(3, device="cuda:0")` of the reference makes its zeros on this device.
        self._readings = operators.find_readings(
            call, lambda value: where if isinstance(value, torch.device) else value, composed=False
        )
        self._where = where
        self._wait = wait

    def run(self, side: SideValues, exact: Exact) -> Dict[str, torch.Tensor]:
        """Return the outputs on the host.

        Args:
            side: The inputs.
            exact: float64 at these inputs, by which the right reading is told.

        Raises:
            CannotCompute: The device runs none of the readings.
        """
        reading, outputs = run_closest(
            self._readings,
            lambda reading: self._run_here(reading, side),
            lambda outputs: _compare(outputs, exact),
            "the device runs none of its forms",
        )
        self._readings = [reading]
        return outputs

    def _run_here(self, reading: operators.Reading, side: SideValues) -> Dict[str, torch.Tensor]:
        inputs = {index: tensor.clone().to(self._where) for index, tensor in side.inputs.items()}
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            outputs = outputs_of(reading.run(inputs))
            self._wait()
        return {index: tensor.detach().to("cpu") for index, tensor in outputs.items()}


def _compare(outputs: Mapping[str, torch.Tensor], exact: Exact) -> Tuple[float, float]:
    """Return how far outputs are from float64, and how far is near enough; what was not computed again is left out."""
    compared = {index: tensor for index, tensor in outputs.items() if index in exact.outputs}
    return measure_distance(exact.outputs, compared), choose_tolerance(compared)
