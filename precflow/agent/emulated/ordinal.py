"""The indexes of the emulated devices: how many there are, which one is current, and which one a caller's argument means."""

from __future__ import annotations

from typing import Any, Dict, Union

import torch

from precflow.agent.emulated.relabel import DEVICE_TYPE

DeviceLike = Union[None, int, str, torch.device]

_state: Dict[str, int] = {"count": 2, "current": 0}


def device_count() -> int:
    """Return how many emulated devices there are."""
    return _state["count"]


def set_device_count(count: int) -> None:
    """Set the number of devices; called once, during installation."""
    _state["count"] = count


def current_device() -> int:
    """Return the index of the current device; it is the same for all threads of the process."""
    return _state["current"]


def set_device(device: DeviceLike) -> None:
    """Make ``device`` current.

    Raises:
        RuntimeError: There is no such device.
    """
    _state["current"] = index_of(device)


def index_of(device: Any) -> int:
    """Return the index that ``None``, ``1``, ``"npu"``, ``"npu:1"`` or a ``torch.device`` means.

    Raises:
        RuntimeError: The device is of another type, or its index is not below :func:`device_count`.
    """
    if device is None:
        return current_device()
    # torch.device(1) alone would mean the first accelerator that torch finds, so the type is added.
    named = torch.device(DEVICE_TYPE, device) if isinstance(device, int) else torch.device(device)
    if named.type != DEVICE_TYPE:
        raise RuntimeError("expected a device of type npu (emulated), got %s" % named)
    index = current_device() if named.index is None else int(named.index)
    if not 0 <= index < device_count():
        raise RuntimeError("invalid device ordinal npu:%d: %d emulated npu devices are here, from 0" % (index, device_count()))
    return index
