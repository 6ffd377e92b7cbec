"""Small pictures as paths of SVG: histograms and profiles, in coordinates of a box of a fixed size. Numbers only, no text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 360, 72
_DIGITS = 1
_FILLED = 0.9  # of the room that a bar has


@dataclass(frozen=True)
class Picture:
    """Paths in a box of ``WIDTH`` by ``HEIGHT``, the origin at the top left.

    Attributes:
        paths: One for each series.
        low: What stands below the left edge.
        high: What stands below the right edge.
        summary: The picture in one sentence, for those who cannot see it.
    """

    paths: tuple[str, ...]
    low: str
    high: str
    summary: str


def outline(counts: Sequence[float], largest: float = 0.0, *, logarithmic: bool = True) -> str:
    """Return the outline of a histogram as one closed path.

    Args:
        counts: Heights, 0 or more.
        largest: What fills the whole height; the largest count by default.
        logarithmic: Heights are logarithms of ``1 + count``.

    >>> outline([1, 0], logarithmic=False)
    'M0 72V0H180V72H360V72Z'
    """
    if not counts:
        return ""
    top = _height(largest or max(counts), logarithmic=logarithmic)
    step = WIDTH / len(counts)
    parts = [f"M0 {HEIGHT}"]
    for number, count in enumerate(counts):
        share = _height(count, logarithmic=logarithmic) / top if top else 0.0
        parts.append(f"V{_short(HEIGHT * (1 - share))}H{_short(step * (number + 1))}")
    return "".join([*parts, f"V{HEIGHT}Z"])


def bars(counts: Sequence[float], *, logarithmic: bool = True) -> str:
    """Return single bars with gaps between them as one path; what is not 0 is at least one unit high.

    >>> bars([2, 0, 1], logarithmic=False)
    'M0 72V0H108V72ZM240 72V36H348V72Z'
    """
    heights = [_height(count, logarithmic=logarithmic) for count in counts]
    top = max(heights, default=0.0)
    step = WIDTH / max(len(counts), 1)
    return "".join(_bar(number * step, step * _FILLED, height / top) for number, height in enumerate(heights) if height)


def _bar(left: float, width: float, share: float) -> str:
    top = min(HEIGHT * (1 - share), HEIGHT - 1)
    return f"M{_short(left)} {HEIGHT}V{_short(top)}H{_short(left + width)}V{HEIGHT}Z"


def _height(count: float, *, logarithmic: bool) -> float:
    return math.log1p(count) if logarithmic else float(count)


def _short(number: float) -> str:
    """Return a coordinate without needless digits.

    >>> _short(12.0), _short(12.345)
    ('12', '12.3')
    """
    return f"{number:.{_DIGITS}f}".removesuffix(".0")
