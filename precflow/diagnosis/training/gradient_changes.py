"""What a script does to gradients between backward and the optimizer: clipping by hand, unscaling, averaging.

Such calls run outside every module and are recorded in phase ``forward``, as the loss is. What they read tells the two apart::

    linear -> cross_entropy (outside)   backward, gradients   div (outside)   optimizer
              forward: the loss                               changes what the optimizer is given
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from precflow.agent.contract import BACKWARD, FORWARD, GRADIENT, OUTSIDE
from precflow.dumps.records import Call

_OF_BACKWARD = frozenset((BACKWARD, GRADIENT))


def find_gradient_changes(calls: Iterable[Call]) -> Iterator[Call]:
    """Yield the calls outside every module that read what backward left, directly or through one another.

    One that another backward goes through is not among them, such as a penalty on gradients: it is a part of the loss. A call
    that reads no recorded gradient is none either, although it follows backward: an accuracy, or the next batch.
    """
    ordered = sorted(calls, key=lambda call: (call.rank, call.step, call.order))
    for _, step in groupby(ordered, key=lambda call: (call.rank, call.step)):
        yield from _find_in_step(list(step))


def _find_in_step(calls: Sequence[Call]) -> Iterator[Call]:
    left = set()  # orders of the calls so far whose outputs are gradients, or made of gradients
    for call, after in zip(calls, _list_next_phases(calls), strict=True):
        if not _is_of_script(call):
            left |= {call.order} if call.phase in _OF_BACKWARD else set()
        elif after not in _OF_BACKWARD and any(record.source and record.source[0] in left for record in call.inputs):
            left.add(call.order)
            yield call


def _list_next_phases(calls: Sequence[Call]) -> list[str]:
    """Return for each call the phase of the next one that is not the script's own; ``""`` at the end of the step."""
    phases, after = [], ""
    for call in reversed(calls):
        phases.append(after)
        after = after if _is_of_script(call) else call.phase
    return phases[::-1]


def _is_of_script(call: Call) -> bool:
    return call.module == OUTSIDE and call.phase == FORWARD
