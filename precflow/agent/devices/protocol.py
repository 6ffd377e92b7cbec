"""The device protocol: everything that the agent needs from a device.

A new device is one file of this folder, with a ``DEVICE`` that implements it. The file's name is the kind in recipes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch


class DeviceFacts(NamedTuple):
    """What a started device reports about itself.

    Attributes:
        description: Model name of the chip, such as ``NVIDIA H200``.
        versions: Driver and libraries, by name.
        switches: Numerical switches in effect, read back from torch after they were set, as text.
    """

    description: str
    versions: Dict[str, str]
    switches: Dict[str, str]


class Device(Protocol):
    """One kind of device.

    Attributes:
        name: torch's device type, such as ``npu``.
        kind: Its name in recipes, and that of its file: ``cpu``, ``cuda``, ``npu``, ``emulated``.
    """

    name: str
    kind: str

    def missing(self) -> str:
        """Return why this device cannot be used here, or ``""`` if it can; imports no more than needed to find out."""

    def start(self) -> torch.device:
        """Make the device usable and return it; called once, before anything else but :meth:`missing`."""

    def seed(self, seed: int) -> None:
        """Seed the device's own random generators."""

    def synchronize(self) -> None:
        """Wait until everything that was started on the device is done."""

    def deterministic(self, algorithms: str) -> None:
        """Set the device's own switches for ``strict``, ``warn`` or ``native``; ``native`` changes nothing."""

    def facts(self) -> DeviceFacts:
        """Return what the started device is and which switches are in effect."""
