"""A dump of several ranks seen as that of one process, so that a data-parallel run can be compared with a single process.

Each rank of such a run computes on its part of the batch, and gradients are averaged. So the records of one name on all ranks
make one record of the single process. How, the shapes say:

* Sizes that add up along one axis to those of the single process are parts of the batch: they are joined along it, by rank.
  What the models were given shows how the batch was cut: into blocks, or dealt out sample by sample (``DistributedSampler``).
* Equal sizes are the same tensor (a mask, positions) if the ranks have the same bits. Otherwise it is a mean over the batch,
  such as a loss or the gradient of a weight, and becomes the mean over the ranks.
* In backward, the loss of a rank is a mean over its part of the batch, so that a gradient of an activation is as many times too
  large as there are ranks: joined gradients are divided by their number.
* Numbers of samples, 0 to n - 1 on every rank, are counted on over the ranks.

What the ranks were given is joined too, and is the batch of the single process if it has the same bits.

What the optimizer is given and makes is the same on every rank, and is taken from the first. If a rank has other weights after
the step, its records stay as they are, without a partner; so does what a rank computes in the forward in the size of the single
process and in other bits than the first. Collectives have no partner either and are left out.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from precflow import keys
from precflow.agent.contract import BACKWARD, FORWARD, GRADIENT, OPTIMIZER, Identity, identity_text, parse_identity
from precflow.dumps.batches import LARGEST_ROUNDING
from precflow.dumps.collectives import is_collective
from precflow.dumps.digest import content_id
from precflow.dumps.dtypes import is_floating
from precflow.dumps.header import ContentEntries, ContentEntry
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record
from precflow.dumps.views.derived import DerivedDump, Excerpt, MadeTensor, read_whole
from precflow.dumps.views.sizes import take_sizes

Array = npt.NDArray[Any]

_SIZES = tuple[int, ...]
_OF_RANK = re.compile(r"rank\d+\.")  # before the names of what a further rank was given
_OF_STEP = re.compile(r"step(?P<step>\d+)\.")
_Name = tuple[object, ...]


def count_ranks(dump: Dump) -> int:
    """Return how many ranks wrote a sealed dump; 1 for one that was never sealed."""
    return 1 + len(dump.header.sites_of_ranks)


def join_ranks(reference: Dump, target: Dump) -> tuple[Dump, Dump]:
    """Return both dumps, that of several ranks as one process if the other is one; otherwise both as they are."""
    ranks = (count_ranks(reference), count_ranks(target))
    if ranks[0] == 1 < ranks[1]:
        return _leave_out_collectives(reference), JoinedRanks(target, reference)
    if ranks[1] == 1 < ranks[0]:
        return JoinedRanks(reference, target), _leave_out_collectives(target)
    return reference, target


def _leave_out_collectives(single: Dump) -> Dump:
    """Return the dump of a single process without the collectives of a group of one, which leave everything as it is."""
    calls = single.calls()
    kept = [call for call in calls if not is_collective(call)]
    return Excerpt(single, kept) if len(kept) < len(calls) else single


@dataclass(frozen=True)
class _Joined:
    """How a tensor is made of those of the ranks.

    Attributes:
        axis: Axis that they are joined along; ``None`` for the mean over the ranks.
        divisor: What the result is divided by.
        dealt: How many samples each rank was dealt, one after the other in turn; empty if the parts are blocks.
    """

    axis: int | None
    divisor: int = 1
    dealt: _SIZES = ()

    def apply(self, arrays: Sequence[Array]) -> Array:
        """Return the tensor, in the element type of the parts."""
        if self.axis is None:
            mean = np.mean([array.astype(np.float64) for array in arrays], axis=0)
            return np.asarray(mean).astype(arrays[0].dtype)
        joined = _concatenate(arrays, self.axis, self.dealt)
        if joined.ndim == 1 and joined.dtype.kind in "iu" and all((array == np.arange(array.size)).all() for array in arrays):
            return np.arange(joined.size, dtype=joined.dtype)  # numbers of samples: each rank counts its own from 0
        return joined if self.divisor == 1 else (joined.astype(np.float64) / self.divisor).astype(joined.dtype)


class JoinedRanks(DerivedDump):
    """A dump of several ranks with one call for those of all ranks.

    Args:
        whole: The dump.
        single: The dump of the single process, whose sizes say how tensors are joined.

    Attributes:
        shares: Step -> how many samples each rank was given, as far as the inputs of its models tell.
    """

    def __init__(self, whole: Dump, single: Dump) -> None:
        repeat = replace(
            whole.header.repeat, different=tuple({_of_first(text): None for text in whole.header.repeat.different})
        )
        batch = _join_batch(whole, single)
        self._dealt = batch.dealt
        self.shares = batch.shares
        header = replace(whole.header, sites_of_ranks={}, repeat=repeat, inputs=batch.inputs)
        super().__init__(whole, header)
        self._single = single
        self._ranks = count_ranks(whole)

    def list_samples(self, step: int, rank: int) -> Array:
        """Return the numbers of the samples of the whole batch that a rank was given in a step."""
        sizes = self.shares[step]
        if self._dealt:
            return np.arange(rank, sum(sizes), len(sizes))
        return np.arange(sum(sizes[:rank]), sum(sizes[: rank + 1]))

    def _derive_calls(self) -> list[Call]:
        """Return the calls of rank 0, with the tensors of all ranks, and those of other ranks that have no place in them."""
        sizes = {record.identity: record.shape for call in self._single.calls() for record in (*call.inputs, *call.outputs)}
        arguments = {_name(call): call.arguments for call in self._single.calls()}
        of_ranks: dict[_Name, list[Call]] = defaultdict(list)
        for call in self.whole.calls():
            if is_collective(call):
                continue
            of_ranks[_name(call)].append(call)
        calls: list[Call] = []
        for name, together in of_ranks.items():
            together.sort(key=lambda call: call.rank)
            if len(together) < self._ranks:
                calls += together
            elif together[0].phase == OPTIMIZER:
                first = [record.known for record in together[0].outputs]
                calls += [call for call in together if not call.rank or [record.known for record in call.outputs] != first]
            else:
                joined = self._join(together, sizes)
                given = [call.arguments for call in together]
                sizes_of_single = take_sizes(joined.operator, given, arguments.get(name, {}), _are_parts)
                calls.append(msgspec.structs.replace(joined, arguments=sizes_of_single))
                calls += [alone for call in together[1:] if (alone := self._leave_alone(call, calls[-1], sizes))]
        return sorted(calls, key=lambda call: (call.rank, call.step, call.order))

    def _join(self, together: Sequence[Call], sizes: Mapping[Identity, _SIZES]) -> Call:
        first = together[0]
        inputs, outputs = (
            tuple(
                self._join_records([getattr(call, role)[place] for call in together], first.phase, sizes)
                for place in range(len(getattr(first, role)))
            )
            for role in ("inputs", "outputs")
        )
        return msgspec.structs.replace(first, inputs=inputs, outputs=outputs)

    def _leave_alone(self, call: Call, joined: Call, sizes: Mapping[Identity, _SIZES]) -> Call | None:
        """Return a further rank's call with the outputs that the joined call lacks; ``None`` if it lacks none.

        Of a tensor that is taken from the first rank, the others have to have the same bits. One that has another size than
        that of the single process fails anyway.
        """
        outputs = tuple(
            record
            for record, taken in zip(call.outputs, joined.outputs, strict=True)
            if taken.mark not in self._made and sizes.get(taken.identity) == taken.shape and record.known != taken.known
        )
        return msgspec.structs.replace(call, outputs=outputs) if outputs else None

    def _join_records(self, records: Sequence[Record], phase: str, sizes: Mapping[Identity, _SIZES]) -> Record:
        first = records[0]
        whole = sizes.get(first.identity)
        if first.weight or whole is None:
            return first
        shapes = [record.shape for record in records]
        divisor = len(records) if phase == BACKWARD else 1
        if shapes == [whole] * len(records):
            same = bool(first.known) and len({record.known for record in records}) == 1
            averaged = phase in {BACKWARD, GRADIENT} or not whole
            if same or not averaged or not is_floating(first.dtype):
                return first
            joined, shape = _Joined(None), whole
        else:
            axis = _find_axis(shapes, whole)
            if axis is None or (divisor > 1 and not is_floating(first.dtype)):
                return first
            dealt = _find_dealt(shapes, axis, self.shares.get(first.identity.step, ())) if self._dealt else ()
            joined, shape = _Joined(axis, divisor, dealt), whole
        how = f"{joined.axis} {joined.divisor} {joined.dealt}"
        return self._make(first, MadeTensor(tuple(records), joined.apply), shape, how)


def _name(call: Call) -> _Name:
    """Return what the calls of all ranks have in common that make one of the single process."""
    # Each parameter has a call of its own in gradient and optimizer, all of them with the name of their module.
    indices = (tuple(record.index for record in call.inputs), tuple(record.index for record in call.outputs))
    return call.step, call.level, call.module, call.call, call.operator, call.ordinal, call.phase, indices


def _are_parts(sizes: Sequence[int], size: int) -> bool:
    return sum(sizes) == size


def _of_first(text: str) -> str:
    """Return an identity's text as that of rank 0."""
    return identity_text(parse_identity(text)._replace(rank=0))


