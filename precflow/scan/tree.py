"""Scans a folder: which files are read and how, and what could not be read. Nothing is written, and no link is followed."""

from __future__ import annotations

import codecs
import hashlib
import io
import os
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from precflow.agent import intake
from precflow.errors import StoreError
from precflow.scan.edits import Edit, apply_edits
from precflow.scan.findings import SYNTAX, Finding, ScanResult
from precflow.scan.index import Index
from precflow.scan.notebook import scan_notebook
from precflow.scan.patch import make_patch
from precflow.scan.python import scan_with_import
from precflow.scan.rules import LOOK, STOPS, RuleSet
from precflow.scan.text import is_text, scan_file_name, scan_lines

LARGEST = 4 << 20  # bytes of a source; what is larger was written by a program, or is data
_LARGEST_NOTEBOOK = 64 << 20  # bytes; notebooks hold pictures
_LEFT_OUT = frozenset(("node_modules", "__pycache__", "site-packages", "build", "dist"))
_PYTHON, _NOTEBOOK = (".py", ".pyw"), ".ipynb"
_BEGINS_BINARY = 8192  # bytes in which a NUL says that a file is no text
_PYTHON2 = re.compile(r"^\s*(?:print\s+[\"'\w]|exec\s+[\"']|except\s+[\w.]+\s*,\s*\w+\s*:|raise\s+\w+\s*,)", re.MULTILINE)
_TITLES = {"syntax": "cannot be parsed", "import": "torch_npu is not imported"}


@dataclass
class _Collected:
    """What has been found so far."""

    findings: list[Finding] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)
    files: Counter[str] = field(default_factory=Counter)
    patch: list[bytes] = field(default_factory=list)


def scan_tree(tree: Path, rules: RuleSet, *, advance: Callable[[int], None] = lambda _: None) -> ScanResult:
    """Apply the rules to every source below a folder.

    Hidden folders, virtual environments and what was built are left out. A file that is no text, too large, behind a link that
    leads out of the tree or not readable is among the ``unread`` of the result.

    Args:
        tree: The folder; or one file.
        rules: The rules.
        advance: Called with the number of files that have been read.

    Raises:
        StoreError: There is no such folder, it cannot be listed, or nothing in it could be read: that would be no result.
    """
    collected, index = _Collected(), Index(rules)
    root = tree if tree.is_dir() else tree.parent
    for path in list_files(tree, collected.unread, index):
        name = path.relative_to(root).as_posix()
        _scan_file(path, name, index, collected)
        advance(sum(collected.files.values()))
    if not (collected.files or collected.findings):
        unread = "".join(f"; {name} {why}" for name, why in list(collected.unread.items())[:1])
        raise StoreError(
            f"{tree} has nothing that a scan reads: no Python, notebook, script, settings or requirements{unread}",
            next_step="name the folder of a source tree",
        )
    findings = sorted(collected.findings, key=lambda each: (each.file, each.line))
    return ScanResult(
        tree=str(tree),
        findings=tuple(findings),
        files=dict(collected.files),
        unread=collected.unread,
        titles={**rules.titles, **_TITLES},
        patch=b"".join(collected.patch),
    )


def digest_tree(tree: Path, rules: RuleSet) -> str:
    """Return 32 hex digits over the names of all files of a tree, and the bytes of those that a scan reads.

    Raises:
        StoreError: There is no such folder, or it cannot be listed.
    """
    index, hasher = Index(rules), hashlib.blake2b(digest_size=16)
    for path in list_files(tree, {}, index):
        name = path.relative_to(tree if tree.is_dir() else tree.parent).as_posix()
        hasher.update(os.fsencode(name) + b"\0")
        if _is_read(name, index):
            try:
                hasher.update(hashlib.blake2b(intake.read_bytes(path, _LARGEST_NOTEBOOK)).digest())
            except (OSError, ValueError) as error:  # the scan says so of the file
                hasher.update(type(error).__name__.encode())
    return hasher.hexdigest()


def _is_read(name: str, index: Index) -> bool:
    return name.endswith((*_PYTHON, _NOTEBOOK)) or is_text(name, index)


def list_files(tree: Path, unread: dict[str, str], index: Index) -> Iterator[Path]:
    """Yield the files of a tree in order of their names; what would be read and cannot be is noted in `unread`.

    Raises:
        StoreError: There is no such folder, or it cannot be listed.
    """
    if tree.is_file():
        yield tree
        return
    try:
        entries = sorted(os.scandir(tree), key=lambda entry: entry.name)
    except OSError as error:
        why = error.strerror if tree.exists() else "there is no such folder"
        raise StoreError(f"{tree} cannot be scanned: {why}", next_step="name the folder of a source tree") from error
    yield from _list_entries(entries, tree, unread, index)


