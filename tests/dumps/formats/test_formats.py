"""Formats of dumps: a module alone adds one, and everything that compares dumps can read it."""

import numpy as np
import pytest

import precflow
from precflow.dumps import formats
from precflow.dumps.formats import list_formats, own, read_dump
from precflow.errors import DumpError

# A format of a made-up tool: a text file that says where a dump of precflow lies, which it reads.
POINTER = """
from pathlib import Path
from precflow.dumps.formats import Format, read_dump

def recognizes(path):
    return path.is_file() and path.read_bytes()[:8] == b"pointer "

def open_it(path, *, allow_unsealed):
    return read_dump(Path(path.read_text().split(" ", 1)[1]), allow_unsealed=allow_unsealed)

FORMAT = Format("pointers", 50, recognizes, open_it)
"""


@pytest.fixture
def with_pointers(tmp_path, monkeypatch):
    """Add a module to the folder of formats."""
    folder = tmp_path / "formats"
    folder.mkdir()
    (folder / "pointers.py").write_text(POINTER, encoding="utf-8")
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(folder)])
    list_formats.cache_clear()
    yield
    monkeypatch.undo()
    list_formats.cache_clear()


@pytest.fixture
def sides(build, tmp_path):
    pointers = []
    for name, factor in (("reference", 1), ("target", 2)):
        dump = build(name, side=name)
        dump.call("a", "linear", [np.full(3, factor, np.float32)])
        pointers.append(tmp_path / f"{name}.pointer")
        pointers[-1].write_text(f"pointer {dump.write()}")
    return pointers


def test_a_file_alone_adds_a_format(with_pointers, sides):
    titles = [each.title for each in list_formats()]
    assert titles.index("precflow") < titles.index("pointers")
    assert [call.name for call in read_dump(sides[0]).calls()] == ["a / linear"]


def test_what_compares_dumps_reads_it(with_pointers, sides):
    result = precflow.compare(*sides)
    assert result.verdict == "misaligned"
    assert [row.status for row in result.records] == ["fail"]


@pytest.mark.parametrize("what", ["nowhere", "file", "empty"])
def test_what_no_format_knows_is_told_by_our_own(tmp_path, what):
    path = tmp_path / what
    if what == "file":
        path.write_text("{}")
    if what == "empty":
        path.mkdir()
    assert not own.is_own(path)
    with pytest.raises(DumpError, match=r"there is no dump at|was never sealed"):
        read_dump(path)
