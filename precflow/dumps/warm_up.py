"""Calls in which everything that a side computed is 0, although it is not later: they warm up, and compute nothing.

Before the first request an engine runs its model once, to compile it or to record a graph. Its kernels do not run then, or are
given zeros, and what a recorder finds is memory that nobody has written. A fault that makes zeros is told from that by two
things: it makes them later too, and not everything around it is 0::

    step     reference    target
    0        values       0 in every output       the target warms up: nothing to compare, and no place where an error starts
    1        values       values                  compared as ever

What both sides have as 0 agrees, and proves nothing.
"""

from __future__ import annotations

import functools
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from precflow.dumps.digest import content_id
from precflow.dumps.dtypes import NUMPY_DTYPES, is_floating
from precflow.dumps.records import Call, Record

Place = tuple[int, int, int]  # rank, step and number of the call
BOTH = "both"
_ENOUGH = 8  # outputs with values that tell of a place that it is no warm-up, unless as many are 0
_FEWEST = 2  # calls without a value that are more than one operator's fault
_Name = tuple[str, str, int, str, str]


@dataclass(frozen=True)
class WarmUp:
    """Calls without a value.

    Attributes:
        side: ``reference``, ``target`` or ``both``.
        place: Rank, step and number of the call of each module.
        outputs: How many outputs are 0.
        later: The place in which the same outputs of that side are not 0; ``None`` for ``both``.
    """

    side: str
    place: Place
    outputs: int
    later: Place | None = None

    @property
    def text(self) -> str:
        """What is 0, in words."""
        what = f"{describe_place(self.place)} warms up on {self.side if self.side == BOTH else f'the {self.side}'}"
        if self.later is None:
            return f"{what} sides: all {self.outputs} outputs are 0, which proves nothing"
        return f"{what}: all {self.outputs} outputs are 0, and not in {describe_place(self.later)}"


def describe_place(place: Place) -> str:
    """Return the place in words.

    >>> describe_place((0, 2, 0)), describe_place((1, 0, 3))
    ('step 2', 'step 0, call 3, rank 1')
    """
    rank, step, call = place
    return f"step {step}" + (f", call {call}" if call else "") + (f", rank {rank}" if rank else "")


def find_warm_ups(reference: Sequence[Call], target: Sequence[Call]) -> list[WarmUp]:
    """Return the calls in which everything that one side computed is 0, or both, in order.

    Args:
        reference: All calls of the reference.
        target: All calls of the target, by the names that they are compared by.
    """
    candidates = _find_candidates(reference) | _find_candidates(target)
    if not candidates:
        return []
    found = []
    for place in sorted(candidates):
        sides = {side: _examine(place, calls) for side, calls in (("reference", reference), ("target", target))}
        if None not in sides.values():
            found.append(WarmUp(BOTH, place, min(each.outputs for each in sides.values() if each)))
        else:
            found += [WarmUp(side, place, *each) for side, each in sides.items() if each and each.later]
    return found


def _find_candidates(calls: Sequence[Call]) -> set[Place]:
    """Return where most outputs are 0. Of a place with values, which almost all are, a few outputs are looked at."""
    zeros, values = Counter[Place](), Counter[Place]()
    for call in calls:
        place = (call.rank, call.step, call.call)
        if values[place] <= max(_ENOUGH, zeros[place]):
            for record in _list_outputs(call):
                (zeros if is_zero(record) else values)[place] += 1
    return {place for place, count in zeros.items() if count >= max(_FEWEST, values[place])}


def _list_outputs(call: Call) -> list[Record]:
    """Return the outputs of a call that are numbers with fractions."""
    if call.movement:
        return []
    return [record for record in call.outputs if is_floating(record.dtype) and 0 not in record.shape]


class _Empty(NamedTuple):
    """A place in which a side computed nothing but 0."""

    outputs: int
    later: Place | None


def _examine(place: Place, calls: Sequence[Call]) -> _Empty | None:
    """Return how many outputs are 0 in a place, if all are but for masks and tables, which are the same in the next place."""
    own, after = _name_outputs(place, calls), dict[_Name, Record]()
    zeros = {name for name, record in own.items() if is_zero(record)}
    if len({name[:-1] for name in zeros}) < _FEWEST:
        return None
    for later in sorted({(call.rank, call.step, call.call) for call in calls if call.rank == place[0]}):
        after = _name_outputs(later, calls) if later > place else {}
        if any(name in after and not is_zero(after[name]) for name in zeros):
            break
    else:
        return _Empty(len(zeros), None) if len(zeros) == len(own) else None
    constant = all(
        record.content and name in after and after[name].content == record.content
        for name, record in own.items()
        if name not in zeros
    )
    return _Empty(len(zeros), later) if constant else None


def _name_outputs(place: Place, calls: Sequence[Call]) -> dict[_Name, Record]:
    """Return the outputs of a place by names that are the same in others."""
    return {
        (call.module, call.operator, call.ordinal, call.phase, record.index): record
        for call in calls
        if (call.rank, call.step, call.call) == place
        for record in _list_outputs(call)
    }


def is_zero(record: Record) -> bool:
    """Tell whether every element of a tensor is known to be 0: by its content id, a checksum, or its statistics."""
    known = record.statistics
    if known is not None and known.minimum is not None:
        return known.minimum == 0 == known.maximum and not known.nonfinite and not known.sentinel and record.share == 1
    return bool(record.content) and is_zero_content(record.content, record.dtype, record.shape)


def is_zero_content(content: str, dtype: str, shape: tuple[int, ...]) -> bool:
    """Tell whether a content id, or what stands for one, is that of zeros.

    >>> [is_zero_content(f"{known} float32[3]", "float32", (3,)) for known in ("range:0.0,0.0", "crc32:7bd5c66f", "crc32:1")]
    [True, True, False]
    """
    if dtype not in NUMPY_DTYPES:
        return False
    kind, _, digits = content.partition(" ")[0].rpartition(":")
    if kind == "range":
        return digits in {"0.0,0.0", "0,0"}
    if kind == "xor":
        return False  # many tensors have the same as zeros
    if kind == "crc32":
        return int(digits, 16) == zlib.crc32(np.zeros(shape, NUMPY_DTYPES[dtype]).data.cast("B"))
    return content == _id_of_zeros(dtype, shape)


@functools.lru_cache(maxsize=256)
def _id_of_zeros(dtype: str, shape: tuple[int, ...]) -> str:
    return content_id(np.zeros(shape, NUMPY_DTYPES[dtype]))
