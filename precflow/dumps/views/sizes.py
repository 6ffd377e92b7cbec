"""Sizes among the arguments of calls that are seen in another size than they were made in.

A view of a part of a batch is given the size of the part, ``view(1, -1, 12)``. Seen as a call on the whole batch, it would have
another argument than the other side's, and could not be computed again. Only operators that take sizes are looked at: elsewhere
a 1 or 2 may be an axis.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

_TAKING_SIZES = frozenset(
    "view reshape expand broadcast_to unflatten repeat tile split chunk narrow as_strided arange zeros ones full empty rand "
    "randn new_zeros new_ones new_full new_empty".split()
)
_INTEGER = re.compile(r"(?<![\w.])-?\d+(?![\w.])")


def take_sizes(
    operator: str,
    parts: Sequence[Mapping[str, str]],
    other: Mapping[str, str],
    stand_for: Callable[[Sequence[int], int], bool],
) -> Mapping[str, str]:
    """Return the arguments of joined calls, with the other side's sizes.

    Args:
        operator: Its operator; ``""`` for a module.
        parts: The arguments of each call that it is made of.
        other: The arguments of the other side's call.
        stand_for: Takes a number of each part and that of the other side, and tells whether the first are sizes of the second.

    >>> def whole(sizes, size): return sum(sizes) == size
    >>> take_sizes("view", [{"1": "(2, -1, 8)"}, {"1": "(1, -1, 8)"}], {"1": "(3, -1, 8)"}, whole)
    {'1': '(3, -1, 8)'}
    >>> take_sizes("softmax", [{"dim": "1"}, {"dim": "1"}], {"dim": "2"}, whole)
    {'dim': '1'}
    """
    taken = dict(parts[0])
    if operator.removeprefix("aten.") not in _TAKING_SIZES:
        return taken
    for name, text in other.items():
        texts = [arguments.get(name, "") for arguments in parts]
        if {re.sub(_INTEGER, "#", each) for each in texts} != {re.sub(_INTEGER, "#", text)}:
            continue
        columns = zip(*(map(int, re.findall(_INTEGER, each)) for each in (text, *texts)), strict=True)
        if all({size} == {*sizes} or stand_for(sizes, size) for size, *sizes in columns):
            taken[name] = text
    return taken
