"""Modules of which one side adds the residual inside, and the other outside: their outputs differ, and nothing is wrong.

    reference   block: mlp(x)             mlp: x + down(up(x))
    target      block: x + mlp(x)         mlp:     down(up(x))

The outputs of ``mlp`` differ by ``x``, and those of ``block`` agree. If those of ``block`` differ too, a residual is missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from precflow.agent.contract import FORWARD, ROOT_MODULE
from precflow.comparison.measure import Measure
from precflow.dumps.dtypes import is_floating
from precflow.dumps.protocol import Array, Dump
from precflow.dumps.records import Call, Record
from precflow.dumps.views.derived import DerivedDump, MadeTensor
from precflow.judgement.inputs import JudgeInput
from precflow.judgement.verdicts import Judged

OUTSIDE = "outside"
_WITHIN = frozenset({"pass", "blind", "accepted"})
_Key = tuple[str, int, int, int]  # module, number of its call, step, rank


class WithResidual(DerivedDump):
    """A dump, with outputs to which another tensor is added for whoever asks for them (:meth:`add`)."""

    def _derive_calls(self) -> list[Call]:
        return self.whole.calls()

    def add(self, output: Record, residual: Record) -> Record:
        """Return an output with another tensor of its shape added."""
        return self._make(output, MadeTensor((output, residual), _add), output.shape, "sum")


def _add(arrays: Sequence[Array]) -> Array:
    total: Array = (arrays[0].astype(np.float32) + arrays[1].astype(np.float32)).astype(arrays[0].dtype)
    return total


def mark_residuals(
    reference: Dump, target: Dump, make_judge: Callable[[Dump, Dump], JudgeInput]
) -> Callable[[Sequence[Measure], Sequence[Judged]], list[Judged]]:
    """Return a function that marks failing outputs of modules which differ by an input of theirs, in a module that agrees.

    Args:
        reference: The reference's dump.
        target: The target's.
        make_judge: Returns what judges a record of two dumps by the limits of the run.
    """

    def mark(measures: Sequence[Measure], judged: Sequence[Judged]) -> list[Judged]:
        """Return the statuses, with those records as artefacts."""
        del measures
        statuses = {one.record: one.status for one in judged}
        if "fail" not in statuses.values():
            return list(judged)
        sides = [_index_modules(dump) for dump in (reference, target)]
        views = WithResidual(reference), WithResidual(target)
        judge = make_judge(*views)
        marked = {}
        for key in sides[0].keys() & sides[1].keys():
            pairs = _pair_failing(sides[0][key], sides[1][key], statuses)
            if not pairs or not _agrees(_find_parent(key, sides[0]), statuses):
                continue
            for left, right in pairs:
                where = _find_where(left, right, (sides[0][key], sides[1][key]), views, judge)
                if where:
                    marked[left.text] = Judged(left.text, "artefact", reason=where)
        return [marked.get(one.record, one) for one in judged]

    return mark


def _index_modules(dump: Dump) -> Mapping[_Key, Call]:
    return {
        (call.module, call.call, call.step, call.rank): call
        for call in dump.calls()
        if not call.operator and call.phase == FORWARD
    }


def _pair_failing(one: Call, two: Call, statuses: Mapping[str, str]) -> list[tuple[Record, Record]]:
    """Return the failing outputs of both sides whose tensors were kept."""
    others = {record.index: record for record in two.outputs}
    return [
        (record, others[record.index])
        for record in one.outputs
        if statuses.get(record.text) == "fail"
        and record.index in others
        and all(each.stored and not each.part and is_floating(each.dtype) for each in (record, others[record.index]))
    ]


def _find_parent(key: _Key, calls: Mapping[_Key, Call]) -> Call | None:
    """Return the call of the innermost module around another one, of which that makes one call at a time."""
    module, *when = key
    while module != ROOT_MODULE:
        module = module.rpartition(".")[0] or ROOT_MODULE
        if found := calls.get((module, *when)):  # type: ignore[arg-type]  # a key is a module and when
            return found
    return None


def _agrees(call: Call | None, statuses: Mapping[str, str]) -> bool:
    found = [statuses[record.text] for record in call.outputs if record.text in statuses] if call is not None else []
    return "pass" in found and set(found) <= _WITHIN | {"not_judged"}


def _find_where(
    left: Record, right: Record, calls: tuple[Call, Call], views: tuple[WithResidual, WithResidual], judge: JudgeInput
) -> str:
    """Return on which sides the residual is added inside and outside, in words; ``""`` if that is no explanation."""
    given = defaultdict[str, dict[str, Record]](dict)
    for side, call in zip(("reference", "target"), calls, strict=True):
        for record in call.inputs:
            if record.stored and not record.part and not record.weight and record.shape == left.shape:
                given[side][record.key] = record
    tried = [("reference", "target", record) for record in given["target"].values()]
    tried += [("target", "reference", record) for record in given["reference"].values()]
    for inside, outside, residual in tried:
        sums = (left, views[1].add(right, residual)) if outside == "target" else (views[0].add(left, residual), right)
        if judge(*sums).status in {"pass", "blind"}:
            return f"the {inside} adds input {residual.index} of {left.name} inside of it, and the {outside} {OUTSIDE}"
    return ""
