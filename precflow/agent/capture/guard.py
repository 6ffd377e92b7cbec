"""The guard: capture's own torch calls are nobody's operators, and threads of autograd wait for each other."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Type

from torch._C import DisableTorchFunction

if TYPE_CHECKING:
    from precflow.agent.capture.module_hooks import Mode


class Guard:
    """While it is held, function modes are off, our own modes have stepped aside, and other threads wait.

    Backward runs hooks in a thread of each device, so two of them may come at once. The same thread may enter again.

    Attributes:
        modes: What steps aside.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner: Optional[int] = None
        self._entered: List[Any] = []  # of DisableTorchFunction
        self._aside: List[Mode] = []
        self.modes: Sequence[Mode] = ()

    @property
    def busy(self) -> bool:
        """This thread is inside."""
        return self._owner == threading.get_ident()

    def __enter__(self) -> None:
        self._lock.acquire()
        if not self._entered:
            self._owner = threading.get_ident()
            if self.modes:
                self._aside = [mode for mode in self.modes if mode.step_aside()]
        disabled: Any = DisableTorchFunction()
        disabled.__enter__()
        self._entered.append(disabled)

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._entered.pop().__exit__(kind, error, trace)
        if not self._entered:
            self._owner = None
            aside, self._aside = self._aside, []
            for mode in aside:
                mode.start()
        self._lock.release()
