"""Calls of operators as records: what is known before one runs, and what it has made of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Sequence, Tuple

import torch

from precflow.agent.capture.lineage import is_new, storages_of
from precflow.agent.capture.nesting import Placed, output_tensors

if TYPE_CHECKING:
    from precflow.agent.capture.lineage import Seen
    from precflow.agent.capture.record_lines import Heading, Lines, Record
    from precflow.agent.selection import Choice


class Begun(NamedTuple):
    """A call that runs: its heading, what is kept of its tensors, and these as they were before."""

    heading: Heading
    choice: Choice
    tensors: List[Placed]
    inputs: List[Record]


class Calls:
    """Writes the lines of operator calls, whichever mode has seen them.

    Args:
        lines: Where records go.
    """

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def begin(self, heading: Heading, choice: Choice, tensors: List[Placed]) -> Begun:
        """Read what goes into a call.

        Raises:
            WriteError: A tensor cannot be stored.
        """
        return Begun(heading, choice, tensors, self._lines.describe(tensors, store=not heading.movement, choice=choice))

    def end(self, begun: Begun, result: Any, written: List[Placed]) -> Optional[int]:
        """Write a call's line and return its order; ``None`` where it returned nothing new.

        Args:
            begun: From before.
            result: What the call returned.
            written: The inputs that it wrote to: what it has made where it returned nothing.

        Raises:
            WriteError: The line cannot be written.
        """
        returned = output_tensors(result)
        given = {id(tensor) for _, tensor in begun.tensors}
        if not written and all(id(tensor) in given for _, tensor in returned):  # no tensor, or the very same
            return None
        for _, tensor in written:
            self._lines.written(tensor)
        produced = returned or _numbered(written)
        outputs = self._lines.describe(produced, store=not begun.heading.movement, choice=begun.choice)
        for record in outputs:
            record["source"] = None
        order = self._lines.emit(begun.heading, begun.inputs, outputs)
        self._note_sources(begun, order, list(zip(produced, outputs)), written)
        return order

    def doubt(self, tensors: List[Placed]) -> None:
        """Read tensors anew when they come again: a call that writes in place has counted no write to any of them."""
        for _, tensor in tensors:
            self._lines.written(tensor)

    def carry(self, positional: Sequence[Any], result: Any) -> None:
        """Give what a cast, a move to a device or an attribute returns the source of what it was made from."""
        if not positional or not isinstance(result, torch.Tensor) or not isinstance(positional[0], torch.Tensor):
            return
        source = self._lines.sources.find(positional[0])
        if source is not None and result is not positional[0]:
            self._lines.sources.produced(result, source, made=is_new(result, storages_of(positional[:1])))

    def _note_sources(self, begun: Begun, order: int, produced: List[Tuple[Placed, Record]], written: List[Placed]) -> None:
        given = (
            storages_of(tensor for _, tensor in begun.tensors) if written else {each["seen"].address for each in begun.inputs}
        )
        changed = {id(tensor) for _, tensor in written}
        for _, tensor in written:
            self._lines.sources.produced(tensor, (order, produced[0][0][0]), made=True)
        for (index, tensor), record in produced:
            now: Seen = record["seen"]
            made = id(tensor) in changed or now.address not in given
            self._lines.sources.produced(tensor, (order, index), made=made, now=now)


def _numbered(written: List[Placed]) -> List[Placed]:
    """Return what a call without a result wrote, as its outputs: a single one is ``0``."""
    return [("0", written[0][1])] if len(written) == 1 else written
