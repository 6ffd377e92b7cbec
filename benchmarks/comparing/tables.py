"""Results as Markdown tables and as an SVG of bars, for the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

_WIDTH, _BAR, _LABEL = 720, 22, 260


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows with the same keys as one table."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([shown(value) for value in row.values()] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def shown(value: Any) -> str:
    """Return a number with three digits, and everything else as it is; what was not measured as a dash."""
    if value is None:
        return "-"
    return (
        f"{value:.3g}"
        if isinstance(value, float) and value < 1000
        else f"{value:.0f}"
        if isinstance(value, float)
        else str(value)
    )


def bars(title: str, values: Mapping[str, float], unit: str) -> str:
    """Return an SVG with one bar a value, from 0, its number at its end; readable on light and dark ground."""
    largest = max(values.values())
    height = _BAR * (len(values) + 2)
    font = 'font-family="sans-serif" font-size="13"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" {font}>',
        f"<title>{escape(title)}</title>",
        f'<text x="4" y="16" fill="#777">{escape(title)}</text>',
    ]
    for number, (name, value) in enumerate(values.items(), start=1):
        top = number * _BAR + 4
        long = max(1.0, (_WIDTH - _LABEL - 90) * value / largest)
        parts += [
            f'<text x="{_LABEL - 8}" y="{top + 14}" text-anchor="end" fill="#777">{escape(name)}</text>',
            f'<rect x="{_LABEL}" y="{top}" width="{long:.1f}" height="{_BAR - 6}" fill="#3b7dd8"/>',
            f'<text x="{_LABEL + long + 6:.1f}" y="{top + 14}" fill="#777">{shown(value)} {escape(unit)}</text>',
        ]
    return "\n".join([*parts, "</svg>\n"])
