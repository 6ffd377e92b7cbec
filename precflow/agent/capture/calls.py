"""What the recorders of calls share: the parts of capture that they work with, and how a call of an operator is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, List, NamedTuple, Optional, Sequence

import torch

from precflow.agent.capture.lineage import has_own_memory, storages_of
from precflow.agent.capture.nesting import TensorWithPath, output_tensors

if TYPE_CHECKING:
    from precflow.agent.capture.call_sites import CallSites
    from precflow.agent.capture.call_stack import CallStack
    from precflow.agent.capture.guard import Guard
    from precflow.agent.capture.lineage import TensorState
    from precflow.agent.capture.record_lines import Heading, Lines, Record
    from precflow.agent.selection import Choice


class CaptureContext(NamedTuple):
    """The parts of capture that every recorder of calls works with.

    Attributes:
        lines: Where records go.
        stack: The running modules.
        sites: Call sites.
        is_listening: Tells whether the forward is being recorded at the moment.
        guard: Held while capture reads tensors.
    """

    lines: Lines
    stack: CallStack
    sites: CallSites
    is_listening: Callable[[], bool]
    guard: Guard


class RunningCall(NamedTuple):
    """A call that runs: its heading, what is kept of its tensors, the input tensors, and their records from before the call."""

    heading: Heading
    choice: Choice
    tensors: List[TensorWithPath]
    inputs: List[Record]


class OperatorCalls:
    """Reads the inputs of an operator before it runs and the outputs after it, and writes its line.

    Args:
        lines: Where records go.
    """

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def begin(self, heading: Heading, choice: Choice, tensors: List[TensorWithPath]) -> RunningCall:
        """Read the inputs of a call before it runs: an in-place operator such as ``x.add_(1)`` overwrites them.

        Raises:
            WriteError: A tensor cannot be stored.
        """
        self._lines.note_running(heading.module_call, heading.operator, heading.site, heading.phase, tensors)
        return RunningCall(heading, choice, tensors, self._lines.describe(tensors, store=not heading.movement, choice=choice))

    def end(self, running: RunningCall, result: Any, written: List[TensorWithPath]) -> Optional[int]:
        """Write the line of a call and return its order; ``None`` if the call neither returned nor wrote anything new.

        Args:
            running: What :meth:`begin` returned.
            result: What the call returned.
            written: The inputs that it wrote to. They are its outputs if it returned nothing.

        Raises:
            WriteError: The line cannot be written.
        """
        returned = output_tensors(result)
        given_ids = {id(tensor) for _, tensor in running.tensors}
        if not written and all(id(tensor) in given_ids for _, tensor in returned):  # no tensor, or an input as it was
            return None
        for _, tensor in written:
            self._lines.note_write(tensor)
        produced = returned
        if not produced:  # as of aten's `_foreach_add_`; like a single returned tensor, a single one has the path 0
            produced = [("0", written[0][1])] if len(written) == 1 else written
        # An aten operator that writes to a weight, such as `step.add_(1)`, runs before the weight's version is raised: by name
        # it is still the weight, but no longer with the content that the header has, so it is read like any result.
        store = not running.heading.movement
        outputs = self._lines.describe(produced, store=store, returned=bool(written), choice=running.choice)
        for record in outputs:  # describe has looked up which call made them before this one
            record["source"] = None
        order = self._lines.emit(running.heading, running.inputs, outputs)
        # After a write the states of the inputs from before the call no longer hold, so their storages are read again.
        if written:
            given_storages = storages_of(tensor for _, tensor in running.tensors)
        else:
            given_storages = {record["state"].address for record in running.inputs}
        for _, tensor in written:
            self._lines.sources.note_output(tensor, (order, produced[0][0]), wrote=True)
        written_ids = {id(tensor) for _, tensor in written}
        for (index, tensor), record in zip(produced, outputs):
            state: TensorState = record["state"]
            wrote = id(tensor) in written_ids or state.address not in given_storages
            self._lines.sources.note_output(tensor, (order, index), wrote=wrote, state=state)
        if self._lines.substitute is not None:
            named = {self._lines.identify(running.heading, index): tensor for index, tensor in produced}
            for tensor in self._lines.substitute(named, [tensor for _, tensor in running.tensors]):
                self._lines.note_write(tensor)
        return order

    def note_possible_writes(self, tensors: List[TensorWithPath]) -> None:
        """Have tensors measured again when they come next: one of them was written to, and no version counter shows which."""
        for _, tensor in tensors:
            self._lines.note_write(tensor)

    def pass_source_on(self, positional: Sequence[Any], result: Any) -> None:
        """Give the result of a cast, a move to a device or an attribute access the source of the tensor it was made from."""
        if not positional or not isinstance(result, torch.Tensor) or not isinstance(positional[0], torch.Tensor):
            return
        wrote = result is not positional[0] and has_own_memory(result, storages_of(positional[:1]))
        if wrote and self._lines.before_reading is not None:  # a collective that has just run is the source of what it wrote
            self._lines.before_reading([positional[0]])
        source = self._lines.sources.find(positional[0])
        if source is not None and result is not positional[0]:
            self._lines.sources.note_output(result, source, wrote=wrote)
