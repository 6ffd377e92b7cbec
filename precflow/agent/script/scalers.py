"""The gradient scalers of a script: what they multiply losses by, and whether they have skipped a step."""

from __future__ import annotations

import gc
from typing import Any, List, Optional

import torch


class Scalers:
    """Follows the gradient scalers that are alive, by what they keep of their scale."""

    def __init__(self) -> None:
        self._known: List[Any] = []
        self._before: List[float] = []  # the scale of each when the step began

    def find(self) -> None:
        """Look for scalers; the garbage collector knows all."""
        self._known = [
            each for each in gc.get_objects() if "GradScaler" in type(each).__name__ and hasattr(each, "_init_scale")
        ]
        self.begin_step()

    def begin_step(self) -> None:
        """Note the scales that a step begins with."""
        self._before = [_read_scale(each) for each in self._known]

    def have_skipped(self) -> bool:
        """Tell whether a scaler was lowered since the step began: it has seen an overflow, and skipped the step."""
        return any(_read_scale(each) < before for each, before in zip(self._known, self._before))

    def find_scale(self, loss: torch.Tensor) -> float:
        """Return what a scaler has multiplied a loss by; 1 if none has."""
        factor = _find_factor(loss)
        return factor if factor is not None and any(_read_scale(each) == factor for each in self._known) else 1.0


def _read_scale(scaler: Any) -> float:
    scale = getattr(scaler, "_scale", None)  # made with the first loss
    return float(scaler._init_scale if scale is None else scale)  # noqa: SLF001  torch offers no way that does not copy


def _find_factor(loss: torch.Tensor) -> Optional[float]:
    """Return the last factor of a loss that is the product with one number; ``None`` if it is no such product."""
    made = loss.grad_fn
    if made is None or type(made).__name__ != "MulBackward0":
        return None
    try:
        saved = (getattr(made, name) for name in ("_saved_self", "_saved_other"))
        factors = [each for each in saved if each is not None]
    except RuntimeError:  # freed by an earlier backward
        return None
    numbers = [each for each in factors if each.numel() == 1 and not each.requires_grad and not each.is_meta]
    return float(numbers[0]) if len(numbers) == 1 else None
