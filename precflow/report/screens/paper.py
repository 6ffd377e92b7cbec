"""A sheet of lines for the terminal: labels in a column, tables, colour if it is wanted, histograms as bars of text."""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from precflow import numbers
from precflow.language import translate_lines
from precflow.report import wording

LABEL = 12  # letters that a label takes
BARS = " ▁▂▃▄▅▆▇█"
_ASCII = str.maketrans(
    {**dict(zip(BARS, " .:-=+*#@", strict=True)), "·": "-", "✓": "ok", "✗": "x", "…": "~", "≠": "!=", "\u00d7": "x"}
)


class Paper:
    """Collects lines, as they are spoken. All text is made printable: a module's name may hold codes that move the cursor."""

    def __init__(self) -> None:
        self._lines: list[Text] = []

    def title(self, text: str) -> None:
        """Write a heading."""
        self._lines.append(Text(f" {_said(text)}", "bold"))

    def line(self, text: str = "", style: str = "") -> None:
        """Write a line as it is."""
        self._lines.append(Text(f" {_said(text)}".rstrip(), style))

    def fact(self, label: str, text: str, style: str = "") -> None:
        """Write a label and its text; nothing if the text is empty."""
        if text:
            label = _said(label)
            padding = " " * max(1, LABEL - cell_len(label))
            self._lines.append(Text.assemble("   ", (label, "dim"), padding, (_said(text), style)))

    def facts(self, label: str, texts: Sequence[str], style: str = "") -> None:
        """Write a label once and several texts below each other."""
        for number, text in enumerate(texts):
            self.fact("" if number else label, text, style)

    def table(
        self, rows: Sequence[Sequence[str]], *, head: bool = True, styles: Sequence[str] = (), names: Collection[int] = ()
    ) -> None:
        """Write rows in columns; a wide letter, such as a Chinese one, takes two columns.

        Args:
            rows: All equally long.
            head: The first row names the columns.
            styles: Style of each row behind the first.
            names: Columns of names, which stay as they are below their heads.
        """
        shown = [
            [wording.printable(cell) if column in names and number >= head else _said(cell) for column, cell in enumerate(row)]
            for number, row in enumerate(rows)
        ]
        widths = [max(cell_len(row[column]) for row in shown) for column in range(len(shown[0]))] if shown else []
        for number, row in enumerate(shown):
            cells = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
            style = "dim" if head and not number else styles[number - head] if number - head < len(styles) else ""
            self._lines.append(Text(f"   {'   '.join(cells)}".rstrip(), style))

    def render(self, *, colour: bool = False, ascii_only: bool = False) -> str:
        """Return everything as one text, no line of which is broken or cut."""
        target = io.StringIO()
        console = Console(file=target, force_terminal=colour, color_system="standard" if colour else None, highlight=False)
        for line in self._lines:
            console.print(line, soft_wrap=True, markup=False, emoji=False)
        text = target.getvalue().rstrip("\n")
        return text.translate(_ASCII) if ascii_only else text


def _said(text: str) -> str:
    return translate_lines(wording.printable(text), cell_len)


def draw_bars(counts: Sequence[float], *, logarithmic: bool = False) -> str:
    """Return counts as a row of bars: the largest fills the line, and a count above 0 is always visible.

    >>> draw_bars([0, 1, 4, 8]), draw_bars([1, 1000], logarithmic=True), draw_bars([])
    (' ▁▄█', '▁█', '')
    """
    heights = [math.log1p(count) if logarithmic else count for count in counts]
    largest = max(heights, default=0)
    if not largest:
        return BARS[0] * len(counts)
    return "".join(BARS[max(round(height / largest * 8), 1) if height else 0] for height in heights)


def format_size(count: int) -> str:
    """Return a number of bytes in the unit that people would use.

    >>> format_size(0), format_size(854_000), format_size(201_000_000), format_size(5_368_709_120)
    ('0 bytes', '854 kB', '201 MB', '5.37 GB')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return numbers.plural(count, "byte")


def format_shape(sizes: Sequence[int]) -> str:
    """Return the sizes of a tensor as people write them; without axes it is a single number.

    >>> format_shape((3, 77)), format_shape(())
    ('[3, 77]', '[] (one number)')
    """
    return str(list(sizes)) if sizes else "[] (one number)"
