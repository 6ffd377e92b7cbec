"""The CPU as a device."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from precflow.agent.devices.protocol import DeviceFacts

if TYPE_CHECKING:
    import torch


class Cpu:
    """The processor that the agent itself runs on."""

    name = "cpu"
    kind = "cpu"

    def missing(self) -> str:
        """Return ``""``: there is always a CPU."""
        return ""

    def start(self) -> torch.device:
        """Return ``cpu``."""
        import torch

        return torch.device("cpu")

    def seed(self, seed: int) -> None:
        """Seed torch's CPU generator; ``torch.manual_seed`` would do it for devices too that nobody has started."""
        import torch

        torch.default_generator.manual_seed(seed)

    def synchronize(self) -> None:
        """Return at once: CPU operators are done when they return."""

    def deterministic(self, algorithms: str) -> None:
        """Change nothing: the CPU has no switches of its own."""

    def facts(self) -> DeviceFacts:
        """Return the processor's name, the widest instruction set that torch uses, and its numerical switches."""
        import torch

        # Older versions of torch have no get_cpu_capability.
        capability = getattr(torch.backends.cpu, "get_cpu_capability", lambda: "unknown")
        switches = {
            "threads": str(torch.get_num_threads()),
            "mkldnn": str(torch.backends.mkldnn.is_available()),
        }
        return DeviceFacts(_model_name(), {"instructions": str(capability())}, switches)


DEVICE = Cpu()


def _model_name() -> str:
    # platform.processor() is "" or just "x86_64" on most Linux systems, so the name is read from /proc.
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as stream:
            lines = [line.partition(":") for line in stream]
    except OSError:
        return platform.processor() or platform.machine()
    names = [value.strip() for key, _, value in lines if key.strip() in ("model name", "Model Name", "Hardware")]
    return names[0] if names else platform.processor() or platform.machine()
