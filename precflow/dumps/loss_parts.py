"""What a script computes its loss by, outside of every module, and whether the sides do so by other calls.

The same loss may be written in two forms. None of the calls in between is the partner of another one, whatever their names::

    reference   log_softmax -> nll_loss -> add (of the first two terms) -> add (of the third)
    target      cross_entropy           -> add (of the last two terms)  -> add (of the first)

Both are right if the loss is the same number and leaves the same gradients.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from precflow.agent.contract import BACKWARD, FORWARD, OUTSIDE
from precflow.dumps.dtypes import is_floating
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record
from precflow.errors import DumpError

_When = tuple[int, int]
"""Step and rank."""
_SAME = 1e-5  # relative: a loss of several micro batches is the sum of rounded numbers


@dataclass(frozen=True)
class LossParts:
    """What the losses of both sides are computed by.

    Attributes:
        records: Identity texts of outputs that a loss is made of, outside of every module.
        otherwise: Steps and ranks in which the sides make other calls for it, or of other tensors.
    """

    records: frozenset[str] = frozenset()
    otherwise: frozenset[tuple[int, int]] = frozenset()


NO_PARTS = LossParts()


def find_loss_parts(reference: Dump, target: Dump) -> LossParts:
    """Return what the losses of both sides are computed by; the target's calls are numbered as their partners are."""
    traced = [_trace(dump) for dump in (reference, target)]
    when = set(traced[0]) & set(traced[1])
    return LossParts(
        frozenset(text for side in traced for one in when for text, _ in side[one]),
        frozenset(one for one in when if traced[0][one] != traced[1][one]),
    )


def _trace(dump: Dump) -> dict[_When, frozenset[tuple[str, tuple[str, ...]]]]:
    """Return, for each step whose loss is found, the outputs that it is made of and what each of them is made of."""
    losses = dump.header.loss_of_step
    if not losses:
        return {}
    steps: dict[_When, list[Call]] = defaultdict(list)
    for call in dump.calls():
        if call.step in losses:
            steps[call.step, call.rank].append(call)
    found = {when: _find_losses(sorted(own, key=lambda call: call.order)) for when, own in steps.items()}
    ranks: dict[int, list[float]] = defaultdict(list)  # of each step: the losses of its ranks
    for (step, _), made in found.items():
        ranks[step].append(math.fsum(_read(dump, record) for _, record in made) if made else math.nan)
    known = {
        step for step, own in ranks.items() if math.isclose(math.fsum(own) / len(own), losses[step], rel_tol=_SAME, abs_tol=0.0)
    }
    return {when: _list_parts([call for call, _ in made], steps[when]) for when, made in found.items() if when[0] in known}


def _find_losses(calls: Sequence[Call]) -> list[tuple[Call, Record]]:
    """Return the last number that is computed before each backward begins."""
    losses: list[tuple[Call, Record]] = []
    last: tuple[Call, Record] | None = None
    for call in calls:
        if call.phase == BACKWARD and last is not None:
            losses.append(last)
            last = None
        elif _is_part(call):
            numbers = [record for record in call.outputs if is_floating(record.dtype) and math.prod(record.shape) == 1]
            last = (call, numbers[0]) if numbers else last
    return losses


def _list_parts(losses: Sequence[Call], calls: Sequence[Call]) -> frozenset[tuple[str, tuple[str, ...]]]:
    """Return the outputs that losses are made of outside of every module, and the names of what each is made of."""
    by_order = {call.order: call for call in calls}
    waiting, seen = list(losses), set[int]()
    parts = set[tuple[str, tuple[str, ...]]]()
    while waiting:
        call = waiting.pop()
        if call.order in seen or not _is_part(call):
            continue
        seen.add(call.order)
        makers = [by_order.get(record.source[0]) if record.source else None for record in call.inputs]
        waiting += [maker for maker in makers if maker is not None]
        names = tuple("" if maker is None else f"{maker.name} ({maker.phase})" for maker in makers)
        parts |= {(record.text, names) for record in call.outputs}
    return frozenset(parts)


def _is_part(call: Call) -> bool:
    return call.module == OUTSIDE and call.phase == FORWARD


def _read(dump: Dump, record: Record) -> float:
    """Return the value of a tensor of one element; NaN if nothing of it was kept."""
    if record.statistics is not None and record.statistics.sum is not None:
        return float(record.statistics.sum)
    try:
        return float(dump.tensor(record).item()) if record.stored else math.nan
    except DumpError:
        return math.nan