def _list_entries(entries: list[os.DirEntry[str]], tree: Path, unread: dict[str, str], index: Index) -> Iterator[Path]:
    for entry in entries:
        path = Path(entry.path)
        name = path.relative_to(tree).as_posix()
        if entry.is_symlink():
            # What it leads to inside of the tree is found there.
            if (_is_read(name, index) or path.is_dir()) and not _stays_inside(path, tree.resolve()):
                unread[name] = "is a link that leads out of the tree, or to nothing"
        elif entry.is_dir(follow_symlinks=False):
            if entry.name.startswith(".") or entry.name in _LEFT_OUT or (path / "pyvenv.cfg").is_file():
                continue
            try:
                inner = sorted(os.scandir(path), key=lambda each: each.name)
            except OSError as error:
                unread[name] = f"cannot be listed: {error.strerror}"
                continue
            yield from _list_entries(inner, tree, unread, index)
        else:
            yield path


def _stays_inside(path: Path, root: Path) -> bool:
    try:
        return path.resolve(strict=True).is_relative_to(root)
    except (OSError, RuntimeError):  # it leads to nothing, or in a circle
        return False


def _scan_file(path: Path, name: str, index: Index, collected: _Collected) -> None:
    """Scan one file, by what its name and its first line say that it is."""
    shown = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    collected.findings += [replace(finding, file=shown) for finding in scan_file_name(name, index)]
    python, notebook = name.endswith(_PYTHON), name.endswith(_NOTEBOOK)
    if not _is_read(name, index):
        return
    try:
        data = intake.read_bytes(path, _LARGEST_NOTEBOOK if notebook else LARGEST)
    except ValueError:
        collected.unread[shown] = f"is larger than {(_LARGEST_NOTEBOOK if notebook else LARGEST) >> 20} MiB"
        return
    except OSError as error:
        collected.unread[shown] = f"cannot be read: {error.strerror or error}"
        return
    if b"\0" in data[:_BEGINS_BINARY] and not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        collected.unread[shown] = "is no text: it has zero bytes"
        return
    decoded = _decode(data, python=python)
    if isinstance(decoded, str):
        collected.unread[shown] = decoded
        return
    text, mark, encoding = decoded
    collected.files["Python" if python else "notebooks" if notebook else "others"] += 1
    findings, edits = _scan_text(text, name, index, collected.unread, python=python, notebook=notebook)
    if edits:
        before = text.encode("utf-8", "surrogatepass")
        after = apply_edits(before, edits).decode("utf-8", "surrogatepass")
        if mark + text.encode(encoding) == data:
            collected.patch.append(make_patch(name, data, mark + after.encode(encoding)))
        else:  # an encoding that does not give its own bytes back
            findings = [replace(finding, patched=False) for finding in findings]
    collected.findings += [replace(finding, file=shown) for finding in findings]


def _decode(data: bytes, *, python: bool) -> tuple[str, bytes, str] | str:
    """Return a file's text, its byte order mark and its encoding; or why it has none."""
    mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    encoding = "utf-8"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        mark, encoding = data[:2], "utf-16-le" if data.startswith(codecs.BOM_UTF16_LE) else "utf-16-be"
    elif python and not mark:
        try:
            encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
        except SyntaxError:  # it names none that there is, or is not what it names
            encoding = "utf-8"
    for each in (encoding, "gb18030", "latin-1"):
        try:
            return data[len(mark) :].decode(each), mark, each
        except (UnicodeDecodeError, LookupError):  # noqa: PERF203  of three
            if python:
                return f"is not {each} text, which Python would read it as"
    return "is no text"


def _scan_text(  # noqa: PLR0913  each is a fact of its own
    text: str, name: str, index: Index, unread: dict[str, str], *, python: bool, notebook: bool
) -> tuple[list[Finding], list[Edit]]:
    """Scan the text of a file; a source that cannot be parsed is a finding of its own."""
    if python:
        try:
            scanned, edits = scan_with_import(text, index, setup=name.rpartition("/")[2] == "setup.py")
        except SyntaxError as error:
            return [_describe_broken(error.lineno or 1, error.msg, python2=bool(_PYTHON2.search(text)))], []
        return list(scanned.findings), list(edits)
    if notebook:
        try:
            findings, edits, broken = scan_notebook(text, index)
        except ValueError as error:
            unread[name] = f"is no notebook: {str(error).splitlines()[0][:100]}"
            return [], []
        notes = [replace(_describe_broken(line, message), cell=cell) for cell, line, message in broken]
        return findings + notes, edits
    return scan_lines(text, name, index)


def _describe_broken(line: int, message: str, *, python2: bool = False) -> Finding:
    why = f"Python cannot parse it ({message}), so nothing else was looked for in it"
    if python2:
        why += "; it looks like Python 2, which no torch for an NPU runs on"
    return Finding(
        rule=SYNTAX,
        weight=STOPS if python2 else LOOK,
        file="",
        line=line,
        end_line=line,
        found=message,
        why=f"{why}.",
        do="port it to Python 3 first" if python2 else "correct it, or take it out of the tree; then scan again",
    )
