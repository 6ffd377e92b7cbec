"""Finds where along its axes a tensor has its error, and describes it: one column, the last positions, everywhere alike.

Each axis is examined separately. The shares of the squared error by position show whether the error is at a single position, a
few, a stretch, or every n-th one, which points at padding, or at a tile or lane of the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from precflow.comparison.detail.axes import AxisSums
from precflow.comparison.fused.value_classes import Floats

MOST_OF_IT = 0.9  # share of the squared error that a few positions must carry to be listed
FEW = 8  # positions that are listed one by one, at most
_END = 0.99  # share that a stretch must carry
_EVEN = 8.0  # times the mean share: up to this the largest share counts as even, because noise over 1000 positions reaches 5
_HALF = 0.5  # a larger share of one position counts as uneven, however few positions there are
_FEWEST_TO_BE_EVEN = 2
_PERIODS = {
    64: "64th",
    32: "32nd",
    16: "16th",
    8: "eighth",
    4: "fourth",
    2: "second",
    3: "third",
}  # a device's tiles and lanes, and pairs


@dataclass(frozen=True)
class AxisPattern:
    """How the error is distributed along one axis.

    Attributes:
        axis: Number of the axis.
        kind: ``one``, ``few``, ``first``, ``last``, ``stretch``, ``every`` (every n-th position), ``uneven`` or ``even``.
        positions: Where the error is: all positions for ``one`` and ``few``, the first and last one for ``first``, ``last`` and
            ``stretch``, remainder and n for ``every``, the position with the largest share for ``uneven``; none for ``even``.
        share: Share of the squared error at these positions, 0 to 1; for ``even`` the largest share of one position.
        text: The pattern in words.
    """

    axis: int
    kind: str
    positions: tuple[int, ...]
    share: float
    text: str


def find_patterns(sums: AxisSums) -> tuple[AxisPattern, ...]:
    """Return the pattern along each axis of more than one position; nothing if there is no error."""
    return tuple(
        _find_pattern(axis, sums.shares(axis), sums.steps[axis], size)
        for axis, size in enumerate(sums.sizes)
        if size >= _FEWEST_TO_BE_EVEN and sums.sums[axis].any()
    )


def describe_patterns(found: Sequence[AxisPattern], sizes: tuple[int, ...]) -> str:
    """Return one sentence about where the error of the whole tensor is.

    Args:
        found: Result of :func:`find_patterns`.
        sizes: Number of positions along each axis.
    """
    if math.prod(sizes) <= 1:
        return "there is one element only"
    telling = [place for place in found if place.kind not in {"even", "uneven"}]
    if telling and len(telling) == len(found) and all(place.kind == "one" for place in telling):
        at = {place.axis: place.positions[0] for place in telling}
        index = [at.get(axis, 0) for axis in range(len(sizes))]
        return f"one element {index} carries {format_percent(min(place.share for place in telling))}"
    if telling:
        return "; ".join(place.text for place in sorted(telling, key=lambda place: (place.kind != "one", -place.share)))
    uneven = [place for place in found if place.kind == "uneven"]
    if uneven:
        return "; ".join(place.text for place in uneven)
    return "everywhere alike" if found else "no error"


def write_slices(found: Sequence[AxisPattern], sizes: tuple[int, ...]) -> str:
    """Return the part of a tensor that holds most of the error, as one would index it; ``""`` if that is no part of it.

    Args:
        found: Result of :func:`find_patterns`.
        sizes: Number of positions along each axis.

    >>> write_slices([AxisPattern(0, "one", (3,), 1.0, ""), AxisPattern(2, "last", (16, 31), 1.0, "")], (4, 8, 32))
    '[3, :, 16:32]'
    """
    written = {place.axis: _WRITTEN[place.kind](place.positions) for place in found if place.kind in _WRITTEN}
    if not written:
        return ""
    return f"[{', '.join(written.get(axis, '0' if size == 1 else ':') for axis, size in enumerate(sizes))}]"


def _write_stretch(positions: tuple[int, ...]) -> str:
    first, last = positions
    return str(first) if first == last else f"{first}:{last + 1}"


_WRITTEN: Mapping[str, Callable[[tuple[int, ...]], str]] = {  # kind of a pattern -> its positions as an index of one axis
    "one": lambda positions: str(positions[0]),
    "few": lambda positions: str(list(positions)),
    "first": _write_stretch,
    "last": _write_stretch,
    "stretch": _write_stretch,
    "every": lambda positions: f"{positions[0]}::{positions[1]}",
}


def format_percent(share: float) -> str:
    """Return a share in percent; it is rounded up to 100 % only if what is missing is a rounding error.

    >>> format_percent(1.0), format_percent(0.99999), format_percent(0.934)
    ('100 %', '99.99 %', '93 %')
    """
    if share >= 1 - 1e-12:
        return "100 %"
    digits = 4 if share > 0.999 else 3 if share > 0.99 else 2
    return f"{min(share, 0.9999) * 100:.{digits}g} %"


def _find_pattern(axis: int, shares: Floats, step: int, size: int) -> AxisPattern:
    for find in (_find_few, _find_stretch, _find_every):  # from the most telling pattern to the least
        pattern = find(axis, shares, step, size)
        if pattern is not None:
            return pattern
    largest = int(np.argmax(shares))
    if shares[largest] * shares.size <= _EVEN and shares[largest] <= max(_HALF, 1.5 / shares.size):
        return AxisPattern(axis, "even", (), float(shares[largest]), f"alike along axis {axis}")
    times = shares[largest] * shares.size
    most = f"{format_percent(shares[largest])} at {_name_group(largest, step, size)}, {times:.3g} times its even share"
    text = f"uneven along axis {axis}: {most}"
    return AxisPattern(axis, "uneven", (largest * step,), float(shares[largest]), text)


def _find_few(axis: int, shares: Floats, step: int, size: int) -> AxisPattern | None:
    """Return the smallest set of positions that carry most of the error, if it is small and far from all positions."""
    most = min(FEW, max(1, shares.size // 8)) if shares.size > 2 else 1
    order = np.lexsort((np.arange(shares.size), -shares))[:most]
    carried = np.cumsum(shares[order])
    enough = int(np.searchsorted(carried, MOST_OF_IT))
    if enough >= order.size:
        return None
    few = sorted(int(group) for group in order[: enough + 1])
    share = float(carried[enough])
    if len(few) == 1:
        text = f"one position ({_name_group(few[0], step, size)} of axis {axis}) carries {format_percent(share)}"
        return AxisPattern(axis, "one", (few[0] * step,), share, text)
    if few[-1] - few[0] + 1 == len(few):  # neighbours are described better as a stretch
        return None
    listed = ", ".join(_name_group(group, step, size) for group in few)
    text = f"{len(few)} of {shares.size} positions of axis {axis} ({listed}) carry {format_percent(share)}"
    return AxisPattern(axis, "few", tuple(group * step for group in few), share, text)


def _find_stretch(axis: int, shares: Floats, step: int, size: int) -> AxisPattern | None:
    """Return the stretch that holds 99 % of the error, if it is at most half of the axis."""
    # From the position where 0.5 % of the error has been passed to the one where 0.5 % remains.
    sums = np.cumsum(shares)
    spare = (1 - _END) / 2
    first = int(np.searchsorted(sums, spare, side="right"))
    last = min(int(np.searchsorted(sums, sums[-1] - spare)), shares.size - 1)
    if (last - first + 1) * 2 > shares.size:
        return None
    share = float(shares[first : last + 1].sum())
    begin, end = first * step, min((last + 1) * step, size) - 1
    length = end - begin + 1
    words = f"position{'s' * (length > 1)} of axis {axis}"
    kind = "last" if end == size - 1 else "first" if not begin else "stretch"
    texts = {
        "last": f"the last {length} {words}",
        "first": f"the first {length} {words}",
        "stretch": f"positions {begin} to {end} of axis {axis}",
    }
    return AxisPattern(axis, kind, (begin, end), share, f"{texts[kind]} carry {format_percent(share)}")


def _find_every(axis: int, shares: Floats, step: int, size: int) -> AxisPattern | None:
    """Return period and remainder if every second, third, fourth... position carries most of the error."""
    if step > 1:  # a sum is that of several neighbours, so periods cannot be seen
        return None
    for period, ordinal in _PERIODS.items():
        if size < 4 * period:
            continue
        sums = np.bincount(np.arange(size) % period, shares)
        remainder = int(np.argmax(sums))
        inside = shares[remainder::period]
        # The second condition excludes a single large position, which would give every period the same sum.
        if sums[remainder] >= MOST_OF_IT and inside.max() <= _EVEN * inside.mean():
            text = f"every {ordinal} position of axis {axis}, from {remainder} on, carries {format_percent(sums[remainder])}"
            return AxisPattern(axis, "every", (remainder, period), float(sums[remainder]), text)
    return None


def _name_group(group: int, step: int, size: int) -> str:
    if step == 1:
        return f"index {group}"
    return f"indices {group * step} to {min((group + 1) * step, size) - 1}"
