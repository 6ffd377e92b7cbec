"""Workbooks of Excel: the first sheet, whose first row has the names of the columns."""

from __future__ import annotations

import importlib.util
import math
import zipfile
from collections.abc import Sequence
from typing import Any

from precflow.curves.columns import LACKING, Columns, read_columns
from precflow.curves.formats import Format
from precflow.curves.layouts import choose_columns
from precflow.curves.log import Log
from precflow.curves.series import Series
from precflow.curves.wanted import Wanted
from precflow.errors import CurveError

_LARGEST = 1 << 28  # bytes of a workbook when it is unpacked
_SHEETS = b"xl/"
_OLD = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # what files of Excel before 2007 begin with


def _recognize(log: Log) -> bool:
    if log.head.startswith(_OLD):
        return log.path.suffix.lower() == ".xls"
    if not log.head.startswith(b"PK\x03\x04"):
        return False
    try:
        with zipfile.ZipFile(log.path) as file:
            return any(name.startswith("xl/") for name in file.namelist())
    except (zipfile.BadZipFile, ValueError):
        return False


def _read(logs: Sequence[Log], wanted: Wanted) -> Series:
    """Return a curve of a workbook.

    Raises:
        CurveError: What reads workbooks is not installed, or it does not have the curve.
    """
    log = logs[0]
    if log.head.startswith(_OLD):
        raise CurveError(f"{log.place} is a workbook of an Excel before 2007", next_step="save it as .xlsx or as CSV")
    if importlib.util.find_spec("openpyxl") is None:
        raise CurveError(
            f"{log.place} is a workbook of Excel, and what reads it is not installed",
            next_step='pip install "precflow[excel]", or save it as CSV',
        )
    with zipfile.ZipFile(log.path) as file:
        size = sum(part.file_size for part in file.infolist())
    if size > _LARGEST:
        raise CurveError(f"{log.place} has {size} bytes when unpacked, expected at most {_LARGEST}", next_step="save it as CSV")
    import pandas as pd  # noqa: PLC0415  only where a table is read

    try:
        sheet = pd.read_excel(log.path, header=None, dtype=object, engine="openpyxl")
    except Exception as error:  # openpyxl raises what it happens on
        raise CurveError(f"{log.place} is no workbook that can be read: {error}", next_step="save it as CSV") from error
    names = [_clean(cell) for cell in sheet.iloc[0].tolist()] if len(sheet) else []
    texts = ["" if name is LACKING else str(name) for name in names]

    def read(wished: Sequence[str]) -> list[list[Any]]:
        """Return the cells of columns."""
        return [[_clean(cell) for cell in sheet.iloc[1:, texts.index(name)].tolist()] for name in wished]

    columns = Columns([name for name in texts if name], read)
    return read_columns(columns, choose_columns(wanted, columns, log.place), wanted, log.place)


def _clean(cell: Any) -> Any:
    """Return what a cell holds: an empty one is NaN for pandas."""
    if isinstance(cell, float) and math.isnan(cell):
        return LACKING
    return (cell.strip() or LACKING) if isinstance(cell, str) else cell


FORMAT = Format("workbooks of Excel", 20, _recognize, _read)
