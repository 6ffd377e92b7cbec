"""What no recorded call did: inputs that a module's own code made, and tensors that changed on their way to a call.

*Inputs without a maker.* If only modules are recorded, what a module computes between its children is not: an attention's
scores reach the output projection out of nowhere. If such an input is over its limit already, the call that takes it is
innocent, however wrong its output is, and the innermost module around it is to blame (:class:`UnrecordedInputs`).

*Changed tensors.* The agent knows which call made a tensor by its memory, and whether the memory was written to since by
torch's counter of in-place writes. Collectives in place (``all_reduce``), kernels of other libraries and NumPy write without
counting: the record of whoever takes the tensor then names its maker but has another content. One dump is enough to see that,
so no rounding is in the way (:func:`find_change`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from precflow.agent.contract import Identity
from precflow.diagnosis.nodes import CallKey, CallNode, key_of
from precflow.dumps.records import Call, Record
from precflow.judgement.inputs import JudgeInput
from precflow.judgement.verdicts import INCOMPLETE_STATUSES, MISALIGNED_STATUSES, Judged

CallsByKey = Mapping[CallKey, Call]
"""Rank, step and order -> every call of a dump."""
_WITHIN_LIMITS = frozenset({"pass", "blind"})


@dataclass(frozen=True, slots=True)
class UnrecordedInput:
    """An input that is over its limit and was made by something that was not recorded.

    Attributes:
        record: The input, of the reference.
        judged: Its status, by the limits of outputs.
        taker: The call that takes it.
        module: The innermost recorded module that it was made in; ``None`` if it came from outside of all of them.
    """

    record: Record
    judged: Judged
    taker: CallNode
    module: CallNode | None

    @property
    def text(self) -> str:
        """Which input of which call."""
        return f"input {self.record.index} of {self.taker.call.name}"


class UnrecordedInputs:
    """Finds and judges the inputs of calls that no recorded call made.

    Args:
        nodes: The reference's graph.
        target: Every record of the target.
        judge_input: Judges an input; ``None`` if only content ids were kept: then nothing is found.
    """

    def __init__(
        self, nodes: Mapping[CallKey, CallNode], target: Mapping[Identity, Record], judge_input: JudgeInput | None
    ) -> None:
        self._nodes = nodes
        self._target = target
        self._judge_input = judge_input
        self._known: dict[int, Judged] = {}  # by id() of the record: an input is read and judged once

    def find_failing(self, node: CallNode) -> UnrecordedInput | None:
        """Return the first input without a maker that is over its limit, of those that a call depends on."""
        for record, judged in self._judge_inputs(node):
            if judged.status in MISALIGNED_STATUSES:
                taker = self._takers[id(record)]
                return UnrecordedInput(record, judged, taker, self._find_around(record, taker))
        return None

    def find_own(self, module: CallNode) -> UnrecordedInput | None:
        """Return the first input without a maker that is over its limit, of those that a module was given itself."""
        for record, judged in self._judge_inputs(module):
            if judged.status in MISALIGNED_STATUSES and self._takers[id(record)] is module:
                return UnrecordedInput(record, judged, module, self._find_around(record, module))
        return None

    def _find_around(self, record: Record, taker: CallNode) -> CallNode | None:
        """Return the innermost module around a call that was not given this input itself: its own code made it."""
        around = self._around.get(taker.key)
        while around is not None and self._was_given(around, record):
            around = self._around.get(around.key)
        return around

    def _was_given(self, module: CallNode, record: Record) -> bool:
        """Tell whether a module was given an input of a call inside it, and given another one on the target."""
        given = [one for one in module.call.inputs if record.known and one.known == record.known]
        others = [self._target.get(one.identity) for one in given]
        return bool(given) and not any(other is not None and other.known == record.known for other in others)

    def find_outside_taker(self, record: Record) -> CallNode | None:
        """Return the call that takes an input without a maker if that came from outside of all modules."""
        taker = self._takers.get(id(record))
        return taker if taker is not None and self._find_around(record, taker) is None else None

    def find_undecided(self, node: CallNode) -> str:
        """Return the index of an input without a maker that cannot be judged, ``""`` if there is none."""
        undecided = (record for record, judged in self._judge_inputs(node) if judged.status in INCOMPLETE_STATUSES)
        return next((record.index for record in undecided), "")

    def all_agree(self, node: CallNode) -> bool:
        """Tell whether there are inputs without a maker that differ in bits, and all of them keep the limits of outputs."""
        statuses = {judged.status for _, judged in self._judge_inputs(node)}
        return bool(statuses) and statuses <= _WITHIN_LIMITS

    def _judge_inputs(self, node: CallNode) -> Iterator[tuple[Record, Judged]]:
        """Yield the inputs without a maker whose bits are not known to be equal, each with its status."""
        if self._judge_input is None:
            return
        for edge in node.edges:
            record, other = edge.record, self._target.get(edge.record.identity)
            # A source that was not recorded was only found by equal content: it tells nothing about who made the input.
            has_maker = edge.source is not None and not edge.guessed and record.source is not None
            if has_maker or record.weight or other is None or id(record) not in self._takers:
                continue
            judged = self.judge(record) if not record.content or record.content != other.content else None
            if judged is not None:
                yield record, judged

    def judge(self, record: Record) -> Judged | None:
        """Return the status of an input of the reference; ``None`` if the target has no such input, or nothing can judge it."""
        other = self._target.get(record.identity)
        if self._judge_input is None or other is None:
            return None
        if id(record) not in self._known:
            self._known[id(record)] = self._judge_input(record, other)
        return self._known[id(record)]

    @functools.cached_property
    def _takers(self) -> Mapping[int, CallNode]:
        """The call of each input."""
        return {id(record): node for node in self._nodes.values() for record in node.call.inputs}

    @functools.cached_property
    def _around(self) -> Mapping[CallKey, CallNode]:
        """The innermost module around each call: the first that is done after it."""
        around: dict[CallKey, CallNode] = {}
        for node in self._nodes.values():
            for key in node.inside:
                around.setdefault(key, node)
        return around


@dataclass(frozen=True)
class TensorChange:
    """A tensor that changed between the call that made it and the call that takes it.

    Attributes:
        record: What arrived, or what a module returned.
        maker: Name of the call that made it.
        site: Where that was called, ``""`` if unknown.
    """

    record: Record
    maker: str
    site: str

    @property
    def text(self) -> str:
        """Which tensor, which call made it, and the innermost line of where that was called."""
        tensor, line = f"{self.record.whose.role} {self.record.index}", self.site.partition(" <- ")[0]
        return f"{tensor} after {self.maker} returned it{f' ({line})' if line else ''}"


def index_calls(calls: Iterable[Call]) -> CallsByKey:
    """Return every call of a dump by its key."""
    return {key_of(call): call for call in calls}


def find_change(record: Record, calls: CallsByKey) -> TensorChange | None:
    """Return how a record differs from the output that it should be; ``None`` if it is the same, or too little was kept.

    Args:
        record: Of a call in the same dump.
        calls: All calls of the dump.
    """
    shape = record.shape
    # ``x.T`` is an attribute and not a call, so it is not recorded. If a transposed tensor has the same shape as before, its
    # other content is no change: ``(3, 3)``, or the last two axes of ``(2, 8, 8)`` swapped.
    is_transposable = len(shape) > 1 and (shape == shape[::-1] or shape[-1] == shape[-2])
    if record.source is None or record.weight or is_transposable:
        return None
    order, index = record.source
    call = calls.get((record.whose.rank, record.whose.step, order))
    output = next((made for made in call.outputs if made.index == index), None) if call is not None else None
    if call is None or output is None or (output.dtype, output.shape, output.part) != (record.dtype, shape, record.part):
        return None
    if output.content and record.content:
        is_same = output.content == record.content
    else:  # without content ids the marks tell, if both have one
        is_same = not (output.mark and record.mark) or output.mark == record.mark
    return None if is_same else TensorChange(record, call.name, call.site)
