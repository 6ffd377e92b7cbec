"""The stack of running modules, and the counters that make an identity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from precflow.agent.contract import NONE, OUTSIDE
from precflow.agent.selection import NOT_RECORDED, Choice

if TYPE_CHECKING:
    import torch

    from precflow.agent.capture.call_sites import Above
    from precflow.agent.capture.module_gradients import Given
    from precflow.agent.capture.module_hooks import Mode
    from precflow.agent.selection import Scope


class Frame:
    """One module call that is running; ``(outside)`` is the frame below all others.

    Args:
        module: Qualified name.
        class_name: Class of the module.
        call: How often the module was entered before in this step.
        in_scope: The module or operators inside it may be recorded.
        compiled: The inside is compiled code and not recorded.
    """

    __slots__ = (
        "_ran",
        "above",
        "arguments",
        "call",
        "choice",
        "class_name",
        "compiled",
        "edges",
        "given",
        "in_scope",
        "inputs",
        "module",
        "order",
        "raising",
        "resume",
        "site",
    )

    def __init__(self, module: str, class_name: str, call: int, *, in_scope: bool, compiled: bool) -> None:
        self.module = module
        self.class_name = class_name
        self.call = call
        self.in_scope = in_scope
        self.compiled = compiled
        self.above: Optional[Above] = None  # where it was called
        self.choice = NOT_RECORDED  # of the module's own forward
        self.given: List[Tuple[torch.Tensor, Optional[int]]] = []  # the inputs, with their versions before
        self.inputs: List[Dict[str, Any]] = []
        self.arguments: Dict[str, str] = {}
        self.edges: Optional[Given] = None  # the inputs' places in the autograd graph
        self.order: Optional[int] = None  # of the line of the forward, once it is written
        self.site = 0
        self.raising: Optional[BaseException] = None  # the exception that was being handled when the module was entered
        self.resume: List[Mode] = []  # modes that have stepped aside and come back when the module is left
        self._ran: Dict[str, int] = {}

    @property
    def open(self) -> bool:
        """Operators that run directly inside may be recorded."""
        return self.in_scope and not self.compiled

    @property
    def recorded(self) -> bool:
        """The module's own forward is a record."""
        return self.choice.detail != NONE

    def close(self) -> None:
        """Let go what only the forward needs: the frame itself is needed until backward."""
        self.given, self.inputs, self.edges, self.raising, self.above = [], [], None, None, None

    def repeats(self, first: Frame) -> None:
        """Become the call that this one runs again."""
        self.call, self.order, self.site, self.in_scope = first.call, first.order, first.site, first.in_scope
        self._ran = first._ran

    def ordinal(self, operator: str) -> int:
        """Count one run of an operator, and return how often it ran before in this module call."""
        before = self._ran.get(operator, 0)
        self._ran[operator] = before + 1
        return before


class Frames:
    """The running modules, innermost last.

    Args:
        scope: What is recorded, and how much of it.
        rank: Rank of this process.
    """

    def __init__(self, scope: Scope, rank: int = 0) -> None:
        self._scope = scope
        self._rank = rank
        self._step = 0
        self._entered: Dict[str, int] = {}
        self._running: List[Frame] = []
        self.begin()

    def begin(self, step: int = 0) -> None:
        """Begin a step: all counters are 0 and no module is running."""
        self._step = step
        self._entered = {}
        self._running = [Frame(OUTSIDE, "", 0, in_scope=self._in_scope(OUTSIDE, ""), compiled=False)]

    @property
    def innermost(self) -> Frame:
        """The module call that runs now."""
        return self._running[-1]

    @property
    def outside(self) -> Frame:
        """What runs in no module."""
        return self._running[0]

    @property
    def running(self) -> bool:
        """A module of the model is running."""
        return len(self._running) > 1

    def choice(self, level: str, module: str, class_name: str, operator: str = "", phase: str = "forward") -> Choice:
        """Return what is kept of a call of this step: the scope's answer."""
        return self._scope.choice(level, module, class_name, operator, phase, self._step, self._rank)

    def enter(self, module: str, class_name: str, *, compiled: bool) -> Frame:
        """Put a module call on the stack."""
        call = self._entered.get(module, 0)
        self._entered[module] = call + 1
        frame = Frame(module, class_name, call, in_scope=self._in_scope(module, class_name), compiled=compiled)
        self._running.append(frame)
        return frame

    def abandon(self) -> None:
        """Take off the stack what was never left, as after an interrupt."""
        for frame in self._running[1:]:
            frame.close()
        del self._running[1:]

    def leave(self, module: str) -> List[Frame]:
        """Take the innermost call of a module off the stack, with what an exception left above it.

        Returns:
            The frames that were taken, the module's own last; empty where the module is not running.
        """
        for depth in range(len(self._running) - 1, 0, -1):
            if self._running[depth].module == module:
                taken = self._running[depth:]
                del self._running[depth:]
                return taken[::-1]
        return []

    def _in_scope(self, module: str, class_name: str) -> bool:
        return self._scope.opens(module, class_name, self._step, self._rank)
