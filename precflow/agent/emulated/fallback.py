"""The kernel behind nearly every operator of the emulated device: it runs the CPU operator on the same memory.

Arguments on ``npu`` become CPU aliases, the CPU operator runs (with the numerical rules, if there are any), and its results are
relabelled as ``npu``. The recursive helpers are functions and not closures on purpose: a closure that refers to itself is a
reference cycle and would keep every argument alive until the next garbage collection.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Tuple

import torch

from precflow.agent.emulated import generator, ordinal
from precflow.agent.emulated.relabel import CPU, DEVICE_TYPE, adopt, is_emulated, on_host_key, to_device, to_host
from precflow.agent.emulated.schemas import Operator, read_schema

Compute = Callable[..., Any]
Interceptor = Callable[[Operator, Compute], Compute]

_interceptors: List[Interceptor] = []


def intercept(interceptor: Optional[Interceptor]) -> None:
    """Let ``interceptor`` wrap the CPU computation of every operator from now on; ``None`` removes it."""
    _interceptors[:] = [] if interceptor is None else [interceptor]


class _CallDevices:
    """Collects the devices of the arguments of one call while they are moved to the host."""

    __slots__ = ("index", "operator", "saw_host")

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.index: Optional[int] = None
        self.saw_host = False

    def see(self, device: torch.device) -> None:
        """Note the device of an argument.

        Raises:
            RuntimeError: Two different devices in one call; the message is like that of real devices.
        """
        if device.type == DEVICE_TYPE:
            if self.index is not None and self.index != device.index and not self.operator.mixed:
                _refuse_mixed(self.operator, "npu:%d" % self.index, str(device))
            self.index = ordinal.index_of(device) if self.index is None else self.index
        elif device.type == "cpu":
            self.saw_host = True

    def settle(self) -> int:
        """Return the index of the npu for the results.

        Raises:
            RuntimeError: The call mixes npu and CPU tensors.
        """
        if self.saw_host and self.index is not None and not self.operator.mixed:
            _refuse_mixed(self.operator, "npu:%d" % self.index, "cpu")
        return ordinal.current_device() if self.index is None else self.index


def run(overload: Any, *arguments: Any, **named: Any) -> Any:
    """Run ``overload`` (an ``OpOverload``) for npu tensors; registered for every operator of the device.

    Raises:
        RuntimeError: The tensors live on different devices, or a generator belongs to another one.
    """
    operator = read_schema(overload)
    if operator.relabels:
        return on_host_key(overload, *arguments, **named)
    given = dict(zip(operator.arguments, arguments), **named)
    devices = _CallDevices(operator)
    call = {name: _move_to_host(value, name in operator.written, devices) for name, value in given.items()}
    index = devices.settle()
    if call.get("pin_memory"):
        call["pin_memory"] = None  # pinned memory comes from an accelerator's allocator, and this device has none
    if operator.draws:
        call["generator"] = generator.check(call.get("generator"), index)
    with generator.as_default(index) if operator.draws_silently else contextlib.nullcontext():
        results = _compute(operator, overload, call)
    # out= and in-place npu tensors get the storage of their CPU aliases that the operator has resized.
    for name in operator.written:
        for tensor, host in zip(_as_sequence(given.get(name)), _as_sequence(call.get(name))):
            if is_emulated(tensor) and tensor.shape != host.shape:
                adopt(tensor, host)
    if len(operator.sources) == 1:
        return _wrap_result(results, operator.sources[0], given, index)
    if isinstance(results, tuple):
        pairs: List[Tuple[Any, Optional[str]]] = list(zip(results, operator.sources))
        return tuple([_wrap_result(result, source, given, index) for result, source in pairs])
    return results


def _compute(operator: Operator, overload: Any, call: Dict[str, Any]) -> Any:
    # In `x % 3` a number stands for a tensor argument. The dispatcher accepts that, but from Python the tensor overload does
    # not; its packet picks an overload that does.
    numbers = any(isinstance(call.get(name), (bool, int, float, complex)) for name in operator.tensors)
    compute: Compute = overload.overloadpacket if numbers else overload
    for interceptor in _interceptors:
        compute = interceptor(operator, compute)
    positional = operator.arguments[: operator.positional]
    by_name = {name: call[name] for name in operator.arguments[operator.positional :] if name in call}
    return compute(*[call[name] for name in positional if name in call], **by_name)


def _move_to_host(value: Any, written: bool, devices: _CallDevices) -> Any:  # noqa: FBT001  private, called once
    if isinstance(value, torch.Tensor):
        if value.dim() or is_emulated(value):  # a CPU tensor without dimensions may be mixed with any device, as in real torch
            devices.see(value.device)
        if not is_emulated(value):
            return value
        # An empty out= tensor is there for the operator to resize. Memory that came through DLPack cannot be resized, so the
        # operator gets a new tensor, and _adopt_resized hands its storage to the npu tensor.
        return torch.empty(value.shape, dtype=value.dtype) if written and value.numel() == 0 else to_host(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_move_to_host(item, written, devices) for item in value])
    if isinstance(value, torch.device) and value.type == DEVICE_TYPE:
        devices.see(torch.device(DEVICE_TYPE, ordinal.index_of(value)))
        return CPU
    return value


def _as_sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _wrap_result(result: Any, source: Optional[str], given: Dict[str, Any], index: int) -> Any:
    if source is not None:
        return given[source]
    if isinstance(result, torch.Tensor):
        return to_device(result, index) if result.device.type == "cpu" else result
    if isinstance(result, (list, tuple)):
        return type(result)([_wrap_result(item, None, given, index) for item in result])
    return result


def _refuse_mixed(operator: Operator, first: str, second: str) -> NoReturn:
    raise RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, %s and %s! "
        "(operator aten::%s, emulated npu)" % (first, second, operator.overload)
    )
