"""An Ascend NPU as a device, through ``torch_npu``. That is imported only here, and only if an NPU is asked for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, Dict

from precflow.agent.devices.protocol import DeviceFacts
from precflow.agent.session import machine

if TYPE_CHECKING:
    import torch


class Npu:
    """The current Ascend device."""

    name = "npu"
    kind = "npu"

    def missing(self) -> str:
        """Return why there is no NPU: ``torch_npu`` is missing, does not load, or sees no device."""
        try:
            import torch
            import torch_npu  # noqa: F401  importing it registers the device
        except ImportError as error:
            return "torch_npu cannot be imported (%s)" % error
        except RuntimeError as error:
            return "torch_npu does not load (%s)" % (str(error).strip() or type(error).__name__).splitlines()[0]
        npu: Any = getattr(torch, "npu", None)
        return "" if npu is not None and npu.is_available() else "torch_npu sees no NPU (driver, ASCEND_RT_VISIBLE_DEVICES)"

    def start(self) -> torch.device:
        """Initialise the NPU and return the current device."""
        import torch

        npu = _npu()
        # Set the current device to itself: it is only started by a call that sets it or uses it.
        npu.set_device(int(os.environ.get("LOCAL_RANK", npu.current_device())))  # each rank has a device of its own
        return torch.device("npu", npu.current_device())

    def seed(self, seed: int) -> None:
        """Seed the generators of all NPUs."""
        _npu().manual_seed_all(seed)

    def synchronize(self) -> None:
        """Wait for all streams of the current device."""
        _npu().synchronize()

    def deterministic(self, algorithms: str) -> None:
        """Change nothing: ``torch.use_deterministic_algorithms`` and HCCL_DETERMINISTIC act on the NPU by themselves."""

    def facts(self) -> DeviceFacts:
        """Return the chip's name, the versions of torch_npu and CANN, and HF32, compile and overflow switches."""
        return DeviceFacts(str(_npu().get_device_name(0)), versions(), switches(_npu()))


DEVICE = Npu()


def versions() -> Dict[str, str]:
    """Return the versions of ``torch_npu`` and, from the toolkit's own files, of CANN; ``unknown`` if no file says it."""
    import torch_npu

    return {
        "torch_npu": str(getattr(torch_npu, "__version__", "unknown")),
        "cann": machine.read_cann(machine.find_toolkit(os.environ)),
    }


def switches(npu: Any) -> Dict[str, str]:
    """Return the numerical switches of ``torch.npu`` as text; ``unknown`` for one that this version does not have.

    Args:
        npu: The module ``torch.npu``, real or emulated.
    """
    readers: Dict[str, Callable[[], Any]] = {
        "matmul.allow_hf32": lambda: npu.matmul.allow_hf32,
        "conv.allow_hf32": lambda: npu.conv.allow_hf32,
        "jit_compile": lambda: not npu.is_jit_compile_false(),
        "allow_internal_format": lambda: npu.config.allow_internal_format,
        "inf_nan_mode": lambda: bool(npu.utils.is_support_inf_nan()),
    }
    return {name: _read(reader) for name, reader in readers.items()}


def _read(reader: Callable[[], Any]) -> str:
    try:
        return str(reader())
    except (AttributeError, RuntimeError, TypeError):  # write-only, or absent in this version
        return "unknown"


def _npu() -> Any:
    import torch

    return torch.npu  # type: ignore[attr-defined]  # registered by torch_npu
