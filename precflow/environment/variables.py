"""Environment variables that nobody reads because their names are misspelt.

A wrong name is silent: the switch stays as it was. Only names that resemble one of the known names are reported; anything
else may belong to a library that is not listed here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from precflow.config.schema import RunConfig
from precflow.config.switches import SWITCHES

KNOWN = SWITCHES | frozenset(
    # PyTorch
    "TORCH_DEVICE_BACKEND_AUTOLOAD TORCH_SHOW_CPP_STACKTRACES TORCH_LOGS TORCH_COMPILE_DEBUG TORCHINDUCTOR_CACHE_DIR "
    "TORCH_HOME TORCH_EXTENSIONS_DIR TORCH_CUDA_ARCH_LIST "
    # threads and CPU libraries
    "KMP_DUPLICATE_LIB_OK "
    # CUDA
    "CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_HOME CUDA_PATH CUDA_CACHE_PATH CUDNN_LOGDEST_DBG "
    "NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES NVIDIA_REQUIRE_CUDA NCCL_DEBUG_FILE NCCL_IB_HCA "
    "NCCL_SOCKET_IFNAME NCCL_NET NCCL_VERSION "
    # Ascend: CANN, torch_npu, HCCL and the libraries around them
    "ASCEND_RT_VISIBLE_DEVICES ASCEND_VISIBLE_DEVICES ASCEND_DEVICE_ID ASCEND_HOME_PATH ASCEND_TOOLKIT_HOME "
    "ASCEND_OPP_PATH ASCEND_AICPU_PATH ASCEND_CUSTOM_OPP_PATH ASCEND_PROCESS_LOG_PATH ASCEND_WORK_PATH "
    "ASCEND_CACHE_PATH ASCEND_DRIVER_PATH ASCEND_ENGINE_PATH ASCEND_COREDUMP_SIGNAL ACL_OP_DEBUG_LEVEL ACL_DUMP_DATA "
    "ATB_HOME_PATH HCCL_IF_IP HCCL_IF_BASE_PORT HCCL_SOCKET_IFNAME HCCL_SOCKET_FAMILY HCCL_WHITELIST_DISABLE "
    "HCCL_WHITELIST_FILE HCCL_NPU_NET_PROTOCOL OP_HOOK_ENABLE FORCE_ACLNN_OP_LIST CPU_AFFINITY_CONF NPU_ASD_CONFIG "
    "NPU_VISIBLE_DEVICES NPU_HOST_IP TORCH_NPU_LEGACY_IMPL_LIST TORCH_NPU_DEVICE_CAPABILITY "
    # libraries that load models
    "TRANSFORMERS_OFFLINE TRANSFORMERS_CACHE HF_HUB_OFFLINE HF_HOME HF_DATASETS_OFFLINE".split()
)
_NEAR = 0.9  # similarity that a misspelling of ten letters and more still has
_LONG = 8  # letters; shorter names are near one another by chance
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Misspelt:
    """A variable that is set and that nobody reads.

    Attributes:
        name: As it is set.
        meant: The known name that it resembles.
        value: What it is set to.
    """

    name: str
    meant: str
    value: str

    @property
    def text(self) -> str:
        """One line: ``HCCL_DETERMINISITIC is set and nobody reads it: HCCL_DETERMINISTIC``."""
        return f"{self.name} is set and nobody reads it: {self.meant}"


def lint(variables: Mapping[str, str]) -> list[Misspelt]:
    """Return the variables whose names resemble a known name and are none, sorted by name."""
    found = ((name, _resembled(name)) for name in sorted(variables) if name not in KNOWN)
    return [Misspelt(name, meant, variables[name]) for name, meant in found if meant]


def misspelt(config: RunConfig, surroundings: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable that a side would get under a name that nobody reads.

    Args:
        config: The composed recipe, whose sides set variables.
        surroundings: Variables of this process, which the sides inherit.
    """
    given = {"reference": config.reference.variables, "target": config.target.variables}
    named = [(f"{side}.variables.{one.name}", one) for side in given for one in lint(given[side])]
    named += [(one.name, one) for one in lint(surroundings)]
    return [f"{place}: nobody reads a variable of this name. Did you mean  {one.meant} ?" for place, one in named]


def _resembled(name: str) -> str:
    """Return the known name that a name is a misspelling of, ``""`` for none."""
    if len(name) < _LONG or name != name.upper():
        return _other_case(name)
    near = difflib.get_close_matches(name, _candidates(name), n=1, cutoff=_NEAR)
    return near[0] if near and not _is_variant(name, near[0]) else ""


def _other_case(name: str) -> str:
    return name.upper() if name.upper() in KNOWN and "_" in name else ""


def _candidates(name: str) -> Iterable[str]:
    """Yield known names of the same family; all of them where the family itself may be misspelt."""
    family = name.partition("_")[0]
    same = [known for known in KNOWN if known.partition("_")[0] == family]
    return same or KNOWN


def _is_variant(name: str, known: str) -> bool:
    """Tell whether a name is a numbered or longer sibling of a known one rather than a misspelling of it."""
    if _DIGITS.sub("", name) == _DIGITS.sub("", known):
        return True
    return name.startswith(f"{known}_") or known.startswith(f"{name}_")
