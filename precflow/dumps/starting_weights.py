"""The weights that both sides start from: the same, the same in another type, tied on one side only, or others?

Weights are compared by their bits. A model that one side has cast has other bits in every weight and is the same model if the
values are equal after rounding. Headers hold the content ids of weights after rounding, too. A weight that two modules share
has one name, that of the first module, so that a side which does not share it has one more::

    reference   embed.weight                 head reads embed.weight
    target      embed.weight, head.weight    head reads its own
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from precflow import keys
from precflow.agent.contract import OUTSIDE
from precflow.dumps.digest import content_id
from precflow.dumps.dtypes import FLOATS, NUMPY_DTYPES
from precflow.dumps.header import ContentEntries, ContentEntry
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Record
from precflow.errors import DumpError

_MOST = 0.5  # share of the weights from which on another type is that of the model, not of single weights
_MOST_TRIED = 16  # records that may hold a weight
_MOST_BESIDE = 256  # records of a module that are looked at for one


@dataclass(frozen=True)
class TiedWeight:
    """A weight that is tied on one side only.

    Attributes:
        name: Its name on the side where it is a weight of its own.
        shared: The weight that the other side has in its place.
        side: The side on which it is tied.
        is_equal: Both have the same bits.
    """

    name: str
    shared: str
    side: str
    is_equal: bool


@dataclass(frozen=True)
class StartingWeights:
    """How the weights of both sides differ at the start, besides in values.

    Attributes:
        entries: Those of the target by name; a weight that is the same has the reference's entry.
        retyped: Name -> types on reference and target, of weights that are equal after rounding.
        single: Those of ``retyped`` that are single ones in a model whose other weights have one type.
        tied: Weights that are tied on one side only.
    """

    entries: Mapping[str, ContentEntry]
    retyped: Mapping[str, tuple[str, str]]
    single: tuple[str, ...] = ()
    tied: tuple[TiedWeight, ...] = ()


NO_WEIGHTS = StartingWeights({}, {})


def compare_weights(reference: Dump, target: Dump) -> StartingWeights:
    """Return how the weights of two dumps differ that do not have the same digest."""
    here, there = reference.header.weights.entries, target.header.weights.entries
    records = [_find_weights(dump) for dump in (reference, target)]
    retyped = {
        name: (entry.dtype, there[name].dtype)
        for name, entry in here.items()
        if name in there and _are_retyped(entry, there[name])
        if _is_rounded(reference, records[0][name], entry, there[name])
        or _is_rounded(target, records[1][name], there[name], entry)
    }
    tied = (*_find_tied(reference, target, "reference"), *_find_tied(target, reference, "target"))
    entries = {name: here[name] if name in retyped else entry for name, entry in there.items()}
    for one in tied:  # of equal bits, it makes no difference where the sides start
        if one.is_equal and one.side == "reference":
            entries.pop(one.name, None)
        elif one.is_equal:
            entries[one.name] = here[one.name]
    kinds = list(retyped.values())
    single = tuple(name for name, types in retyped.items() if kinds.count(types) < _MOST * len(here))
    return StartingWeights(entries, retyped, single, tied)


def align_weights(reference: Dump, target: Dump, found: StartingWeights) -> ContentEntries:
    """Return the weights of the target's header, with the reference's entries for those that are the same."""
    here, there = reference.header.weights, target.header.weights
    if found.entries == there.entries:
        return there
    digest = here.digest if found.entries == here.entries else keys.digest(sorted(map(str, found.entries.items())))
    return ContentEntries(digest, found.entries)


def _find_weights(dump: Dump) -> dict[str, list[Record]]:
    """Return the records that may hold the bits that a weight started with, by name: its own first.

    A weight that a call only reshapes is not stored there, and the next call that reads it has it in another shape.
    """
    entries = dump.header.weights.entries
    own, beside = defaultdict[str, list[Record]](list), defaultdict[str, list[Record]](list)
    for call in dump.calls():
        for record in call.inputs:
            if record.weight in entries and record.content in {"", entries[record.weight].content}:
                own[record.weight].append(record)
            elif record.stored and not record.weight and len(beside[call.module]) < _MOST_BESIDE:
                beside[call.module].append(record)
    found: dict[str, list[Record]] = {}
    for name, entry in entries.items():
        others = [one for one in beside[name.rpartition(".")[0]] if _fits(one, entry)]
        found[name] = [*own[name][:1], *others][:_MOST_TRIED]
    return found


def _fits(record: Record, entry: ContentEntry) -> bool:
    return record.dtype == entry.dtype and math.prod(record.shape) == math.prod(entry.shape)


def _are_retyped(one: ContentEntry, other: ContentEntry) -> bool:
    return one.dtype != other.dtype and one.shape == other.shape and {one.dtype, other.dtype} <= {*FLOATS}


def _is_rounded(dump: Dump, records: Sequence[Record], own: ContentEntry, other: ContentEntry) -> bool:
    """Tell whether a weight, rounded to the other side's type, has the bits that the other side has.

    The header tells where its agent has noted it. Dumps of other agents tell only if they hold the weight itself.
    """
    if other.dtype in own.rounded:
        return own.rounded[other.dtype] == other.content
    for record in records:
        if not record.stored or record.part or not _fits(record, own):
            continue
        try:
            values = dump.tensor(record).reshape(own.shape)
        except DumpError:
            continue
        with np.errstate(all="ignore"):
            if content_id(values) == own.content:
                return content_id(values.astype(NUMPY_DTYPES[other.dtype])) == other.content
    return False


def _find_tied(tied: Dump, other: Dump, side: str) -> list[TiedWeight]:
    """Return the weights that only ``other`` has, in whose place the same module of ``tied`` reads another module's weight.

    Where operators were not recorded, nothing shows what is read. Then a matrix is tied to the one weight that has its bits.
    """
    here, there = tied.header.weights.entries, other.header.weights.entries
    alone = [name for name in there if name not in here]
    if not alone:
        return []
    read: dict[str, list[str]] = {}  # module -> weights that its calls read which are not its own
    for call in tied.calls():
        if call.module == OUTSIDE:
            continue
        names = read.setdefault(call.module, [])
        own = f"{call.module}." if call.module else ""
        names += [record.weight for record in call.inputs if record.weight and not (own and record.weight.startswith(own))]
    found = []
    for name in alone:
        module = name.rpartition(".")[0]
        if not module or module not in read:
            continue
        alike = [weight for weight in here if here[weight].shape == there[name].shape]
        shared = next((weight for weight in read[module] if weight in alike), "")
        if not shared and len(there[name].shape) > 1:  # vectors of zeros and ones are alike anyway
            same = [weight for weight in alike if here[weight].content == there[name].content]
            shared = same[0] if len(same) == 1 else ""
        if shared:
            found.append(TiedWeight(name, shared, side, here[shared].content == there[name].content))
    return found
