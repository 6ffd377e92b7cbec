"""A stand-in for the package ``torch_npu``, so that ``import torch_npu`` in migrated code finds the emulated device."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from typing import Any, NoReturn

VERSION = "0.0+emulated"


def install(device_module: types.ModuleType) -> None:
    """Put ``torch.npu`` and the stand-in, with the few names that other libraries import, into ``sys.modules``."""
    package: Any = types.ModuleType("torch_npu", "Stand-in of precflow's emulated npu; not the package of Ascend.")
    package.__spec__ = importlib.machinery.ModuleSpec("torch_npu", None, origin="precflow emulated npu", is_package=True)
    package.__path__ = []
    package.__version__ = VERSION
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
