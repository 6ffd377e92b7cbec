"""A model that decodes without a cache seen as one that decodes with it, as the other side does.

With a cache, a call is given the last token and computes that token alone; without one it is given all tokens so far, and
computes all of them again::

    reference   call 1: ids [2, 1]     hidden [2, 1, 48]
    target      call 1: ids [2, 8]     hidden [2, 8, 48]     ->    the last of 8: ids [2, 1], hidden [2, 1, 48]

What a causal model computes for a token does not depend on those behind it. So of each tensor of such a call that has all
tokens where the other side has one, the last is compared; keys and values of all tokens have the same sizes on both sides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from precflow import keys
from precflow.agent.contract import FORWARD, OUTSIDE, Identity
from precflow.dumps.digest import content_id
from precflow.dumps.dtypes import is_floating
from precflow.dumps.header import ContentEntries, ContentEntry
from precflow.dumps.origins import InputName
from precflow.dumps.protocol import Array, Dump
from precflow.dumps.records import Call, Record
from precflow.dumps.views.aligned_model_calls import find_entered, group_by_call, write_name
from precflow.dumps.views.derived import DerivedDump, MadeTensor, find_tensors, read_whole
from precflow.dumps.views.sizes import take_sizes

_Given = Mapping[str, ContentEntry]
_Place = tuple[int, int]  # rank and step
_Shape = tuple[int, ...]
_CallOfModule = tuple[int, int, str, int]  # rank, step, module and number
_SMALL = 1 << 16  # elements of a tensor whose last token is read at once, so that its bits are known
_CACHE = re.compile(r"past_key|past_value|layer_past|cache")
_CACHES = frozenset({"past_key_values", "past_key_value", "layer_past", "use_cache"})  # arguments


def see_last_tokens(reference: Dump, target: Dump) -> tuple[Dump, Dump]:
    """Return both dumps, that of a side which alone decodes without a cache by last tokens; otherwise both as they are."""
    if reference.header.inputs.digest == target.header.inputs.digest:
        return reference, target
    here, there = (group_by_call(dump.header.inputs.entries) for dump in (reference, target))
    for dump, calls, cached, single in ((target, there, reference, here), (reference, here, target, there)):
        without = _find_without_cache(dump, calls, cached, single)
        if without:
            seen = _LastTokens(dump, cached, without)
            other = _WithoutCache(cached, seen.header.inputs)
            return (other, seen) if dump is target else (seen, other)
    return reference, target


def _find_without_cache(
    dump: Dump, calls: Mapping[_Place, Sequence[_Given]], cached: Dump, single: Mapping[_Place, Sequence[_Given]]
) -> dict[_Place, dict[int, int]]:
    """Return the calls of a side that are given all tokens where the other side is given one: step -> call -> how many tokens.

    Nothing is returned if records do not tell which modules ran in which call.
    """
    found: dict[_Place, dict[int, int]] = {}
    for place in calls.keys() & single.keys():
        if len(calls[place]) != len(single[place]):
            return {}
        tokens = {number: _count_tokens(*both) for number, both in enumerate(zip(calls[place], single[place], strict=True))}
        more = {number: count for number, count in tokens.items() if count > 1}
        counts = list(more.values())
        sides = [each.calls(rank=place[0], step=place[1]) for each in (dump, cached)]
        if any(call.phase != FORWARD for side in sides for call in side) or min(tokens.values()) < 0:
            return {}
        if find_entered(sides[0], calls[place]) is None:
            return {}
        if counts and counts == list(range(counts[0], counts[0] + len(counts))):  # one more in each call
            found[place] = more
    return found


def _count_tokens(given: _Given, single: _Given) -> int:
    """Return how many tokens a call is given where the other side's is given one; 1 if as many, -1 if they do not fit."""
    for path, entry in given.items():
        other = single.get(path)
        if other is None or is_floating(entry.dtype) or len(entry.shape) != 2 or entry.shape == other.shape:
            continue
        return entry.shape[1] if other.shape == (entry.shape[0], 1) else -1
    return 1


class _WithoutCache(DerivedDump):
    """A dump whose header does not list the cache: the other side has none.

    Args:
        whole: The dump.
        inputs: What the other side is given; if nothing else differs, both have its digest.
    """

    def __init__(self, whole: Dump, inputs: ContentEntries) -> None:
        entries = {name: entry for name, entry in whole.header.inputs.entries.items() if not _CACHE.search(name)}
        digest = inputs.digest if entries == inputs.entries else whole.header.inputs.digest
        super().__init__(whole, replace(whole.header, inputs=ContentEntries(digest, entries)))

    def _derive_calls(self) -> list[Call]:
        return self.whole.calls()


