"""A picture of the margin: how near correct chips come to what is called a fault, and how far beyond it faults are."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

from . import cases, score

_WIDTH, _ROW, _LEFT, _LOW, _HIGH = 720, 44, 150, -2, 6  # the axis is a power of ten, from 0.01 to 1e6
_FONT = 'font-family="sans-serif" font-size="13"'
_FACTORS = (0.25, 0.5, 0.67, 1.0, 1.5, 2.0, 4.0)
_COLOURS = {"correct chips": "#4a9a5b", "faults": "#3b7dd8", "faults that were not found": "#d8703b"}


def draw(lines: Sequence[dict[str, Any]]) -> str:
    """Return an SVG with a point for each run, by element type: left of 1 nothing fails, right of it something does.

    The place is the larger of two numbers: the largest share of its limit that a record uses, and the largest share of its line
    that an operator's own error uses.
    """
    rows = _rows(lines)
    height = 60 + _ROW * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" {_FONT}>',
        "<title>Largest share of a limit or a line, by run</title>",
    ]
    for exponent in range(_LOW, _HIGH + 1):
        x, opacity = _place(10.0**exponent), 0.9 if exponent == 0 else 0.25
        parts.append(f'<line x1="{x:.1f}" y1="20" x2="{x:.1f}" y2="{height - 30}" stroke="#777" stroke-opacity="{opacity}"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 12}" text-anchor="middle" fill="#777">{10.0**exponent:g}</text>')
    for number, (name, what, shares) in enumerate(rows):
        y = 40 + _ROW * number
        parts.append(f'<text x="4" y="{y + 4}" fill="{_COLOURS[what]}">{escape(name)}</text>')
        parts += [
            f'<circle cx="{_place(share):.1f}" cy="{y + 6 * (turn % 3 - 1)}" r="3" fill="{_COLOURS[what]}" fill-opacity="0.6"/>'
            for turn, share in enumerate(shares)
        ]
    return "\n".join([*parts, "</svg>\n"])


def move_lines(lines: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table of the runs beyond all limits and lines, had these been moved by a factor: points of a ROC curve.

    Only the numbers of the picture count here, no rule that makes a verdict of them.
    """
    head = "| type | runs | " + " | ".join(f"x {factor:g}" for factor in _FACTORS) + " |"
    rows = [head, "|---|---|" + "--:|" * len(_FACTORS)]
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for name, what, shares in _rows(lines):
        groups[name.partition(",")[0], "correct" if what == "correct chips" else "faults"] += shares
    for (dtype, what), shares in groups.items():
        beyond = (f"{sum(share > factor for share in shares)}/{len(shares)}" for factor in _FACTORS)
        rows.append(f"| {dtype} | {what} | " + " | ".join(beyond) + " |")
    return "\n".join(rows)


def _rows(lines: Sequence[dict[str, Any]]) -> list[tuple[str, str, list[float]]]:
    """Return rows of a name, what its points are, and their shares.

    Faults count where they act, by the bench's own measure; those in weights and inputs do not, which are compared bit by bit.
    """
    good = [line for line in lines if "crash" not in line]
    rows = []
    for dtype in cases.DTYPES:
        of_type = [line for line in good if line["dtype"] == dtype]
        clean = [line for line in of_type if line["group"] == "control"]
        acting = [line for line in of_type if line["group"] != "control" and score.band(line) != "none"]
        acting = [line for line in acting if any(map(score.is_locatable, line["faults"]))]
        found = [line for line in acting if score.detected(line)]
        missed = [line for line in acting if not score.detected(line)]
        for name, what, some in zip(("correct", "found", "missed"), _COLOURS, (clean, found, missed), strict=True):
            if some:
                shares = sorted(max(line["said"]["introduced"], line["said"]["ratio"]) for line in some)
                rows.append((f"{dtype}, {name}", what, shares))
    return rows


def _place(share: float) -> float:
    exponent = min(max(math.log10(share) if share > 0 else _LOW, _LOW), _HIGH)
    return _LEFT + (exponent - _LOW) / (_HIGH - _LOW) * (_WIDTH - _LEFT - 20)
