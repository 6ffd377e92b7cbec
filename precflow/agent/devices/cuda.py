"""An NVIDIA GPU as a device, or another GPU that torch calls "cuda", such as an AMD GPU with ROCm."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from precflow.agent.devices.protocol import DeviceFacts

if TYPE_CHECKING:
    import torch


class Cuda:
    """The current CUDA device."""

    name = "cuda"
    kind = "cuda"

    def missing(self) -> str:
        """Return why there is no CUDA device: torch built without CUDA, or no device visible to the driver."""
        import torch

        if not torch.backends.cuda.is_built():
            return "torch %s is built without CUDA" % torch.__version__
        return "" if torch.cuda.is_available() else "torch sees no CUDA device (driver, CUDA_VISIBLE_DEVICES)"

    def start(self) -> torch.device:
        """Initialise CUDA and return the current device."""
        import torch

        torch.cuda.init()
        if "LOCAL_RANK" in os.environ:  # several ranks on one machine: each has a device of its own
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        return torch.device("cuda", torch.cuda.current_device())

    def seed(self, seed: int) -> None:
        """Seed the generators of all CUDA devices."""
        import torch

        torch.cuda.manual_seed_all(seed)

    def synchronize(self) -> None:
        """Wait for all streams of the current device."""
        import torch

        torch.cuda.synchronize()

    def deterministic(self, algorithms: str) -> None:
        """Ask cuDNN for deterministic algorithms; leave TF32 as the user's environment sets it."""
        import torch

        # benchmark=True makes cuDNN time several algorithms and take the fastest, which may be another one in the next run.
        if algorithms != "native":
            torch.backends.cudnn.deterministic = True
            torch.backends.cudnn.benchmark = False

    def facts(self) -> DeviceFacts:
        """Return the GPU's name, its libraries' versions, and TF32, cuDNN and reduced-precision switches."""
        import torch

        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        versions = {  # built for ROCm, torch has a version of HIP and none of CUDA
            "cuda": str(torch.version.cuda or getattr(torch.version, "hip", "")),
            "cudnn": str(torch.backends.cudnn.version()),
            "capability": "%d.%d" % (properties.major, properties.minor),
        }
        matmul = torch.backends.cuda.matmul
        switches = {
            "matmul.allow_tf32": str(matmul.allow_tf32),
            "matmul.allow_fp16_reduced_precision_reduction": str(matmul.allow_fp16_reduced_precision_reduction),
            "matmul.allow_bf16_reduced_precision_reduction": str(matmul.allow_bf16_reduced_precision_reduction),
            "cudnn.allow_tf32": str(torch.backends.cudnn.allow_tf32),
            "cudnn.deterministic": str(torch.backends.cudnn.deterministic),
            "cudnn.benchmark": str(torch.backends.cudnn.benchmark),
        }
        return DeviceFacts(str(properties.name), versions, switches)


DEVICE = Cuda()