def _find_axis(shapes: Sequence[_SIZES], whole: _SIZES) -> int | None:
    """Return the only axis along which the parts add up to the whole.

    >>> _find_axis([(4, 8), (4, 8)], (8, 8)), _find_axis([(4, 8), (4, 8)], (9, 8))
    (0, None)
    """
    if any(len(shape) != len(whole) for shape in shapes):
        return None
    differing = [axis for axis, size in enumerate(whole) if any(shape[axis] != size for shape in shapes)]
    if len(differing) != 1 or sum(shape[differing[0]] for shape in shapes) != whole[differing[0]]:
        return None
    return differing[0]


def _concatenate(arrays: Sequence[Array], axis: int, dealt: _SIZES) -> Array:
    """Join parts along an axis: as blocks, or in turn by samples, of which each may take several places of the axis."""
    if not dealt:
        return np.concatenate(arrays, axis=axis)
    first = [np.moveaxis(array, axis, 0) for array in arrays]
    samples = [array.reshape(count, -1, *array.shape[1:]) for array, count in zip(first, dealt, strict=True)]
    joined = np.empty((sum(dealt), *samples[0].shape[1:]), dtype=arrays[0].dtype)
    for rank, part in enumerate(samples):
        joined[rank :: len(samples)] = part
    return np.ascontiguousarray(np.moveaxis(joined.reshape(-1, *joined.shape[2:]), 0, axis))