class _LastTokens(DerivedDump):
    """A dump in which calls of its models, and of all modules inside, have the last token where the other side has one.

    Args:
        whole: The dump.
        cached: That of the other side, whose sizes say where the tokens are.
        without: Step -> calls of its models that are given all tokens, and how many.
    """

    def __init__(self, whole: Dump, cached: Dump, without: Mapping[_Place, Mapping[int, int]]) -> None:
        self._cached = cached
        self._tokens: dict[_CallOfModule, int] = {}
        entries = dict(whole.header.inputs.entries)
        given = group_by_call(entries)
        partners = group_by_call(cached.header.inputs.entries)
        tensors = find_tensors(whole)
        for place, more in without.items():
            entered = find_entered(whole.calls(rank=place[0], step=place[1]), given[place]) or []
            for number, count in more.items():
                inside = entered[number] if entered else {}
                self._tokens |= {(*place, module, own): count for module, numbers in inside.items() for own in numbers}
                for path, entry in given[place][number].items():
                    other = partners[place][number].get(path)
                    name = write_name(InputName(*place, number, path))
                    axis = None if other is None else _find_axis(entry.shape, other.shape, count)
                    last = None if axis is None else _take_last(whole, tensors.get(entry.content), axis)
                    if other is not None and last is not None:  # else nobody knows whether they are the same
                        is_same = content_id(last) == other.content
                        entries[name] = other if is_same else replace(entry, content=content_id(last), shape=other.shape)
        digest = keys.digest(sorted(map(str, entries.items()))) if whole.header.inputs.digest else ""
        super().__init__(whole, replace(whole.header, inputs=ContentEntries(digest, entries)))
        self.decodes_again = True

    def _derive_calls(self) -> list[Call]:
        """Return the calls; of those of all tokens the last ones."""
        partners = {record.identity: record for call in self._cached.calls() for record in (*call.inputs, *call.outputs)}
        arguments = {_name(call): call.arguments for call in self._cached.calls()}
        calls = []
        for call in self.whole.calls():
            count = self._tokens.get((call.rank, call.step, call.module, call.call), 0) if call.module != OUTSIDE else 0
            theirs = arguments.get(_name(call), {})
            caches = {name: text for name, text in theirs.items() if name in _CACHES}
            if not count:
                calls.append(msgspec.structs.replace(call, arguments={**call.arguments, **caches}) if caches else call)
                continue
            # One query sees all keys, so that no mask is needed for it.
            causal = {name: text for name, text in theirs.items() if name == "is_causal"}
            given = {**call.arguments, **caches, **causal}

            def stand_for(sizes: Sequence[int], size: int, count: int = count) -> bool:
                """Tell whether one side has the size of all tokens and the other that of one."""
                return (*sizes, size) == (count, 1)

            inputs, outputs = (
                tuple(self._cut(record, partners, count) for record in records) for records in (call.inputs, call.outputs)
            )
            sizes = take_sizes(call.operator, [given], theirs, stand_for)
            calls.append(msgspec.structs.replace(call, inputs=inputs, outputs=outputs, arguments=sizes))
        return calls

    def _cut(self, record: Record, partners: Mapping[Identity, Record], count: int) -> Record:
        partner = partners.get(record.identity)
        axis = None if record.weight or partner is None else _find_axis(record.shape, partner.shape, count)
        if axis is None or partner is None:
            return record

        def take(arrays: Sequence[Array]) -> Array:
            """Return the last token; the first number of tokens that both sides number from 0."""
            place = 0 if _counts_tokens(arrays[0]) and _counts_tokens(read_whole(self._cached, partner)) else -1
            return np.ascontiguousarray(np.take(arrays[0], [place], axis=axis))

        made = self._make(record, MadeTensor((record,), take), partner.shape, f"last {axis}")
        if math.prod(record.shape) > _SMALL:
            return made
        tensor = read_whole(self.whole, record)
        return made if tensor is None else msgspec.structs.replace(made, content=content_id(take([tensor])))


def _take_last(dump: Dump, record: Record | None, axis: int) -> Array | None:
    tensor = read_whole(dump, record)
    return None if tensor is None else np.ascontiguousarray(np.take(tensor, [-1], axis=axis))


def _counts_tokens(tensor: Array | None) -> bool:
    """Tell whether a tensor has the numbers of the tokens of a call, from 0."""
    return tensor is not None and tensor.ndim == 1 and tensor.dtype.kind in "iu" and (tensor == np.arange(tensor.size)).all()


def _find_axis(shape: _Shape, single: _Shape, count: int) -> int | None:
    """Return the only axis along which one side has all tokens and the other one; ``None`` without one.

    >>> _find_axis((2, 8, 48), (2, 1, 48), 8), _find_axis((2, 4, 8, 8), (2, 4, 1, 8), 8), _find_axis((2, 8), (2, 8), 8)
    (1, 2, None)
    """
    if len(shape) != len(single):
        return None
    differing = [axis for axis, sizes in enumerate(zip(shape, single, strict=True)) if sizes[0] != sizes[1]]
    return differing[0] if len(differing) == 1 and (shape[differing[0]], single[differing[0]]) == (count, 1) else None


def _name(call: Call) -> tuple[object, ...]:
    return call.rank, call.step, call.level, call.module, call.call, call.operator, call.ordinal, call.phase
