"""The emulated NPU as a device: a real ``torch.device("npu")`` that computes on the CPU, changed by the rules of a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from precflow.agent.devices.npu import switches
from precflow.agent.devices.protocol import DeviceFacts

if TYPE_CHECKING:
    import torch


class Emulated:
    """The emulated Ascend device of this process. Starting it cannot be undone, so it needs a process of its own."""

    name = "npu"
    kind = "emulated"

    def missing(self) -> str:
        """Return why the emulation does not work here: torch is too old, or a real NPU has the device's name."""
        from precflow.agent import emulated

        return emulated.describe_problem()

    def start(self) -> torch.device:
        """Install the emulation into this process and return its device."""
        import torch

        from precflow.agent import emulated

        emulated.install()
        return torch.device("npu", 0)

    def seed(self, seed: int) -> None:
        """Seed the emulated device's own generator."""
        _npu().manual_seed_all(seed)

    def synchronize(self) -> None:
        """Return at once: emulated operators are done when they return."""
        _npu().synchronize()

    def deterministic(self, algorithms: str) -> None:
        """Change nothing: the emulation follows ``torch.use_deterministic_algorithms``."""

    def facts(self) -> DeviceFacts:
        """Return a description that says "emulated", and the switches of ``torch.npu`` as migration code sees them."""
        return DeviceFacts(str(_npu().get_device_name(0)), {}, switches(_npu()))


DEVICE = Emulated()


def _npu() -> Any:
    import torch

    return torch.npu  # type: ignore[attr-defined]  # registered by the emulation
