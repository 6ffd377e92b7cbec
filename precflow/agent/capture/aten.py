"""Aten operators below autograd, in forward and inside backward, each tied to the module call that it runs for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from torch.utils._python_dispatch import TorchDispatchMode  # documented to users of torch_dispatch, private by its place only

from precflow.agent.capture import autograd
from precflow.agent.capture.arguments import split_arguments
from precflow.agent.capture.calls import Calls
from precflow.agent.capture.functions import is_movement
from precflow.agent.capture.operator_names import aten_name
from precflow.agent.capture.record_lines import Heading
from precflow.agent.contract import ALLOCATION, NONE, PLACEMENT

if TYPE_CHECKING:
    from precflow.agent.capture.call_sites import Sites
    from precflow.agent.capture.call_stack import Frame, Frames
    from precflow.agent.capture.graph import Graph
    from precflow.agent.capture.guard import Guard
    from precflow.agent.capture.nesting import Placed
    from precflow.agent.capture.record_lines import Lines

_NUMBERS = (bool, int, float, complex)
_OWN = frozenset(["detach", "alias"])  # autograd puts them where it likes
_SCRATCH = {  # operator -> outputs that are seeds and room for its backward: parts of them are memory that nobody has written
    "mkldnn_rnn_layer": (3,),
    "cudnn_rnn": (3,),
    "miopen_rnn": (3,),
    "cudnn_batch_norm": (3,),
    "batch_norm_with_update": (3,),
    "ctc_loss": (1,),
    "scaled_dot_product_flash_attention": (2, 3, 6, 7, 8),
    "scaled_dot_product_cudnn_attention": (2, 3, 6, 7, 8),
    "scaled_dot_product_efficient_attention": (2, 3),
    "flash_attention_forward": (2, 3, 4),
    "efficient_attention_forward": (2, 3),
}


class _Place(NamedTuple):
    """Where an operator runs: the module call, the phase, the autograd node in backward, and the call site if it is known."""

    frame: Frame
    phase: str
    node: int
    site: int


class AtenOperators:
    """Records aten operators: inputs before, outputs after.

    Args:
        lines: Where records go.
        frames: The running modules.
        sites: Call sites.
        listening: Tells whether the forward is to be recorded just now.
        guard: Held while anything is looked at.
        phases: Which of ``forward`` and ``backward`` are recorded.
        graph: Knows the calls that nodes belong to, where backward is recorded.
    """

    def __init__(  # noqa: PLR0913  the parts of capture that meet here
        self,
        lines: Lines,
        frames: Frames,
        sites: Sites,
        listening: Callable[[], bool],
        guard: Guard,
        *,
        phases: Sequence[str],
        graph: Optional[Graph],
    ) -> None:
        self._lines = lines
        self._calls = Calls(lines)
        self._frames = frames
        self._sites = sites
        self._listening = listening
        self._guard = guard
        self._phases = frozenset(phases)
        self._graph = graph
        self._schemas: Dict[Any, _Schema] = {}

    def call(self, function: Any, positional: Sequence[Any], keywords: Dict[str, Any]) -> Any:
        """Run an aten operator and record it; its result and its exceptions are the caller's, unchanged.

        Raises:
            WriteError: The dump cannot be written.
        """
        place = None if self._guard.busy or self._lines.failed else self._place()
        schema = self._schema(function)
        if place is None or not place.frame.open:
            return self._unseen(schema, positional, keywords)
        if schema.name in PLACEMENT or schema.name in _OWN:
            result = schema.run(positional, keywords)
            if schema.name not in ALLOCATION:
                with self._guard:
                    self._calls.carry(positional, result)
            return result
        frame = place.frame
        choice = self._frames.choice("operator", frame.module, frame.class_name, schema.name, place.phase)
        if choice.detail == NONE:
            _count(place, schema.name)
            return self._unseen(schema, positional, keywords)
        with self._guard:
            node = self._made(place)
            tensors, arguments = split_arguments(positional, keywords, schema.parameters)
            begun = self._calls.begin(self._heading(place, schema.name, arguments), choice, tensors)
        result = schema.run(positional, keywords)
        with self._guard:
            order = self._calls.end(begun, _values(schema.name, result), schema.written(tensors))
            if self._graph is not None and order is not None and node is not None:
                self._graph.timeline.tie(node, order)
        return result

    def _unseen(self, schema: _Schema, positional: Sequence[Any], keywords: Dict[str, Any]) -> Any:
        """Run an operator that is no record; what it writes to is read anew: down here views have counted no write."""
        result = schema.run(positional, keywords)
        if schema.writes and not self._guard.busy:
            with self._guard:
                for _, tensor in schema.written(split_arguments(positional, keywords)[0]):
                    self._lines.written(tensor)
        return result

    def _place(self) -> Optional[_Place]:
        """Return where the running operator belongs, ``None`` where it is no record."""
        if not autograd.in_backward():
            listening = "forward" in self._phases and self._listening()
            return _Place(self._frames.innermost, "forward", -1, -1) if listening else None
        if "backward" not in self._phases or self._graph is None or autograd.grad_enabled():  # computed again
            return None
        self._graph.reruns.resolve()
        node = autograd.current_sequence()
        frame = self._graph.timeline.frame(node)
        return _Place(self._frames.outside if frame is None else frame, "backward", node, -1 if frame is None else frame.site)

    def _made(self, place: _Place) -> Optional[int]:
        """Return the autograd node that was made for a forward operator."""
        return self._graph.timeline.made() if self._graph is not None and place.phase == "forward" else None

    def _heading(self, place: _Place, name: str, arguments: Dict[str, str]) -> Heading:
        forward = place.phase == "forward"
        ordinal = _count(place, name)
        site = self._sites.here() if forward else place.site
        lines = [] if forward or self._graph is None else self._graph.timeline.lines(place.node)
        return Heading("operator", place.frame, name, ordinal, site, is_movement(name), arguments, place.phase, lines)

    def _schema(self, function: Any) -> _Schema:
        if function not in self._schemas:
            self._schemas[function] = _Schema(function)
        return self._schemas[function]


def _values(name: str, result: Any) -> Any:
    """Return what an operator has computed, each in its place."""
    scratch = _SCRATCH.get(name)
    if scratch is None or not isinstance(result, (tuple, list)):
        return result
    return [None if place in scratch else each for place, each in enumerate(result)]


def _count(place: _Place, name: str) -> int:
    """Count one run of an operator in its module call, and return how often it ran there before."""
    return place.frame.ordinal("aten.%s %s" % (name, place.phase))


class _Schema:
    """What torch declares of an operator.

    Attributes:
        name: Canonical name.
        parameters: Their names.
    """

    def __init__(self, function: Any) -> None:
        schema = function._schema  # noqa: SLF001  the declaration itself, which has no public name
        self._function = function
        self._tensors = frozenset(place for place, each in enumerate(schema.arguments) if str(each.type) == "Tensor")
        self.name = aten_name(function)
        self.parameters = tuple(argument.name for argument in schema.arguments)
        self._changed = frozenset(
            name
            for place, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
            for name in (str(place), argument.name)
        )

    def run(self, positional: Sequence[Any], keywords: Dict[str, Any]) -> Any:
        """Run the operator: all of its overloads where ``x & 3`` has come here as that for tensors, which takes no number."""
        number = any(place in self._tensors and isinstance(value, _NUMBERS) for place, value in enumerate(positional))
        return (self._function.overloadpacket if number else self._function)(*positional, **keywords)

    @property
    def writes(self) -> bool:
        """The operator writes to some of its arguments."""
        return bool(self._changed)

    def written(self, tensors: List[Placed]) -> List[Placed]:
        """Return the tensors that the operator has written to; versions are counted above it and say nothing yet."""
        return [placed for placed in tensors if placed[0].partition(".")[0] in self._changed]


class AtenMode(TorchDispatchMode):
    """Hands the aten operators of this thread, and of the backward passes that it starts, to the records."""

    def __init__(self, operators: AtenOperators) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not annotated it
        self._operators = operators
        self._active = False

    def __torch_dispatch__(
        self, func: Any, types: Tuple[type, ...], args: Sequence[Any] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        """Run an operator on behalf of torch."""
        del types
        return self._operators.call(func, args, kwargs or {})

    def start(self) -> None:
        """Begin to listen."""
        if not self._active:
            self.__enter__()  # type: ignore[no-untyped-call]  # the same
            self._active = True

    def stop(self) -> None:
        """Listen no longer; nothing happens where it had stepped aside."""
        if self._active:
            self._active = False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # the same

    def step_aside(self) -> bool:
        """Leave the stack for code that must run as if nobody listened; return whether it did: only from the top."""
        if self._active and _top_mode() is self:
            self.stop()
            return True
        return False


def _top_mode() -> Any:
    look = getattr(importlib.import_module("torch.utils._python_dispatch"), "_get_current_dispatch_mode", None)
    return None if look is None else look()
