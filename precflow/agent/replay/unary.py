"""Action ``unary``: elementwise functions of one 16-bit number, on this side's device, for all 65 536 numbers that there are.

A workload shows a function at the values that happen to occur. These types are small enough to look at all of them. The result
is a list of ``functions`` in ``unary.json``, one entry for each function and type::

    {"operator": "exp", "dtype": "bfloat16", "why": "", "largest": 0.5, "at": -3.25, "rounded": 65000, "wrong": 3,
     "misplaced": 0}

``largest`` is the largest error in units in the last place (ulp) of the exact result, ``at`` the number where it is; a
correctly rounded function has at most 0.5. ``wrong`` counts those of the ``rounded`` finite results that are not the exact
result rounded once, ``misplaced`` those that are NaN, infinite or of the other sign where the exact result is not, or the
reverse.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, Dict, Tuple

import torch

from precflow.agent.contract import UNARY_FILE
from precflow.agent.dump.step_files import write_json
from precflow.agent.dump.write_errors import write_error
from precflow.agent.session.written_out import gelu, silu

if TYPE_CHECKING:
    from precflow.agent.devices.protocol import Device
    from precflow.agent.events import Events
    from precflow.agent.request import Request

functional = torch.nn.functional
DTYPES = (torch.float16, torch.bfloat16)

# The device's function, and the same in float64 on the CPU.
FUNCTIONS: Dict[str, Tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
    name: (getattr(torch, name), getattr(torch, name))
    for name in "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tanh sigmoid erf abs neg floor ceil".split()
}
FUNCTIONS["gelu"] = (functional.gelu, gelu)
FUNCTIONS["gelu_tanh"] = (
    lambda values: functional.gelu(values, approximate="tanh"),
    lambda values: gelu(values, "tanh"),
)
FUNCTIONS["silu"] = (functional.silu, silu)
FUNCTIONS["softplus"] = (functional.softplus, functional.softplus)


def unary(request: Request, device: Device, where: torch.device, events: Events) -> None:
    """Write a line for each function and type.

    Raises:
        AgentError: The file cannot be written.
    """
    with events.time_part("unary", "computing functions of all 16-bit numbers on %s" % device.kind), torch.no_grad():
        lines = [measure(name, dtype, where) for name in FUNCTIONS for dtype in DTYPES]
    try:
        write_json(os.path.join(request.output, UNARY_FILE), {"functions": lines})
    except OSError as error:
        raise write_error(error, request.output, 0) from error


def every_number(dtype: torch.dtype) -> torch.Tensor:
    """Return all 65 536 numbers of a 16-bit type, NaN and infinities among them."""
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)


def measure(name: str, dtype: torch.dtype, where: torch.device) -> Dict[str, Any]:
    """Return the line of a function and a type; a device that lacks it says so."""
    on_device, exactly = FUNCTIONS[name]
    line: Dict[str, Any] = {"operator": name, "dtype": str(dtype).rpartition(".")[2], "why": ""}
    numbers = every_number(dtype)
    try:
        result = on_device(numbers.to(where)).to("cpu")
    except Exception as error:  # noqa: BLE001  a missing kernel raises whatever the device's makers chose
        why = "%s: %s" % (type(error).__name__, str(error).partition("\n")[0][:200])
        return {**line, "why": why, "largest": 0.0, "at": 0.0, "rounded": 0, "wrong": 0, "misplaced": 0}
    return {**line, **compare(numbers, result, exactly(numbers.double()))}


def compare(numbers: torch.Tensor, result: torch.Tensor, exact: torch.Tensor) -> Dict[str, Any]:
    """Return the numbers of a line.

    Args:
        numbers: All numbers of the type.
        result: What the device returned for them, in the same type.
        exact: The same in float64.
    """
    rounded = exact.to(result.dtype)  # beyond the largest number it is infinite, as the result has to be
    finite = rounded.isfinite() & result.isfinite()
    misplaced = (rounded.isnan() != result.isnan()) | (rounded.isinf() != result.isinf())
    misplaced |= (result.sign() * rounded.sign() < 0) & ~result.isnan()
    units = _unit(rounded[finite])
    errors = (result[finite].double() - exact[finite]).abs() / units
    worst = int(errors.argmax()) if errors.numel() else 0
    return {
        "largest": float(errors[worst]) if errors.numel() else 0.0,
        "at": float(numbers[finite][worst]) if errors.numel() else 0.0,
        "rounded": int(finite.sum()),
        "wrong": int((result[finite] != rounded[finite]).sum()),
        "misplaced": int(misplaced.sum()),
    }


def _unit(values: torch.Tensor) -> torch.Tensor:
    """Return the unit in the last place at each value: the distance to the next number away from 0, in float64.

    Below the smallest normal number that of the smallest normal one is taken: devices may flush subnormals to 0, which
    ``wrong`` counts and ``largest`` would only blow up.
    """
    facts = torch.finfo(values.dtype)
    _, exponents = values.double().abs().clamp_min(facts.tiny).frexp()
    return torch.ldexp(torch.full_like(exponents, facts.eps, dtype=torch.float64), exponents - 1)
