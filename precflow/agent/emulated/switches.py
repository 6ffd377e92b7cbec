"""Switches of ``torch.npu`` that migrated code sets: they can be set and read back, with the defaults of torch_npu.

Only ``matmul.allow_hf32`` and ``conv.allow_hf32`` change a number, and only if there is a numerical rule that obeys them.
"""

from __future__ import annotations

import warnings
from typing import Any, Dict, Mapping

import torch

_compile: Dict[str, bool] = {"jit": False}
_queue: Dict[str, int] = {"level": 1}


class Switches:
    """Named flags, each strictly a bool; an unknown name is refused."""

    # __setattr__ below handles flags only, so __init__ sets these two through object.__setattr__.
    __slots__ = ("_flags", "_owner")

    _flags: Dict[str, bool]
    _owner: str

    def __init__(self, owner: str, **flags: bool) -> None:
        object.__setattr__(self, "_owner", owner)
        object.__setattr__(self, "_flags", dict(flags))

    def __getattr__(self, name: str) -> bool:
        try:
            return self._flags[name]
        except KeyError:
            raise AttributeError("torch.npu.%s (emulated) has no switch %r; it has: %s" % self._about(name)) from None

    def __setattr__(self, name: str, value: bool) -> None:  # noqa: FBT001  an assignment
        if name not in self._flags:
            raise AttributeError("torch.npu.%s (emulated) has no switch %r; it has: %s" % self._about(name))
        if not isinstance(value, bool):
            raise RuntimeError("torch.npu.%s.%s must be True or False, got %r" % (self._owner, name, value))  # noqa: TRY004  torch_npu's type
        self._flags[name] = value

    def _about(self, name: str) -> Any:
        return self._owner, name, ", ".join(sorted(self._flags))


matmul = Switches("matmul", allow_hf32=False)
conv = Switches("conv", allow_hf32=True)
config = Switches("config", allow_internal_format=True)


def set_compile_mode(jit_compile: bool = False) -> None:  # noqa: FBT001, FBT002  torch_npu's signature
    """Remember whether operators would be compiled at run time; nothing is compiled here."""
    _compile["jit"] = bool(jit_compile)


def is_jit_compile_false() -> bool:
    """Return whether run-time compilation was switched off."""
    return not _compile["jit"]


def set_option(option: Mapping[str, str]) -> None:
    """Accept driver options such as ``ACL_PRECISION_MODE``; they have no effect here.

    Raises:
        TypeError: ``option`` is not a mapping.
    """
    if not isinstance(option, Mapping):
        raise TypeError("torch.npu.set_option expects a dict of option names and texts, got %s" % type(option).__name__)


def set_task_queue_enable(level: int) -> None:
    """Remember the level (0, 1, 2) of the task queue; operators always run immediately here."""
    _queue["level"] = int(level)


def get_task_queue_enable() -> int:
    """Return the level that was set; 1 from the start, as in torch_npu."""
    return _queue["level"]


def set_deterministic_level(level: int) -> None:
    """Switch torch's deterministic algorithms: 0 off, 1 or more on."""
    torch.use_deterministic_algorithms(level >= 1)


def is_support_inf_nan() -> bool:
    """Return True: overflow gives infinity, as on hardware in INF/NAN mode."""
    return True


def get_npu_overflow_flag() -> bool:
    """Refuse, as hardware in INF/NAN mode does: an overflow shows as infinity in the values.

    Raises:
        RuntimeError: Always.
    """
    raise RuntimeError("the emulated npu runs in INF/NAN mode, where there is no overflow flag; use npu_check_overflow(tensor)")


def clear_npu_overflow_flag() -> None:
    """Warn that there is no flag, as hardware in INF/NAN mode does."""
    warnings.warn("the emulated npu runs in INF/NAN mode, where there is no overflow flag to clear", stacklevel=2)


def npu_check_overflow(grad: Any) -> bool:
    """Return whether a tensor (its sum in float32) or a number is infinite or NaN."""
    total = float(grad.detach().float().sum()) if isinstance(grad, torch.Tensor) else float(grad)
    return total != total or total in (float("inf"), float("-inf"))  # noqa: PLR0124  NaN differs from itself
