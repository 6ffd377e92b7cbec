"""A curve as SVG: several series over one logarithmic axis, readable on light and dark ground."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 720, 320, 70, 50, 40
_COLOURS = ("#3b7dd8", "#d8703b", "#4a9a5b")

Points = Sequence[tuple[float, float]]


def curve(title: str, across: str, up: str, series: Mapping[str, Points]) -> str:
    """Return an SVG of named series of (x, y), both above 0, on two logarithmic axes with a tick at each decade."""
    points = [point for line in series.values() for point in line]
    frame = [_decades([point[axis] for point in points]) for axis in (0, 1)]
    font = 'font-family="sans-serif" font-size="13"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" {font}>',
        f"<title>{escape(title)}</title>",
        f'<text x="4" y="16" fill="#777">{escape(title)}</text>',
        f'<text x="{_WIDTH - 8}" y="{_HEIGHT - 8}" text-anchor="end" fill="#777">{escape(across)}</text>',
        f'<text x="4" y="{_TOP - 6}" fill="#777">{escape(up)}</text>',
    ]
    for exponent in range(frame[0][0], frame[0][1] + 1):
        x, _ = _place(10.0**exponent, 10.0 ** frame[1][0], frame)
        parts.append(_line(x, _TOP, x, _HEIGHT - _BOTTOM))
        anchor = "end" if exponent == frame[0][1] else "middle"
        parts.append(
            f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="{anchor}" fill="#777">{10.0**exponent:g}</text>'
        )
    for exponent in range(frame[1][0], frame[1][1] + 1):
        _, y = _place(10.0 ** frame[0][0], 10.0**exponent, frame)
        parts.append(_line(_LEFT, y, _WIDTH - 10, y))
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#777">{10.0**exponent:g}</text>')
    for (name, line), colour in zip(series.items(), _COLOURS, strict=False):
        places = [_place(x, y, frame) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places]
        x, y = places[-1]
        parts.append(f'<text x="{x - 4:.1f}" y="{y - 8:.1f}" text-anchor="end" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _place(x: float, y: float, frame: Sequence[tuple[int, int]]) -> tuple[float, float]:
    shares = [(math.log10(value) - low) / (high - low) for value, (low, high) in zip((x, y), frame, strict=True)]
    return _LEFT + shares[0] * (_WIDTH - 10 - _LEFT), _HEIGHT - _BOTTOM - shares[1] * (_HEIGHT - _BOTTOM - _TOP)


def _line(x: float, y: float, right: float, bottom: float) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{bottom:.1f}" stroke="#777" stroke-opacity="0.25"/>'
