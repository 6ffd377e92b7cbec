"""Tables of text: CSV, and other separators; decimals with a point or a comma."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from precflow.curves.columns import LACKING, Columns, read_columns
from precflow.curves.formats import Format, named
from precflow.curves.layouts import choose_columns
from precflow.curves.log import Log
from precflow.curves.series import Series
from precflow.curves.wanted import Wanted
from precflow.errors import CurveError

if TYPE_CHECKING:
    import pandas as pd

_SEPARATORS = ",\t;|"
_SPACES = r"\s+"
_LONGEST_LINE = 1 << 19  # letters: a table of a log has numbers in its cells
_WIDEST = 1 << 15  # columns
_ENDINGS = frozenset({".csv", ".tsv"})
_FOLDER_FILES = ("metrics.csv", "results.csv", "progress.csv")  # Lightning, Ultralytics, and Stable-Baselines
_DECIMAL_COMMA = re.compile(r"[-+]?(\d+|\d{1,3}(\.\d{3})+),\d+([eE][-+]?\d+)?$")
_THOUSANDS = re.compile(r"[-+]?\d{1,3},\d{3}$")
_SOLUTION = "give the log of a run as CSV, JSON, or text with a pattern"


def find_separator(text: str, *, is_table: bool = False) -> str:
    r"""Return the separator of a table by its first two lines; ``""`` if it looks like none.

    Args:
        text: Its beginning.
        is_table: The name of the file says so: the names of the columns are enough.

    >>> find_separator("step,loss\n1,2.5\n"), find_separator("step 1, loss 2.5\nstep 2, loss 2.1\n")
    (',', '')
    >>> find_separator("epoch;loss\n1,0;2,5\n"), find_separator("step  loss\n   1  2.5\n")
    (';', '\\s+')
    """
    lines = [*text.lstrip("\r\n").splitlines()[:2], "", ""]
    counts = {mark: lines[0].count(mark) for mark in _SEPARATORS}
    mark = max(counts, key=lambda mark: counts[mark])
    if not counts[mark]:
        names, numbers = lines[0].split(), lines[1].split()
        spaced = len(names) == len(numbers) > 1 and all(map(_is_number, numbers)) and not any(map(_is_number, names))
        return _SPACES if spaced else "," if is_table and names and not _is_number(lines[0]) else ""
    names, numbers = ([cell.strip().strip('"') for cell in line.split(mark)] for line in lines[:2])
    if names[-1] == "" and len(names) > 2:  # some writers end each line with the separator
        names, numbers = names[:-1], numbers[: len(names) - 1]
    if any(_is_number(name) for name in names) or not all(names[1:]):  # pandas writes no name for its index
        return ""
    if is_table:
        return mark
    return mark if names[0] and len(numbers) == len(names) and any(map(_is_number, numbers)) else ""


def _recognize(log: Log) -> bool:
    return not log.is_binary and bool(_find_separator(log))


def _find_separator(log: Log) -> str:
    return find_separator(log.start, is_table=log.path.suffix.lower() in _ENDINGS)


def _read(logs: Sequence[Log], wanted: Wanted) -> Series:
    """Return a curve of a table whose first line has the names of its columns.

    Raises:
        CurveError: It does not have the curve, or holds something else than numbers.
    """
    log = logs[0]
    separator, text = _find_separator(log), log.read_text()
    if "\n" not in text:
        text = text.replace("\r", "\n")
    header, _, body = text.lstrip("\r\n").partition("\n")
    names = _parse(header + "\n", separator, _measure(header, separator), log.place).iloc[0].str.strip().tolist()
    while names and not names[-1]:
        names.pop()
    body, notes = _cut_last_line(body, separator, len(names))
    width = max(len(names), _check_lines(body, separator, log.place))

    def read(wished: Sequence[str]) -> list[list[Any]]:
        """Return the cells of columns; without the lines of a first line that stands there again, as after a restart."""
        if not body.strip():
            return [[] for _ in wished]
        surplus = list(range(len(names), width))
        places = [names.index(name) for name in wished]
        frame = _parse(body, separator, width, log.place, columns=sorted({*places, *surplus}))
        _refuse_surplus(frame[surplus], len(names), log.place)
        if header.strip() in body:
            frame = frame[(frame[places] != list(wished)).any(axis=1)]
        return [_clean(frame[place], separator) for place in places]

    columns = Columns(names, read)
    choice = choose_columns(wanted, columns, log.place)
    return read_columns(columns, choice, wanted, log.place, notes)


def _parse(text: str, separator: str, width: int, place: str, columns: list[int] | None = None) -> pd.DataFrame:
    """Return cells as texts, the columns numbered from 0; a line that is shorter has empty ones.

    Raises:
        CurveError: It is no table.
    """
    import pandas as pd  # noqa: PLC0415  only where a table is read: it takes longer to import than most logs to read

    widest = (" " if separator == _SPACES else separator).join("x" * width)  # pandas expects one line that is so wide
    try:
        frame = pd.read_csv(
            io.StringIO(f"{widest}\n{text}"),
            sep=separator,
            header=None,
            names=range(width),
            usecols=columns,
            dtype=object,
            na_filter=False,
            index_col=False,
            skipinitialspace=True,
        )
        return frame.iloc[1:]
    except (ValueError, OverflowError) as error:  # ParserError is a ValueError
        raise CurveError(f"{place} is no table that can be read: {error}", next_step=_SOLUTION) from error


def _measure(line: str, separator: str) -> int:
    """Return how many cells a line has at most: separators within quotes are counted too."""
    return len(line.split()) if separator == _SPACES else line.count(separator) + 1


def _check_lines(text: str, separator: str, place: str) -> int:
    """Return the cells of the widest line.

    Raises:
        CurveError: A line is too long for one of numbers, or too wide.
    """
    lines = text.split("\n")
    longest = max(map(len, lines))
    if longest > _LONGEST_LINE:
        number = next(number for number, line in enumerate(lines, start=2) if len(line) == longest)
        raise CurveError(
            f"{place} is no table that can be read: line {number} has {longest} letters, expected at most {_LONGEST_LINE}",
            next_step=_SOLUTION,
        )
    width = max(_measure(line, separator) for line in lines)
    if width > _WIDEST:
        message = f"{place} is no table that can be read: a line has {width} cells, expected at most {_WIDEST}"
        raise CurveError(message, next_step=_SOLUTION)
    return width


def _cut_last_line(body: str, separator: str, width: int) -> tuple[str, list[str]]:
    """Leave out a last line that lacks cells and its end: it was copied while the run was writing."""
    whole, newline, last = body.rpartition("\n")
    if last.strip() and _measure(last, separator) < width:
        return whole + newline, ["its last line is cut and left out"]
    return body, []


def _refuse_surplus(surplus: pd.DataFrame, width: int, place: str) -> None:
    """Refuse lines with more cells than there are names, unless these are empty.

    Raises:
        CurveError: There are some: `2,5` in a table that is separated by commas would be read as 2.
    """
    filled = (surplus != "").any(axis=1)
    if filled.any():
        raise CurveError(
            f"{place}: line {int(filled.to_numpy().argmax()) + 2} has more entries than the {width} names in the first line",
            next_step="separate by semicolons if the decimals are written with a comma, and name every column",
        )


def _clean(cells: pd.Series[Any], separator: str) -> list[Any]:
    """Return cells without spaces around them, decimals with a point, and ``LACKING`` for empty ones."""
    texts = [text.strip() for text in cells.tolist()]
    if any("," in text for text in texts):
        texts = _use_points(texts, separator)
    return [text or LACKING for text in texts]


def _use_points(texts: list[str], separator: str) -> list[str]:
    """Return numbers with a decimal point where they have a comma, if all commas are such.

    Where `1,000` may as well be a thousand, the texts stay as they are, which are no numbers then: in a table that is separated
    by commas, or beside numbers without a comma.

    >>> _use_points(["1.234,5", "9", "-2,25e-3"], ";"), _use_points(["999", "1,000"], ";")
    (['1234.5', '9', '-2.25e-3'], ['999', '1,000'])
    """
    commas = [text for text in texts if "," in text]
    if not all(map(_DECIMAL_COMMA.match, commas)):
        return texts
    if all(map(_THOUSANDS.match, commas)) and (separator == "," or len(commas) < sum(map(bool, texts))):
        return texts
    return [text.replace(".", "").replace(",", ".") if "," in text else text for text in texts]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return bool(_DECIMAL_COMMA.match(cell))
    return True


FORMAT = Format("CSV and other tables of text", 50, _recognize, _read, named(*_FOLDER_FILES))