def _find_dealt(shapes: Sequence[_SIZES], axis: int, counts: _SIZES) -> _SIZES:
    """Return how many samples are dealt into each part, if the parts have the same number of places for each; else nothing.

    >>> _find_dealt([(8, 5), (6, 5)], 0, (4, 3)), _find_dealt([(8, 5), (7, 5)], 0, (4, 3))
    ((4, 3), ())
    """
    sizes = [shape[axis] for shape in shapes]
    if len(counts) != len(sizes) or not all(counts) or any(size % count for size, count in zip(sizes, counts, strict=True)):
        return ()
    is_even = len({size // count for size, count in zip(sizes, counts, strict=True)}) == 1
    in_turn = all(count == len(range(rank, sum(counts), len(counts))) for rank, count in enumerate(counts))
    return counts if is_even and in_turn else ()


# What the ranks were given


@dataclass(frozen=True)
class _Batch:
    """The inputs of all ranks as those of one process; see :class:`JoinedRanks`."""

    inputs: ContentEntries
    shares: Mapping[int, _SIZES]
    dealt: bool


def _join_batch(whole: Dump, single: Dump) -> _Batch:
    """Join what the models of the ranks were given; inputs that are the same on all ranks, or belong to no step, stay.

    An input whose tensors were not kept cannot be joined: then nobody knows whether it is the other side's (no digest).
    """
    own, expected = whole.header.inputs, single.header.inputs
    ranks = count_ranks(whole)
    shared = [
        (name, [own.entries.get(each) for each in (name, *(f"rank{rank}.{name}" for rank in range(1, ranks)))])
        for name in own.entries
        if not _OF_RANK.match(name)
    ]
    if own.digest == expected.digest or not any(all(parts) for _, parts in shared):
        return _Batch(own, {}, dealt=False)
    entries, parts_of_step = dict(own.entries), dict[int, _SIZES]()
    tensors = [_index_inputs(dump) for dump in (whole, single)]
    dealt, is_known = False, True
    for name, found in shared:
        parts = [part for part in found if part is not None]
        other, step = expected.entries.get(name), _OF_STEP.match(name)
        axis = _find_axis([part.shape for part in parts], other.shape) if other is not None else None
        if other is None or len(parts) < ranks or (axis is None and any(part != other for part in parts)):
            continue
        for rank in range(1, ranks):
            del entries[f"rank{rank}.{name}"]
        if axis is None:  # the same on every rank
            continue
        sizes = tuple(part.shape[axis] for part in parts)
        if step is not None and axis == 0:
            parts_of_step.setdefault(int(step["step"]), sizes)
        arrays = [read_whole(whole, tensors[0].get((rank, part.content))) for rank, part in enumerate(parts)]
        known = [array for array in arrays if array is not None]
        if len(known) < ranks:
            is_known = False
            continue
        wanted = read_whole(single, tensors[1].get((0, other.content)))
        order = _find_order(known, axis, sizes, other, wanted)
        dealt = dealt or order == "dealt"
        entries[name] = other if order else replace(other, content=content_id(_concatenate(known, axis, ())))
    digest = expected.digest if entries == expected.entries else keys.digest(sorted(map(str, entries.items())))
    return _Batch(ContentEntries(digest if is_known else "", entries), parts_of_step, dealt=dealt)


def _index_inputs(dump: Dump) -> Mapping[tuple[int, str], Record]:
    """Return the inputs of modules by rank and content; of equal ones one whose tensor was kept, if there is any."""
    records = [
        ((call.rank, record.content), record)
        for call in dump.calls()
        if call.phase == FORWARD and not call.operator
        for record in call.inputs
        if record.content
    ]
    return dict(sorted(records, key=lambda pair: pair[1].stored))


def _find_order(parts: Sequence[Array], axis: int, sizes: _SIZES, whole: ContentEntry, wanted: Array | None) -> str:
    """Return ``blocks`` or ``dealt``, by which the parts are the whole up to rounding; ``""`` if by neither.

    Args:
        parts: What each rank was given.
        axis: Axis that the parts share.
        sizes: Their sizes along it.
        whole: What the single process was given.
        wanted: Its tensor, if that was kept.
    """
    ways = {"blocks": (), "dealt": _find_dealt([array.shape for array in parts], axis, sizes)}
    joined = {way: _concatenate(parts, axis, dealt) for way, dealt in ways.items() if dealt or way == "blocks"}
    for way, array in joined.items():
        if content_id(array) == whole.content:
            return way
    if wanted is None or not is_floating(whole.dtype):
        return ""
    near = {way: _measure_distance(array, wanted) for way, array in joined.items()}
    best = min(near, key=near.__getitem__)
    return best if near[best] <= LARGEST_ROUNDING else ""


def _measure_distance(array: Array, wanted: Array) -> float:
    """Return the relative L2 distance of two arrays of one shape; infinity if a number is not finite."""
    here, there = array.astype(np.float64), wanted.astype(np.float64)
    distance = float(np.linalg.norm(here - there))
    size = float(np.linalg.norm(there))
    return distance / size if size and np.isfinite(distance) else math.inf
