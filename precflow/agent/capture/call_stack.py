"""The stack of running modules, and the counters from which the identities of records are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from precflow.agent.contract import NONE, OUTSIDE
from precflow.agent.selection import NOT_RECORDED, Choice

if TYPE_CHECKING:
    import torch

    from precflow.agent.capture.autograd import InputEdges
    from precflow.agent.capture.call_sites import ModuleCaller
    from precflow.agent.capture.guard import Mode
    from precflow.agent.selection import Selection


class ModuleCall:
    """One call of a module; a call with the name ``(outside)`` lies below all others on the stack.

    Args:
        module: Qualified name.
        class_name: Class of the module.
        number: How often the module was entered before in this step.
        in_scope: The module or operators inside it may be recorded.
        compiled: The inside is compiled code and is not recorded.

    Attributes:
        caller: Where it was called from.
        choice: What is kept of the module's own forward.
        given_versions: The input tensors, each with its version counter before the forward.
        inputs: Records of the input tensors.
        arguments: The other arguments.
        input_edges: The inputs' places in the autograd graph.
        order: Number of the forward's line, once it is written.
        site: Number of the call site.
        exception_at_entry: The exception that was being handled when the module was entered.
        paused_modes: Modes that have stepped aside and come back when the module is left.
    """

    __slots__ = (
        "_operator_runs",
        "arguments",
        "caller",
        "choice",
        "class_name",
        "compiled",
        "exception_at_entry",
        "given_versions",
        "in_scope",
        "input_edges",
        "inputs",
        "module",
        "number",
        "order",
        "paused_modes",
        "site",
    )

    def __init__(self, module: str, class_name: str, number: int, *, in_scope: bool, compiled: bool) -> None:
        self.module = module
        self.class_name = class_name
        self.number = number
        self.in_scope = in_scope
        self.compiled = compiled
        self.caller: Optional[ModuleCaller] = None
        self.choice = NOT_RECORDED
        self.given_versions: List[Tuple[torch.Tensor, Optional[int]]] = []
        self.inputs: List[Dict[str, Any]] = []
        self.arguments: Dict[str, str] = {}
        self.input_edges: Optional[InputEdges] = None
        self.order: Optional[int] = None
        self.site = 0
        self.exception_at_entry: Optional[BaseException] = None
        self.paused_modes: List[Mode] = []
        self._operator_runs: Dict[str, int] = {}

    @property
    def records_operators(self) -> bool:
        """Operators that run directly inside may be recorded."""
        return self.in_scope and not self.compiled

    @property
    def is_recorded(self) -> bool:
        """The module's own forward is a record."""
        return self.choice.detail != NONE

    def close(self) -> None:
        """Drop references that only the forward needs; the object itself lives until backward."""
        self.given_versions, self.inputs = [], []
        self.input_edges, self.exception_at_entry, self.caller = None, None, None

    def become(self, first: ModuleCall) -> None:
        """Take over the identity of the call that this one repeats."""
        self.number, self.order, self.site, self.in_scope = first.number, first.order, first.site, first.in_scope
        self._operator_runs = first._operator_runs

    def count_run(self, operator: str) -> int:
        """Count one run of an operator; return how often it ran before in this module call."""
        before = self._operator_runs.get(operator, 0)
        self._operator_runs[operator] = before + 1
        return before


class CallStack:
    """The running module calls, innermost last.

    Args:
        selection: Which calls are recorded, and in which detail.
        rank: Rank of this process.
    """

    def __init__(self, selection: Selection, rank: int = 0) -> None:
        self._selection = selection
        self._rank = rank
        self._step = 0
        self._entries: Dict[str, int] = {}  # how often each module was entered in this step
        self._running: List[ModuleCall] = []
        self.begin_step()

    def begin_step(self, step: int = 0) -> None:
        """Begin a step: all counters are 0 and no module is running."""
        self._step = step
        self._entries = {}
        self._running = [ModuleCall(OUTSIDE, "", 0, in_scope=self._is_in_scope(OUTSIDE, ""), compiled=False)]

    @property
    def innermost(self) -> ModuleCall:
        """The module call that runs now."""
        return self._running[-1]

    @property
    def outside(self) -> ModuleCall:
        """The entry at the bottom, for operators that run in no module."""
        return self._running[0]

    @property
    def is_in_module(self) -> bool:
        """A module of the model is running."""
        return len(self._running) > 1

    def choose(self, level: str, module: str, class_name: str, operator: str = "", phase: str = "forward") -> Choice:
        """Return what is kept of a call in this step, as the selection says."""
        return self._selection.choose(level, module, class_name, operator, phase, self._step, self._rank)

    def enter(self, module: str, class_name: str, *, compiled: bool) -> ModuleCall:
        """Put a module call on the stack."""
        # Counted by module and not over the whole step: one more call of another module must not shift the numbers of this one.
        number = self._entries.get(module, 0)
        self._entries[module] = number + 1
        in_scope = self._is_in_scope(module, class_name)
        module_call = ModuleCall(module, class_name, number, in_scope=in_scope, compiled=compiled)
        self._running.append(module_call)
        return module_call

    def abandon(self) -> None:
        """Clear calls that were never left, for example after an interrupt."""
        for module_call in self._running[1:]:
            module_call.close()
        del self._running[1:]

    def leave(self, module: str) -> List[ModuleCall]:
        """Take the innermost call of a module off the stack, with any calls above it that an exception left there.

        Returns:
            The calls that were taken off, the module's own last; empty if the module is not running.
        """
        # From the top: a recursive module leaves its innermost call. Entry 0 is (outside) and never leaves.
        for depth in range(len(self._running) - 1, 0, -1):
            if self._running[depth].module == module:
                removed = self._running[depth:]
                del self._running[depth:]
                return removed[::-1]
        return []

    def _is_in_scope(self, module: str, class_name: str) -> bool:
        return self._selection.may_record(module, class_name, self._step, self._rank)
