"""Storages of the emulated device: creating, moving, saving and loading them.

There is no allocator for the device in C++, so a storage is always made on the host and relabelled; torch's own
constructor would crash the process, and is therefore replaced.
"""

from __future__ import annotations

from typing import Any, Optional

import torch

from precflow.agent.emulated import ordinal, private
from precflow.agent.emulated.relabel import DEVICE_TYPE, to_device

_PRIORITY = 15  # between the CPU's 10 and CUDA's 20 in torch.serialization's list of device handlers
_plain_new: Any = torch.UntypedStorage.__new__
_plain_to: Any = private.StorageBase.to


def install() -> None:
    """Replace the constructor and the ``to`` of storages, and register how they are saved and loaded."""
    private.set_up_storage_methods(DEVICE_TYPE)
    untyped: Any = torch.UntypedStorage
    private.StorageBase.npu = move
    private.StorageBase.to = _to
    untyped.__new__ = _new
    torch.serialization.register_package(_PRIORITY, _tag, _restore)


def move(storage: Any, device: ordinal.DeviceLike = None, non_blocking: bool = False) -> Any:  # noqa: ARG001, FBT001, FBT002  torch's own signature
    """Return the storage on ``device``: the same one if it is there already, else a copy."""
    index = ordinal.index_of(device)
    if storage.device == torch.device(DEVICE_TYPE, index):
        return storage
    bytes_on_host = torch.empty(storage.nbytes(), dtype=torch.uint8)
    bytes_on_host.untyped_storage().copy_(storage)
    return to_device(bytes_on_host, index).untyped_storage()


def _new(cls: Any, *arguments: Any, device: Any = None, **named: Any) -> Any:
    if device is None:
        return _plain_new(cls, *arguments, **named)
    if torch.device(device).type != DEVICE_TYPE:
        return _plain_new(cls, *arguments, device=device, **named)
    size = arguments[0] if arguments else 0
    return to_device(torch.empty(size, dtype=torch.uint8), ordinal.index_of(device)).untyped_storage()


def _to(storage: Any, *, device: Any, non_blocking: bool = False) -> Any:
    if torch.device(device).type == DEVICE_TYPE:
        return move(storage, device)
    return _plain_to(storage, device=device, non_blocking=non_blocking)


def _tag(storage: Any) -> Optional[str]:
    device = storage.device
    return "%s:%d" % (DEVICE_TYPE, device.index) if device.type == DEVICE_TYPE else None


def _restore(storage: Any, location: str) -> Optional[Any]:
    return move(storage, location) if location.split(":", maxsplit=1)[0] == DEVICE_TYPE else None
