"""Calls that the two sides made differently: with another argument, or on the output of another call.

An operator that computes rightly what it was given can still be the wrong call: another epsilon, a skipped layer, the second
half of a split tensor where the reference takes the first. Float64 cannot see that, because it evaluates the call that was
made. But both sides recorded the arguments, and which earlier call made each input, so the two are simply compared::

    reference   layers.1.norm  takes input 0 from  layers.0 / add
    target      layers.1.norm  takes input 0 from  layers.0.mlp / linear      the residual sum was skipped
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from precflow.agent.contract import BACKWARD
from precflow.diagnosis.evaluation import PairedCall, find_other_implementations, module_call_of, name_call
from precflow.diagnosis.evidence.suspect import find_different_arguments
from precflow.diagnosis.nodes import list_read_inputs
from precflow.dumps.records import Call, Record


@dataclass(frozen=True)
class DifferentCall:
    """A call that the sides made differently.

    Attributes:
        pair: The call on both sides.
        arguments: ``name: reference / target`` of each argument that differs without a good reason.
        sources: For each input that comes from elsewhere, a sentence that says from where on both sides.
    """

    pair: PairedCall
    arguments: tuple[str, ...]
    sources: tuple[str, ...]

    @property
    def text(self) -> str:
        """What differs, in words."""
        return "; ".join((*(f"argument {argument}" for argument in self.arguments), *self.sources))


def find_different_calls(
    pairs: Sequence[PairedCall], reference: Iterable[Call], target: Iterable[Call], *, same_dtype: bool
) -> list[DifferentCall]:
    """Return the calls that the sides made differently, in order of the reference.

    Inside a module that the sides implement differently nothing is compared: calls are paired by their number there.

    Args:
        pairs: The calls that both sides made.
        reference: All calls of the reference.
        target: All calls of the target.
        same_dtype: Both runs have the same floating point type; otherwise type arguments and mask constants differ on purpose.
    """
    reference, target = list(reference), list(target)
    makers = (_index_makers(reference), _index_makers(target))
    others = find_other_implementations(reference, target)
    known = {
        (pair.name, index)
        for pair in pairs
        for index in {record.index for record in pair.reference.outputs} & {record.index for record in pair.target.outputs}
    }
    different = []
    for pair in pairs:
        if pair.reference.operator and module_call_of(pair.reference) in others:
            continue
        changed = find_different_arguments(pair.reference, pair.target, same_dtype=same_dtype)
        sources = _compare_sources(pair, makers, known)
        if changed or sources:
            different.append(DifferentCall(pair, tuple(changed), tuple(sources)))
    return different


def _index_makers(calls: Iterable[Call]) -> Mapping[tuple[int, int, int], Call]:
    return {(call.rank, call.step, call.order): call for call in calls}


def _compare_sources(
    pair: PairedCall, makers: tuple[Mapping[tuple[int, int, int], Call], ...], known: set[tuple[str, str]]
) -> list[str]:
    """Return a sentence for each input whose maker is another call on the target.

    Only outputs that both sides recorded are compared: a fused operator has no partner, so that what comes behind it naturally
    has another maker. Nor has what a dropout returns that is left on: one that is off hands on what it was given, and the next
    call takes that from the call before.
    """
    texts = []
    theirs = {record.index: record for record in pair.target.inputs}
    for record in list_read_inputs(pair.reference):
        other = theirs.get(record.index)
        if other is None or record.shape != other.shape or (record.content and record.content == other.content):
            continue  # the same bits are the same, wherever they come from
        here, there = _find_maker(pair.reference, record, makers[0]), _find_maker(pair.target, other, makers[1])
        if here is None or there is None:
            continue
        (one, first), (two, second) = here, there
        sources = (name_call(one), first), (name_call(two), second)
        if not known.issuperset(sources) or sources[0] == sources[1] or _is_same_gradient(one, two):
            continue
        part = (f" (output {first})", f" (output {second})") if name_call(one) == name_call(two) else ("", "")
        texts.append(
            f"its input {record.index} comes from {one.name}{part[0]} on the reference,"
            f" and from {two.name}{part[1]} on the target"
        )
    return texts


def _is_same_gradient(one: Call, two: Call) -> bool:
    """Tell whether two calls are the backwards of a module and of one inside it, which return the same gradient."""
    modules = sorted((one.module, two.module), key=len)
    return {one.phase, two.phase} == {BACKWARD} and (not modules[0] or modules[1].startswith(f"{modules[0]}."))


def _find_maker(call: Call, record: Record, makers: Mapping[tuple[int, int, int], Call]) -> tuple[Call, str] | None:
    if record.source is None or record.weight:
        return None
    order, index = record.source
    maker = makers.get((call.rank, call.step, order))
    return None if maker is None else (maker, index)
