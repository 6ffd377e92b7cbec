"""Applies the rules to a notebook: its code cells are one Python source, and each line has its place in the file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from precflow.agent.intake import parse_json
from precflow.scan.edits import Edit, apply_edits
from precflow.scan.findings import Finding
from precflow.scan.index import Index
from precflow.scan.python import parse, scan_with_import
from precflow.scan.text import scan_lines

_MAGIC = re.compile(r"^(?P<indent>\s*)(?P<sign>%|!|\?)")
_ASSIGNED = re.compile(r"^(?P<before>\s*[\w,. \[\]]+=\s*)(?P<magic>[%!].*)$")
_HELP = re.compile(r"\?\s*$")
_SHELL_CELLS = ("%%bash", "%%sh", "%%script", "%%!")


@dataclass(frozen=True)
class _Line:
    """One text of a cell's ``source``: a line, or several where a tool has written them as one text.

    Attributes:
        text: The text.
        cell: Its cell, counted from 1.
        line: Line of the file.
        start: First byte of its JSON text in the file, with the quote; -1 if it was not found.
        end: Behind its last.
        ascii: It is written with escapes for all but ASCII.
    """

    text: str
    cell: int
    line: int
    start: int
    end: int
    ascii: bool


def scan_notebook(source: str, index: Index) -> tuple[list[Finding], list[Edit], list[tuple[int, int, str]]]:
    """Return findings, edits of the file's bytes, and ``(cell, line, message)`` of each cell that cannot be parsed.

    Raises:
        ValueError: It is no notebook.
    """
    cells = list(_read_cells(source))
    findings: list[Finding] = []
    broken = []
    texts: list[str] = []  # as Python sees them
    lines: list[_Line] = []
    scripts: list[_Line] = []
    for cell in cells:
        first = cell[0].text.lstrip() if cell else ""
        if first.startswith("%%") and not first.startswith(("%%time", "%%capture", "%%prun")):
            if first.startswith(_SHELL_CELLS):
                scripts += cell[1:]
            continue
        hidden = [_hide_magics(line.text) for line in cell]
        scripts += [line for line in cell if _MAGIC.match(line.text)]
        try:
            parse("".join(hidden))
        except SyntaxError as error:
            wrong = cell[min(max((error.lineno or 1) - 1, 0), len(cell) - 1)]
            broken.append((wrong.cell, wrong.line, error.msg))
            continue
        if cell and not hidden[-1].endswith("\n"):
            hidden[-1] += "\n"
        texts += hidden
        lines += cell
    python = "".join(texts)
    scanned, edits = scan_with_import(python, index)
    starts: list[int] = []
    rows: list[int] = []
    at, row = 0, 1
    for text in texts:
        starts.append(at)
        rows.append(row)
        at += len(text.encode("utf-8", "surrogatepass"))
        row += text.count("\n")
    made = _edit_file(lines, texts, starts, edits)
    for finding in scanned.findings:
        where = lines[_find_last(rows, finding.line)]
        patched = finding.patched and bool(made)
        findings.append(replace(finding, line=where.line, end_line=where.line, cell=where.cell, patched=patched))
    for line in scripts:
        command = line.text.lstrip().lstrip("!%")
        found, _ = scan_lines(command, "cell.sh", index, as_script=True)
        findings += [replace(finding, line=line.line, end_line=line.line, cell=line.cell, patched=False) for finding in found]
    return sorted(findings, key=lambda each: each.line), made, broken


def _read_cells(source: str) -> Iterator[list[_Line]]:
    """Yield the lines of each code cell, with where each stands in the file.

    Raises:
        ValueError: It is no notebook.
    """
    plain = parse_json(source.encode("utf-8", "surrogatepass"))
    cells: Any = plain.get("cells") if isinstance(plain, dict) else None
    if cells is None and isinstance(plain, dict) and isinstance(plain.get("worksheets"), list):  # format 3
        cells = [cell for sheet in plain["worksheets"] if isinstance(sheet, dict) for cell in sheet.get("cells", [])]
    if not isinstance(cells, list):
        raise ValueError("has no list of cells")  # noqa: TRY004  one error for all that is no notebook
    data = source.encode("utf-8", "surrogatepass")
    cursor, row = 0, 1
    for number, cell in enumerate(cells, 1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        written = cell.get("source", cell.get("input", []))
        texts = [written] if isinstance(written, str) else written if isinstance(written, list) else []
        found = []
        for text in texts:
            if not isinstance(text, str):
                raise ValueError(f"cell {number} is not text")  # noqa: TRY004
            start, end, is_ascii = _locate(data, text, cursor)
            if start >= 0:
                row += data.count(b"\n", cursor, start)
                cursor = start
            found.append(_Line(text, number, row, start, end, is_ascii))
            if start >= 0:
                row += data.count(b"\n", cursor, end)
                cursor = end
        if found:
            yield found


def _locate(data: bytes, text: str, cursor: int) -> tuple[int, int, bool]:
    """Return where a text stands in the file as JSON, from a place on, and whether it is all ASCII; -1 if it does not."""
    for is_ascii in (False, True):
        written = json.dumps(text, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
        start = data.find(written, cursor)
        if start >= 0:
            return start, start + len(written), is_ascii
    return -1, -1, False


def _hide_magics(text: str) -> str:
    r"""Return a text of a cell in which IPython's own lines are Python of as many bytes.

    >>> _hide_magics("!pip install apex\n"), _hide_magics("files = !ls\n"), _hide_magics("x = 1\n")
    ('pass             \n', "files = '' \n", 'x = 1\n')
    """
    shown = []
    for line in re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text):  # not at form feeds, as Python's lines are
        body = line.rstrip("\r\n")
        ending = line[len(body) :]
        magic, assigned = _MAGIC.match(body), _ASSIGNED.match(body)
        if magic or (_HELP.search(body) and not body.lstrip().startswith("#")):
            indent = magic["indent"] if magic else ""
            body = indent + _fill("pass", len(body[len(indent) :].encode("utf-8", "surrogatepass")))
        elif assigned:
            body = assigned["before"] + _fill("''", len(assigned["magic"].encode("utf-8", "surrogatepass")))
        shown.append(body + ending)
    return "".join(shown)


def _fill(statement: str, size: int) -> str:
    return statement.ljust(size) if size >= len(statement) else "0".ljust(size)


def _find_last(rows: Sequence[int], line: int) -> int:
    """Return the last place whose row is not behind a line."""
    return max(place for place, row in enumerate(rows) if row <= line)


def _edit_file(lines: Sequence[_Line], texts: Sequence[str], starts: Sequence[int], edits: Sequence[Edit]) -> list[Edit]:
    """Return edits of the file for edits of the source that its cells make: a changed line is written as JSON again.

    None at all if a line is not found in the file as JSON would be written.
    """
    by_line: dict[int, list[Edit]] = {}
    for edit in edits:
        # What is put in behind a line belongs to that line.
        place = max(
            number
            for number, start in enumerate(starts)
            if start < edit.start or (start == edit.start and (edit.end > edit.start or start == 0))
        )
        by_line.setdefault(place, []).append(edit)
    made = []
    for place, own in by_line.items():
        line, start = lines[place], starts[place]
        shifted = [Edit(edit.start - start, edit.end - start, edit.new) for edit in own]
        was_last = not line.text.endswith("\n") and texts[place].endswith("\n")
        new = apply_edits((line.text + "\n" * was_last).encode("utf-8", "surrogatepass"), shifted).decode(
            "utf-8", "surrogatepass"
        )
        new = new.removesuffix("\n") if was_last else new
        if line.start < 0:
            return []
        written = json.dumps(new, ensure_ascii=line.ascii).encode("utf-8", "surrogatepass")
        made.append(Edit(line.start, line.end, written))
    return sorted(made, key=lambda edit: edit.start)
