"""Level ``operator``: aten operators below autograd, in forward and inside backward, recorded by a dispatch mode.

A function of torch's Python interface runs one or more aten operators. While a ``TorchDispatchMode`` is active, torch hands it
each of them, below autograd::

    F.linear(x, weight)    ->    mode.__torch_dispatch__(aten.t.default, ...), then aten.mm.default

The operators that autograd runs in backward come in the same way. Each is tied to the module call whose forward has made the
autograd node that runs.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch._C import DisableTorchFunction
from torch.utils._python_dispatch import TorchDispatchMode  # documented to users of torch_dispatch, only its module is private

from precflow.agent.capture import autograd
from precflow.agent.capture.arguments import split_arguments
from precflow.agent.capture.calls import CaptureContext, OperatorCalls
from precflow.agent.capture.collectives import NAMESPACES
from precflow.agent.capture.operator_names import aten_name, is_movement
from precflow.agent.capture.record_lines import Heading
from precflow.agent.contract import ALLOCATION, NONE, PLACEMENT

if TYPE_CHECKING:
    from precflow.agent.capture.call_stack import ModuleCall
    from precflow.agent.capture.collectives import CollectiveRecorder
    from precflow.agent.capture.graph import Graph
    from precflow.agent.capture.nesting import TensorWithPath

_NUMBERS = (bool, int, float, complex)
_OF_AUTOGRAD = frozenset(["detach", "alias"])  # autograd inserts these on its own, at places that differ between versions
_top_mode: Optional[Callable[[], Any]] = getattr(  # of torch's stack; private, and missing on some versions
    sys.modules["torch.utils._python_dispatch"], "_get_current_dispatch_mode", None
)

# Operator -> positions of outputs that only its backward reads: random seeds, and workspace with parts that were never written
# to. Their values differ from run to run, so they are not recorded.
_SCRATCH = {
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


class _Location(NamedTuple):
    """Where an operator runs: module call, phase, autograd node (-1 in forward), and call site (-1 if not known yet)."""

    module_call: ModuleCall
    phase: str
    node: int
    site: int


class AtenRecorder:
    """Records aten operators: inputs before, outputs after.

    Args:
        context: Where records go, and what else all recorders of calls share.
        phases: Which of ``forward`` and ``backward`` are recorded.
        graph: Knows which module call made a node; needed for backward.
    """

    def __init__(
        self,
        context: CaptureContext,
        *,
        phases: Sequence[str],
        graph: Optional[Graph],
    ) -> None:
        self._lines, self._stack, self._sites, self._is_listening, self._guard = context
        self._calls = OperatorCalls(self._lines)
        self._phases = frozenset(phases)
        self._graph = graph
        self._schemas: Dict[Any, _OperatorSchema] = {}

    def call(self, function: Any, positional: Sequence[Any], keywords: Dict[str, Any]) -> Any:
        """Run an aten operator and record it; its result and its exceptions reach the caller unchanged.

        Raises:
            WriteError: The dump cannot be written.
        """
        location = None if self._guard.is_held or self._lines.failed else self._locate()
        schema = self._schemas.get(function)
        if schema is None:
            schema = self._schemas[function] = _OperatorSchema(function)
        if location is None or not location.module_call.records_operators:
            return self._run_unrecorded(schema, positional, keywords)
        if schema.name in PLACEMENT or schema.name in _OF_AUTOGRAD:
            result = schema.run(positional, keywords)
            if schema.name not in ALLOCATION:
                with self._guard:
                    self._calls.pass_source_on(positional, result)
            return result
        module_call, name, phase = location.module_call, schema.name, location.phase
        # Counted even if it is not recorded: the ordinals of records must not depend on what else is recorded.
        ordinal = module_call.count_run("aten.%s %s" % (name, phase))
        choice = self._stack.choose("operator", module_call.module, module_call.class_name, name, phase)
        if choice.detail == NONE:
            return self._run_unrecorded(schema, positional, keywords)
        with self._guard:
            node, forward_lines, site = None, [], location.site
            if phase == "forward":
                site = self._sites.find_number()
                if self._graph is not None:  # autograd has made its node before it calls the operator
                    node = self._graph.timeline.take_new_node()
            elif self._graph is not None:
                forward_lines = self._graph.timeline.forward_lines(location.node)
            tensors, arguments = split_arguments(positional, keywords, schema.parameters)
            moves = is_movement(name)
            heading = Heading("operator", module_call, name, ordinal, site, moves, arguments, phase, forward_lines)
            running = self._calls.begin(heading, choice, tensors)
        result = schema.run(positional, keywords)
        with self._guard:
            order = self._calls.end(running, schema.drop_scratch(result), schema.select_written(tensors))
            if self._graph is not None and order is not None and node is not None:
                self._graph.timeline.note_forward_line(node, order)
        return result

    def _run_unrecorded(self, schema: _OperatorSchema, positional: Sequence[Any], keywords: Dict[str, Any]) -> Any:
        """Run an operator without recording it; tensors that it writes to will be measured again.

        This cannot be left to the version counters: they are raised above this level, after the operator has run.
        """
        # Torch functions are over at this level. A mode of theirs would see this call of ours as one of the workload.
        with DisableTorchFunction():
            result = schema.run(positional, keywords)
        if schema.writes and not self._guard.is_held:
            with self._guard:
                for _, tensor in schema.select_written(split_arguments(positional, keywords)[0]):
                    self._lines.note_write(tensor)
        return result

    def _locate(self) -> Optional[_Location]:
        """Return where the running operator belongs, ``None`` if it is not recorded."""
        if not autograd.is_in_backward():
            listening = "forward" in self._phases and self._is_listening()
            return _Location(self._stack.innermost, "forward", -1, -1) if listening else None
        # Gradients are enabled inside backward only while a checkpoint computes its forward again, which is no record.
        if "backward" not in self._phases or self._graph is None or torch.is_grad_enabled():
            return None
        self._graph.recomputations.resolve()
        node = autograd.current_sequence()
        module_call = self._graph.timeline.find_call(node)
        if module_call is None:
            return _Location(self._stack.outside, "backward", node, -1)
        return _Location(module_call, "backward", node, module_call.site)


class _OperatorSchema:
    """What torch declares about an aten operator.

    Attributes:
        name: Canonical name.
        parameters: Names of its parameters.
        writes: The operator writes to some of its arguments.
    """

    def __init__(self, function: Any) -> None:
        schema = function._schema  # noqa: SLF001  the declaration has no public name
        self._function = function
        self._tensors = frozenset(place for place, each in enumerate(schema.arguments) if str(each.type) == "Tensor")
        self.name = aten_name(function)
        self._scratch = _SCRATCH.get(self.name)
        self.parameters = tuple(argument.name for argument in schema.arguments)
        self._written = frozenset(
            name
            for place, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
            for name in (str(place), argument.name)  # paths begin with the position, or with the keyword
        )
        self.writes = bool(self._written)

    def run(self, positional: Sequence[Any], keywords: Dict[str, Any]) -> Any:
        """Run the operator.

        ``x & 3`` arrives here as the overload for two tensors, which refuses a number: torch has to choose the overload again.
        """
        # The packet holds all overloads of an operator: bitwise_and chooses bitwise_and.Scalar for x & 3.
        number = any(place in self._tensors and isinstance(value, _NUMBERS) for place, value in enumerate(positional))
        return (self._function.overloadpacket if number else self._function)(*positional, **keywords)

    def drop_scratch(self, result: Any) -> Any:
        """Return what the operator returned, with ``None`` in place of outputs that are scratch memory."""
        if self._scratch is None or not isinstance(result, (tuple, list)):
            return result
        return [None if place in self._scratch else output for place, output in enumerate(result)]

    def select_written(self, tensors: List[TensorWithPath]) -> List[TensorWithPath]:
        """Return the tensors that the operator writes to; version counters are raised above this level and say nothing yet."""
        return [each for each in tensors if each[0].partition(".")[0] in self._written]


class AtenMode(TorchDispatchMode):
    """Hands the operators of this thread, and of the backward passes that it starts, to a recorder.

    Args:
        recorder: Of aten operators.
        collectives: Recorder of those of torch.distributed; without one, they count as the others do.
    """

    def __init__(self, recorder: AtenRecorder, collectives: Optional[CollectiveRecorder] = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not annotated it
        self._recorder = recorder
        self._collectives = collectives
        self._active = False

    def __torch_dispatch__(
        self, func: Any, types: Tuple[type, ...], args: Sequence[Any] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        """Run an operator on behalf of torch."""
        del types
        if self._collectives is not None and func.namespace in NAMESPACES:
            return self._collectives.call(func, args, kwargs or {})
        return self._recorder.call(func, args, kwargs or {})

    def start(self) -> None:
        """Begin to listen."""
        if not self._active:
            self.__enter__()  # type: ignore[no-untyped-call]  # the same
            self._active = True

    def stop(self) -> None:
        """Stop listening; does nothing while the mode has stepped aside."""
        if self._active:
            self._active = False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # the same

    def step_aside(self) -> bool:
        """Leave torch's stack of modes for code that must run unrecorded; return whether it did: only from the top."""
        if self._active and _top_mode is not None and _top_mode() is self:
            self.stop()
            return True
        return False
