"""Which reading of a call reproduces what was recorded: they are run in float64, the likeliest first."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch

from precflow.agent.capture.nesting import output_tensors
from precflow.agent.contract import LARGEST
from precflow.agent.replay import operators
from precflow.agent.replay.calls import CannotCompute, is_out_of_memory


class Exact(NamedTuple):
    """float64 results by output path.

    Attributes:
        outputs: The results.
        terms: The sums of absolute terms where the operator adds up.
        inner: The largest term inside where a function adds up on its way to the result.
    """

    outputs: Dict[str, torch.Tensor]
    terms: Dict[str, torch.Tensor]
    inner: Mapping[str, torch.Tensor] = {}


def widen(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy in float64, complex128, or the tensor's own type if that is no floating point type."""
    if tensor.is_complex():
        return tensor.to(torch.complex128, copy=True)
    return tensor.to(torch.float64, copy=True) if tensor.is_floating_point() else tensor.clone()


def adapt(value: Any, *, single: bool) -> Any:
    """Return an argument as the evaluation needs it.

    Floating point types become float64, complex ones complex128. A number such as 0.1 is rounded to float32, as every operator
    on smaller types does before it computes.
    """
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else torch.complex128 if value.is_complex else value
    if single and isinstance(value, float) and abs(value) <= LARGEST["float32"]:
        return torch.tensor(value, dtype=torch.float32).item()
    return value


def outputs_of(result: Any) -> Dict[str, torch.Tensor]:
    """Return the tensors of what an operator returned, by path.

    Raises:
        TypeError: It returned nothing.
    """
    if result is None:
        raise TypeError("it returns nothing")
    return dict(output_tensors(result))


def run_closest(
    readings: Sequence[operators.Reading],
    run: Callable[[operators.Reading], Dict[str, torch.Tensor]],
    compare: Callable[[Dict[str, torch.Tensor]], Tuple[float, float]],
    failure: str,
) -> Tuple[operators.Reading, Dict[str, torch.Tensor]]:
    """Return the first reading of a call that gives what is expected, or the one closest to it, and its outputs by path.

    Args:
        readings: The likeliest first.
        run: Runs one and returns its outputs by path.
        compare: Takes outputs; returns how far they are from what is expected, and how far is near enough.
        failure: Said where none of them runs.

    Raises:
        CannotCompute: None of them runs; the message has the problem of the likeliest.
    """
    closest: Optional[Tuple[operators.Reading, Dict[str, torch.Tensor]]] = None
    least, problem = math.inf, ""
    for reading in readings:
        try:
            outputs = run(reading)
        except CannotCompute:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            # This reading does not fit the arguments; another may.
            problem = problem or "%s: %s" % (reading.name, str(error).partition("\n")[0][:160])
            continue
        if len(readings) == 1:  # there is no other to be closer
            return reading, outputs
        distance, tolerance = compare(outputs)
        if closest is None or distance < least:
            least, closest = distance, (reading, outputs)
        if distance <= tolerance:
            break
    if closest is None:
        raise CannotCompute("%s: %s" % (failure, problem or "there is none"))
    return closest


def measure_distance(outputs: Mapping[str, torch.Tensor], recorded: Mapping[str, torch.Tensor]) -> float:
    """Return how far a computation is from what was recorded: the largest relative error; infinite if it has another shape."""
    largest = 0.0
    for index, tensor in recorded.items():
        result = outputs.get(index)
        if result is None:
            continue
        if result.shape != tensor.shape:
            return math.inf
        if not tensor.numel():
            continue
        difference, size = (
            torch.nan_to_num(_as_double(each)).norm() for each in (_as_double(tensor) - _as_double(result), result)
        )
        largest = max(largest, float(difference) / (float(size) or 1.0))
    return largest


def _as_double(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.to(torch.complex128)) if tensor.is_complex() else tensor.to(torch.float64)


def choose_tolerance(recorded: Mapping[str, torch.Tensor]) -> float:
    """Return the distance below which a reading is taken at once: far above rounding, far below another computation."""
    units = [torch.finfo(tensor.dtype).eps for tensor in recorded.values() if tensor.is_floating_point() or tensor.is_complex()]
    return 256 * max([float(unit) for unit in units if unit > 1e-10] or [1e-9])
