"""The losses of a script: the values that ``backward`` is called on in a recorded step."""

from __future__ import annotations

import math
from typing import Any, Callable, ContextManager, List, Mapping, Optional, Sequence

import torch
from torch.overrides import TorchFunctionMode

from precflow.agent.capture.torch_functions import leave_mode
from precflow.agent.capture.wrappers import is_compiling


class Losses(TorchFunctionMode):
    """A function mode that reads each tensor that ``backward`` is called on.

    Args:
        quiet: Held while a value is read, so that this is not recorded.
        check: Called with each such tensor.
        find_scale: Returns what a gradient scaler has multiplied the loss by, which is taken off again.

    Attributes:
        values: One number for each call.
    """

    def __init__(
        self,
        quiet: ContextManager[Any],
        check: Callable[[torch.Tensor], None] = lambda _: None,
        find_scale: Callable[[torch.Tensor], float] = lambda _: 1.0,
    ) -> None:
        super().__init__()
        self.values: List[float] = []
        self._quiet, self._check, self._find_scale = quiet, check, find_scale

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        """Run one torch function, and read the loss before a backward."""
        if is_compiling():
            return func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") == "backward" and args and isinstance(args[0], torch.Tensor) and args[0].numel() == 1:
            with self._quiet:
                self._check(args[0])
                number = args[0].detach()
                self.values.append(math.nan if number.is_meta else float(number) / self._find_scale(args[0]))
        return func(*args, **(kwargs or {}))

    def start(self) -> None:
        """Begin to listen."""
        self.__enter__()  # type: ignore[no-untyped-call]  # torch has not annotated it

    def stop(self) -> None:
        """Stop listening."""
        leave_mode(self)
