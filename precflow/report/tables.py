"""The records of a result as files: ``result.csv`` of every run, and on request a workbook and Parquet.

The samples of task metrics stand in ``task_metrics.csv`` beside it, and in a sheet of the workbook.

All have every record and every metric, in the columns of ``report/columns.py``. Tables of pandas are those of
``report/frames.py``, which is imported where one is written.
"""

from __future__ import annotations

import csv
import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from precflow.errors import MissingExtraError, StoreError
from precflow.files import replacing
from precflow.report import highlights, wording
from precflow.report.columns import CATEGORIES, build_columns
from precflow.report.model import ReportModel

if TYPE_CHECKING:
    import pandas as pd

PIECE = 20_000  # records that are made a table and written at a time, so that memory does not grow with their number
TASK_FILE = "task_metrics.csv"
MOST_IN_SHEET = 1_000_000  # records; Excel's own limit is 1 048 576 rows
_FORMULAS = ("=", "+", "-", "@")  # a spreadsheet computes a text that starts with one of these


def write_csv(model: ReportModel, path: Path) -> None:
    """Write the records as CSV in UTF-8. A metric that a record does not have is an empty cell, infinity is ``inf``."""
    if model.curves and not model.rows:
        from precflow.report.frames import make_curve_frame  # noqa: PLC0415  imports pandas

        make_safe(make_curve_frame(model.curves)).to_csv(path, index=False, lineterminator="\n")
        return
    metrics, golden = highlights.list_metrics(model), {row.record: row for row in model.golden}
    # Every run writes this file: without pandas, whose import takes half a second, and in half of its time.
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for start in range(0, max(len(model.rows), 1), PIECE):
            columns = build_columns(model.rows[start : start + PIECE], metrics, golden)
            if not start:
                writer.writerow(columns)
            writer.writerows(zip(*(_make_cells(name, column) for name, column in columns.items()), strict=True))


def _make_cells(name: str, column: Any) -> list[Any]:
    """Return a column as cells: texts that no spreadsheet computes, and nothing for what is missing."""
    if isinstance(column, list):
        safe = {text: _defuse(text) if text else "" for text in (set(column) if name in CATEGORIES else column)}
        return [safe[text] for text in column]
    cells = column.tolist()
    return ["" if math.isnan(cell) else cell for cell in cells] if column.dtype == np.float64 else cells


def _write_task_csv(model: ReportModel, path: Path) -> None:
    """Write the values of task metrics, a row a sample."""
    from precflow.report.frames import make_task_frame  # noqa: PLC0415  imports pandas

    make_safe(make_task_frame(model.task_metrics)).to_csv(path, index=False, lineterminator="\n")


def write_workbook(model: ReportModel, path: Path) -> None:
    """Write a workbook with the sheets ``records``, ``findings``, ``groups``, ``curves`` and, if any, ``task metrics``.

    Of more than ``MOST_IN_SHEET`` records it has the most important ones, and ``left out`` is in the name of their sheet.
    """
    import pandas as pd  # noqa: PLC0415  takes half a second

    from precflow.report import frames  # noqa: PLC0415  imports pandas

    shown = highlights.keep_most_important(model, MOST_IN_SHEET)
    records = f"records ({shown.rows_left_out} left out)" if shown.rows_left_out else "records"
    sheets = {
        records: pd.concat(list(_cut(shown)), ignore_index=True),
        "findings": frames.make_finding_frame(model.findings),
        "groups": frames.make_group_frame(model.groups),
        "curves": frames.make_curve_frame(model.curves),
    }
    if model.task_metrics:
        sheets["task metrics"] = frames.make_task_frame(model.task_metrics)
    with pd.ExcelWriter(path, engine="openpyxl") as book:
        for name, frame in sheets.items():
            make_safe(frame).to_excel(book, sheet_name=name, index=False, freeze_panes=(1, 1))


