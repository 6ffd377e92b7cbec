"""The guard around capture's own work: its torch calls are not recorded, and only one thread works at a time."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any, Callable, List, Optional, Protocol, Type

from torch._C import DisableTorchFunction

# Takes what is called with each Python frame that begins, and returns what was before; private, so it is looked up.
_set_compiler: Optional[Callable[[Any], Any]] = getattr(
    getattr(getattr(sys.modules["torch._C"], "_dynamo", None), "eval_frame", None), "set_eval_frame", None
)


class Mode(Protocol):
    """A mode of torch that sees every operator, and can leave torch's stack of modes for a while."""

    def start(self) -> None:
        """Begin to listen."""

    def step_aside(self) -> bool:
        """Leave the stack for code that must run unrecorded; return whether it did."""


class Guard:
    """A context manager that capture holds while it reads tensors.

    Describing a tensor calls torch itself (``detach``, ``view``, sums). Without the guard our own modes would see these
    calls and record them, which calls torch again, and so on. Inside, torch functions are off and our dispatch modes have
    left the stack. Nor is anything compiled there: a compiled function of the user may be what runs this thread, and torch's
    compiler would take our frames for its own.

    Backward runs hooks in one thread for each device, so two of them may arrive at once: the guard is also a lock. The same
    thread may enter it again.

    Attributes:
        modes: The modes that step aside, each above those before it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner: Optional[int] = None
        self._disabled: List[Any] = []  # of DisableTorchFunction, one for each time the guard was entered
        self._aside: List[Mode] = []
        self._compiler: Any = None
        self.modes: List[Mode] = []

    @property
    def is_held(self) -> bool:
        """This thread is inside."""
        # Read without the lock: only this thread ever writes its own number here, so another thread cannot make it equal.
        return self._owner == threading.get_ident()

    def __enter__(self) -> None:
        self._lock.acquire()
        if not self._disabled:
            self._owner = threading.get_ident()
            self._compiler = None if _set_compiler is None else _set_compiler(None)
            if self.modes:
                self._aside = [mode for mode in reversed(self.modes) if mode.step_aside()]
        disabled: Any = DisableTorchFunction()
        disabled.__enter__()
        self._disabled.append(disabled)

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._disabled.pop().__exit__(kind, error, trace)
        if not self._disabled:
            self._owner = None
            aside, self._aside = self._aside, []
            for mode in reversed(aside):
                mode.start()
            if self._compiler is not None and _set_compiler is not None:
                _set_compiler(self._compiler)
        self._lock.release()
