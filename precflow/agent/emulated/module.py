"""Builds the module ``torch.npu`` of the emulated device from its parts, and a stand-in for the package ``torch_npu``.

Migrated code contains ``import torch_npu``; the stand-in makes that work with the emulated device.
"""

from __future__ import annotations

import functools
import importlib.machinery
import os
import sys
import types
from typing import Any, Dict, List, NamedTuple, NoReturn, Optional, Tuple, Type

import torch

from precflow.agent.emulated import generator, ordinal, stream, switches
from precflow.agent.emulated.relabel import DEVICE_TYPE

NAME = "Ascend910B-emulated"
PACKAGE_VERSION = "0.0+emulated"
_PARTS = {
    ordinal: "device_count current_device set_device",
    generator: (
        "manual_seed manual_seed_all seed seed_all initial_seed get_rng_state set_rng_state get_rng_state_all set_rng_state_all"
    ),
    switches: (
        "matmul conv config set_compile_mode is_jit_compile_false set_option set_task_queue_enable get_task_queue_enable "
        "set_deterministic_level get_npu_overflow_flag clear_npu_overflow_flag npu_check_overflow"
    ),
    stream: "Stream Event current_stream default_stream stream set_stream synchronize",
}


class Properties(NamedTuple):
    """The result of ``get_device_properties``; ``total_memory`` is that of the host, in bytes."""

    name: str
    total_memory: int


def build() -> types.ModuleType:
    """Return the module that becomes ``torch.npu``."""
    built = types.ModuleType("torch.npu", "Emulated npu of precflow: host memory, host arithmetic, another label.")
    for part, names in _PARTS.items():
        for name in names.split():
            setattr(built, name, getattr(part, name))
    own = (is_available, is_initialized, init, is_bf16_supported, get_device_name, get_device_properties)
    more = (get_device_capability, get_amp_supported_dtype, can_device_access_peer, device, device_of)
    of_memory = (mem_get_info, memory_stats, memory_summary, empty_cache)
    for function in own + more + of_memory:
        setattr(built, function.__name__, function)
    for name in "memory_allocated max_memory_allocated memory_reserved max_memory_reserved".split():
        setattr(built, name, memory_allocated)
    for name in "reset_peak_memory_stats reset_max_memory_allocated".split():
        setattr(built, name, reset_peak_memory_stats)
    filled: Any = built
    # torch asks for this name. A real device is unusable in a forked process; host memory is not.
    filled._is_in_bad_fork = lambda: False  # noqa: SLF001
    filled.default_generators = generator.create_defaults()
    filled.amp = types.ModuleType("torch.npu.amp", "Mixed precision of the emulated npu.")
    filled.amp.autocast = functools.partial(torch.autocast, DEVICE_TYPE)
    filled.amp.GradScaler = functools.partial(torch.amp.GradScaler, DEVICE_TYPE)
    filled.utils = types.ModuleType("torch.npu.utils", "Helpers of the emulated npu.")
    for name in "is_support_inf_nan get_npu_overflow_flag clear_npu_overflow_flag npu_check_overflow".split():
        setattr(filled.utils, name, getattr(switches, name))
    filled.emulated = True
    return built


def install_package(device_module: types.ModuleType) -> None:
    """Put ``torch.npu`` and the stand-in, with the few names that other libraries import, into ``sys.modules``."""
    package: Any = types.ModuleType("torch_npu", "Stand-in of precflow's emulated npu; not the package of Ascend.")
    package.__spec__ = importlib.machinery.ModuleSpec("torch_npu", None, origin="precflow emulated npu", is_package=True)
    package.__path__ = []  # with a path it counts as a package, so that `import torch_npu.npu` is possible
    package.__version__ = PACKAGE_VERSION
    package.emulated = True
    package.npu = device_module
    package.npu_fusion_attention = npu_fusion_attention
    filled: Any = device_module
    sys.modules["torch.npu"] = sys.modules["torch_npu.npu"] = device_module
    sys.modules["torch.npu.amp"] = sys.modules["torch_npu.npu.amp"] = filled.amp
    sys.modules["torch.npu.utils"] = sys.modules["torch_npu.npu.utils"] = filled.utils
    sys.modules["torch_npu"] = package


def npu_fusion_attention(*_arguments: Any, **_named: Any) -> NoReturn:
    """Refuse: fused operators of torch_npu are not emulated.

    Raises:
        RuntimeError: Always.
    """
    raise RuntimeError("torch_npu.npu_fusion_attention is not emulated; use attn_implementation='eager' on the emulated npu")


def is_available() -> bool:
    """Return True: the emulated device is always available once it is installed."""
    return True


def is_initialized() -> bool:
    """Return True: there is nothing to start."""
    return True


def init() -> None:
    """Do nothing: there is nothing to start."""


def is_bf16_supported() -> bool:
    """Return True: the host computes it."""
    return True


def get_amp_supported_dtype() -> List[torch.dtype]:
    """Return the types that autocast may choose."""
    return [torch.float16, torch.bfloat16, torch.float32]


def get_device_name(device_name: Any = None) -> str:
    """Return a name that cannot be mistaken for hardware."""
    ordinal.index_of(device_name)
    return NAME


def get_device_properties(device_name: Any = None) -> Properties:
    """Return name and memory (the host's, in bytes)."""
    return Properties(get_device_name(device_name), total_memory())


def get_device_capability(device: Any = None) -> None:
    """Return None, as torch_npu does: compute capabilities exist for CUDA only."""
    ordinal.index_of(device)


def can_device_access_peer(device_id: Any, peer_device_id: Any) -> bool:
    """Return True: all emulated devices share the host's memory."""
    return ordinal.index_of(device_id) >= 0 and ordinal.index_of(peer_device_id) >= 0


class device:  # noqa: N801  torch's own spelling
    """Context in which another device is current; ``None`` or a negative index changes nothing."""

    def __init__(self, device: Any) -> None:
        stays = device is None or (isinstance(device, int) and device < 0)
        self.idx = -1 if stays else ordinal.index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = ordinal.current_device()
        if self.idx >= 0:
            ordinal.set_device(self.idx)

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: object) -> None:
        """Make the former device current again; exceptions are passed on."""
        ordinal.set_device(self.prev_idx)


def device_of(tensor: torch.Tensor) -> device:
    """Return a context in which the device of ``tensor`` is current; a tensor on another device type changes nothing."""
    return device(tensor.device.index if tensor.device.type == DEVICE_TYPE else None)


# Memory: figures of the host, or 0 for what would have to be tracked for each device


def total_memory() -> int:
    """Return the bytes of physical memory of the host."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def mem_get_info(device: Any = None) -> Tuple[int, int]:
    """Return free and total bytes of the host: the emulated device lives there."""
    ordinal.index_of(device)  # raises for a device that does not exist
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"), total_memory()


def memory_allocated(device: Any = None) -> int:
    """Return 0: memory belongs to the host's allocator and is not tracked per device."""
    ordinal.index_of(device)
    return 0


def memory_stats(device: Any = None) -> Dict[str, int]:
    """Return an empty table: nothing is tracked."""
    ordinal.index_of(device)
    return {}


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:  # noqa: ARG001, FBT001, FBT002  torch_npu's signature
    """Return one line that says why there is no summary."""
    return "npu:%d is emulated on the host: its memory is not tracked" % ordinal.index_of(device)


def empty_cache() -> None:
    """Do nothing: there is no cache."""


def reset_peak_memory_stats(device: Any = None) -> None:
    """Do nothing, except refuse a device that does not exist."""
    ordinal.index_of(device)
