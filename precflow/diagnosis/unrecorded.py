"""Inputs that no recorded call is known to have made, and the module whose own code must have.

Where modules alone are recorded, what a module computes between its children is not: an attention's scores reach the output
projection out of nowhere. If such an input is over its limit already, who takes it is innocent, however wrong its output is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from precflow.agent.contract import Identity
from precflow.diagnosis.nodes import CallKey, CallNode, OutputKey, key_of
from precflow.dumps.records import Call, Record
from precflow.judgement.verdicts import INCOMPLETE_STATUSES, MISALIGNED_STATUSES, Judged

Look = Callable[[Record, Record], Judged]
_FINE = frozenset({"pass", "blind"})


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """An input that does not agree and was made by something that is not recorded.

    Attributes:
        record: The input, of the reference.
        judged: Its status, by the limits of outputs.
        taker: Name of the call that takes it.
        module: The innermost recorded module that it was made in; ``None`` where it came from outside of all of them.
    """

    record: Record
    judged: Judged
    taker: str
    module: CallNode | None

    @property
    def text(self) -> str:
        """Which input of which call."""
        return f"input {self.record.index} of {self.taker}"


class Search:
    """Looks for such inputs.

    Args:
        nodes: The reference's graph.
        target: Every record of the target.
        look: Judges an input; ``None`` where nothing but content ids is at hand: then nothing is found.
    """

    def __init__(self, nodes: Mapping[CallKey, CallNode], target: Mapping[Identity, Record], look: Look | None) -> None:
        self._nodes = nodes
        self._target = target
        self._look = look
        self._seen: dict[int, Judged] = {}

    def arriving(self, node: CallNode) -> Unrecorded | None:
        """Return the first such input among those that a call depends on, ``None`` where none is known to be over its limit."""
        for record, judged in self._judged(node):
            if judged.status in MISALIGNED_STATUSES:
                taker = self._takers[id(record)]
                return Unrecorded(record, judged, taker.call.name, self._module(taker, record))
        return None

    def doubtful(self, node: CallNode) -> str:
        """Return the index of an input that no recorded call made and that cannot be judged, ``""`` where there is none."""
        open_ = (record for record, judged in self._judged(node) if judged.status in INCOMPLETE_STATUSES)
        return next((record.index for record in open_), "")

    def agree(self, node: CallNode) -> bool:
        """Tell whether there are such inputs that differ in bits, and all of them keep the limits of outputs."""
        statuses = [judged.status for _, judged in self._judged(node)]
        return bool(statuses) and set(statuses) <= _FINE

    def _judged(self, node: CallNode) -> Iterator[tuple[Record, Judged]]:
        """Yield the inputs without a maker whose bits are not known to be equal, each with its status."""
        for edge in node.edges if self._look is not None else ():
            record, other = edge.record, self._target.get(edge.record.identity)
            made = edge.source is not None and not edge.guessed and record.source is not None  # else taken for equal bits
            if made or record.weight or other is None or self._look is None or id(record) not in self._takers:
                continue
            if not record.content or record.content != other.content:
                yield record, self._status(record, other, self._look)

    def _status(self, record: Record, other: Record, look: Look) -> Judged:
        if id(record) not in self._seen:
            self._seen[id(record)] = look(record, other)
        return self._seen[id(record)]

    def _module(self, taker: CallNode, record: Record) -> CallNode | None:
        """Return the module around a call that was not given this input itself."""
        around = self._around.get(taker.key)
        while around is not None and record.known and any(one.known == record.known for one in around.call.inputs):
            around = self._around.get(around.key)
        return around

    @functools.cached_property
    def _takers(self) -> Mapping[int, CallNode]:
        """The call of each input."""
        return {id(record): node for node in self._nodes.values() for record in node.call.inputs}

    @functools.cached_property
    def _around(self) -> Mapping[CallKey, CallNode]:
        """The innermost module around each call: the first that is done after it."""
        found: dict[CallKey, CallNode] = {}
        for node in self._nodes.values():
            for key in node.inside:
                found.setdefault(key, node)
        return found


# Tensors that are not what their maker returned: something that is not recorded wrote to them in between.
#
# An agent knows which call made a tensor by its memory, and that memory was written to by torch's counter of in-place writes.
# Collectives in place (``all_reduce``), kernels of other libraries and NumPy write without being counted: the record of whoever
# takes the tensor then names its maker, and has another content. One dump shows that by itself, free of any noise.

Outputs = Mapping[OutputKey, tuple[Call, Record]]


@dataclass(frozen=True)
class Change:
    """A tensor that changed on its way to a call.

    Attributes:
        record: What arrived, or what a module returned.
        maker: The call that made it, by name.
        site: Where that was called, ``""`` where unknown.
    """

    record: Record
    maker: str
    site: str

    @property
    def text(self) -> str:
        """Which tensor, who made it, and the innermost line of where."""
        what, line = f"{self.record.whose.role} {self.record.index}", self.site.partition(" <- ")[0]
        return f"{what} after {self.maker} returned it{f' ({line})' if line else ''}"


def outputs_of(calls: Iterable[Call]) -> Outputs:
    """Return every output of a dump by its place."""
    return {(key_of(call), record.index): (call, record) for call in calls for record in call.outputs}


def change(record: Record, outputs: Outputs) -> Change | None:
    """Return how a record differs from the output that it is; ``None`` where it does not, or nothing tells.

    Args:
        record: Of a call in the same dump.
        outputs: All outputs of the dump.
    """
    if record.source is None or record.weight or _is_transposable(record.shape):
        return None
    identity = record.identity
    found = outputs.get(((identity.rank, identity.step, record.source[0]), record.source[1]))
    if found is None:
        return None
    call, made = found
    alike = (made.dtype, made.shape, made.part) == (record.dtype, record.shape, record.part)
    if not alike or _equal(made, record):
        return None
    return Change(record, call.name, call.site)


def _equal(one: Record, other: Record) -> bool:
    """Tell whether two records have the same bits, as far as what was kept tells."""
    if one.content and other.content:
        return one.content == other.content
    return not (one.mark and other.mark) or one.mark == other.mark


def _is_transposable(shape: tuple[int, ...]) -> bool:
    """Tell whether a transposed view, which is no call where it is an attribute (``x.T``), has the same shape."""
    return len(shape) > 1 and (shape == shape[::-1] or shape[-1] == shape[-2])