def write_parquet(model: ReportModel, path: Path) -> None:
    """Write the records as Parquet: columns keep their types, texts of which many are equal are dictionaries."""
    import pandas as pd  # noqa: PLC0415  takes half a second

    whole = pd.concat(list(_cut(model)), ignore_index=True)
    _change_texts(whole, wording.printable).to_parquet(path, engine="pyarrow", index=False)


TABLES: Mapping[str, tuple[str, Callable[[ReportModel, Path], None]]] = {
    "csv": ("result.csv", write_csv),
    "xlsx": ("result.xlsx", write_workbook),
    "parquet": ("result.parquet", write_parquet),
}
_NEEDED = {  # library, the extra that brings it, and what it writes
    "xlsx": ("openpyxl", "excel", "result.xlsx"),
    "parquet": ("pyarrow", "parquet", "result.parquet"),
    "tensorboard": ("tensorboard", "tensorboard", "event files"),
}


def refuse_missing(formats: Sequence[str]) -> None:
    """Refuse formats whose library is not installed, before anything is computed for them.

    Raises:
        MissingExtraError: One is missing; names the extra that brings it.
    """
    for name in formats:
        library, extra, written = _NEEDED.get(name, ("", "", ""))
        if library and importlib.util.find_spec(library) is None:
            raise MissingExtraError(f"{library} (for {written})", extra)


def write(model: ReportModel, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write the tables among some formats into a folder, which is created if needed, and return the files.

    Each file appears whole or not at all.

    Raises:
        MissingExtraError: The library of a format is not installed.
        StoreError: The folder cannot be written.
    """
    wanted = [TABLES[name] for name in formats if name in TABLES]
    refuse_missing(formats)
    if "csv" in formats and model.task_metrics:
        wanted.append((TASK_FILE, _write_task_csv))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, write_table in wanted:
            with replacing(folder / name) as temporary:
                write_table(model, temporary)
                temporary.chmod(0o644)
    except OSError as error:
        message = f"the tables cannot be written into {folder}: {error.strerror or error}"
        raise StoreError(message, next_step="choose another folder, or free some space") from error
    return [folder / name for name, _ in wanted]


def _cut(model: ReportModel) -> Iterator[pd.DataFrame]:
    """Yield the records in tables of ``PIECE`` rows; of none, one table without rows. Curves alone have their steps as rows."""
    from precflow.report.frames import make_curve_frame, make_record_frame  # noqa: PLC0415  imports pandas

    if model.curves and not model.rows:
        yield make_curve_frame(model.curves)
        return
    metrics = highlights.list_metrics(model)
    for start in range(0, max(len(model.rows), 1), PIECE):
        yield make_record_frame(model.rows[start : start + PIECE], metrics, golden={row.record: row for row in model.golden})


def make_safe(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose texts no spreadsheet takes for a formula and no terminal for a command."""
    return _change_texts(frame, _defuse)


def _change_texts(frame: pd.DataFrame, change: Callable[[str], str]) -> pd.DataFrame:
    """Return a table with every text changed; of a category each text is changed once."""
    import pandas as pd  # noqa: PLC0415  takes half a second

    changed: dict[str, pd.Series[Any]] = {}
    for name, column in frame.items():
        if isinstance(column.dtype, pd.CategoricalDtype):
            texts = [change(str(text)) for text in column.cat.categories]
            if texts != list(column.cat.categories):
                changed[str(name)] = column.map(dict(zip(column.cat.categories, texts, strict=True)))
        elif not pd.api.types.is_numeric_dtype(column.dtype):
            changed[str(name)] = pd.Series([change(text) for text in column.tolist()], index=frame.index, dtype="str")
    return frame.assign(**changed)


def _defuse(text: str) -> str:
    """Return a text as a cell, with an apostrophe in front if a spreadsheet would read it as a formula."""
    plain = wording.printable(text)
    # "-0.5" begins like a formula but is a number, and must stay one for pandas.
    return f"'{plain}" if plain.startswith(_FORMULAS) and not _is_number(plain) else plain


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
