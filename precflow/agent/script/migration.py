"""Makes a script that was written for CUDA run on the NPU, by the import that Huawei's migration guide names."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from precflow.agent.failures import AgentError

if TYPE_CHECKING:
    from precflow.agent.devices.protocol import Device

_TRANSFER = "transfer_to_npu"


def migrate(way: str, device: Device) -> None:
    """Import what the script needs to run on this device without a change.

    Args:
        way: ``transfer_to_npu``, or ``""`` for nothing.
        device: The device of the side.

    Raises:
        AgentError: ``unsupported``: an unknown way, or one that this device or installation does not have.
    """
    if not way:
        return
    if way != _TRANSFER:
        raise AgentError("unsupported", "migration=%s; expected %s" % (way, _TRANSFER))
    if device.name != "npu":
        raise AgentError("unsupported", "migration=%s is for an NPU, and this side runs on %s" % (way, device.kind))
    try:
        importlib.import_module("torch_npu.contrib.transfer_to_npu")
    except ImportError as error:
        message = "migration=%s cannot be imported on this side: %s" % (way, error)
        raise AgentError("unsupported", message, "it comes with torch_npu; without it, write the script for the NPU") from error
