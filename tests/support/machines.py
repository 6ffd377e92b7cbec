"""States of machines as an agent reports them, for tests of their checks."""

from __future__ import annotations

import copy
from typing import Any

NPU_SMI = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc3                 Version: 24.1.rc3                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B1               | OK            | 94.6        49                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3373 / 65536         |
+===========================+===============+====================================================+
| 1     910B1               | OK            | 97.8        48                0    / 0             |
| 0                         | 0000:01:00.0  | 0           0    / 0          3367 / 65536         |
+===========================+===============+====================================================+
"""
# Two chips of one card, as the A3 has them, one of them alarming and full.
NPU_SMI_ALARM = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 25.5.1                   Version: 25.5.1                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend910           | Alarm         | 201.1       36                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 100         0    / 0          62460/ 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -           38                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          3451 / 65536         |
+===========================+===============+====================================================+
"""
NPU_SMI_NO_DRIVER = "dcmi module initialize failed. ret is -8005\n"
NVIDIA_SMI = "0, NVIDIA H100 80GB HBM3, 570.133.20, 81559, 4, 0\n"
NVIDIA_SMI_MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.144\n"

_GB = 1_000_000_000
_HEALTHY: dict[str, Any] = {
    "cann": "unknown",
    "toolkit": {"home": "", "sourced": False, "in_library_path": False, "atb": False},
    "ascend_driver": "",
    "ascend_firmware": "",
    "nvidia_driver": "",
    "nodes": {"npu": 0, "cuda": 0},
    "npu_smi": {},
    "nvidia_smi": {},
    "device_memory": {},
    "memory": {"free": 60 * _GB, "total": 64 * _GB},
    "shared_memory": {"free": 32 * _GB, "total": 32 * _GB},
    "temporary": {"free": 100 * _GB, "total": 200 * _GB},
    "ports": {"first": 60000, "count": 16, "given": "", "taken": [], "ephemeral": []},
    "locale": {"encoding": "UTF-8", "files": "utf-8", "decimal": "."},
    "clock": {"now": 1_700_000_000.0, "disk": 1_700_000_000.5},
    "tools": {"cmake": "3.25.1", "gcc": "12.2.0", "g++": "12.2.0", "ninja": ""},
}
_NPU = {
    "cann": "8.5.0",
    "toolkit": {"home": "/usr/local/Ascend/ascend-toolkit/latest", "sourced": True, "in_library_path": True, "atb": True},
    "ascend_driver": "25.5.1",
    "nodes": {"npu": 2, "cuda": 0},
    "npu_smi": {"code": 0, "text": NPU_SMI},
    "device_memory": {"free": 60 * _GB, "total": 68 * _GB},
}


def healthy(**changes: Any) -> dict[str, Any]:
    """Return the state of a machine without accelerator, with other values for some keys."""
    return {**copy.deepcopy(_HEALTHY), **changes}


def healthy_npu(**changes: Any) -> dict[str, Any]:
    """Return the state of a machine with two NPUs and CANN 8.5.0."""
    return healthy(**{**copy.deepcopy(_NPU), **changes})


def make_facts(machine: dict[str, Any], kind: str = "cpu", **sections: Any) -> dict[str, Any]:
    """Return facts of a side on such a machine."""
    facts = {
        "system": {"machine": "aarch64"},
        "python": {"version": "3.11.4"},
        "torch": {"version": "2.9.0+cpu"},
        "device": {"kind": kind, "description": f"some {kind}"},
        "packages": {"torch": "2.9.0+cpu", **({"torch-npu": "2.9.0"} if kind == "npu" else {})},
        "variables": {},
        "refused": {},
    }
    return {**facts, **sections, "machine": machine}
