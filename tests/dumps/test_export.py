import errno
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow.comparison.detail.description import as_scalar
from precflow.dumps import export
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.dumps.export import file_names, require_room, write_npy, write_txt
from precflow.errors import StoreError

NAMES = st.lists(st.text(st.characters(codec="utf-8"), max_size=400), max_size=8)


def values(name, shape=(2, 3, 2)):
    size = int(np.prod(shape)) * NUMPY_DTYPES[name].itemsize
    raw = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    return ((raw % 2).astype(bool) if name == "bool" else raw.view(NUMPY_DTYPES[name])).reshape(shape)


def bits(array):
    return array.tobytes()


@pytest.mark.parametrize("shape", [(2, 3, 2), (), (0, 4)])
@pytest.mark.parametrize("name", NUMPY_DTYPES)
def test_npy_gives_the_tensor_back(name, shape, tmp_path):
    array, path = values(name, shape), tmp_path / "x.npy"
    note = write_npy(array, path)
    again = np.load(path)
    widened = name in {"bfloat16", "float8_e4m3fn", "float8_e5m2"}
    assert (again.shape, again.dtype) == (shape, np.float32 if widened else array.dtype)
    assert np.array_equal(again, array.astype(again.dtype), equal_nan=again.dtype.kind in "fc")
    assert note == (f"{name} widened to float32, exactly" if widened else "")


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float32"])
def test_raw_gives_the_bits_back(name, tmp_path):
    array = values(name)
    note = write_npy(array, tmp_path / "x.npy", raw=True)
    assert bits(np.load(tmp_path / "x.npy")) == bits(array)
    assert ("as its bits" in note) == (name != "float32")


@pytest.mark.parametrize("name", NUMPY_DTYPES)
def test_txt_gives_the_tensor_back(name, tmp_path):
    array, path = values(name), tmp_path / "x.txt"
    write_txt(array, path, as_scalar)
    head, *rows = path.read_text().splitlines()
    assert head == f"# {name} [2, 3, 2]"
    assert [len(row.split()) for row in rows] == [2] * 6
    words = [word for row in rows for word in row.split()]
    if name == "bool":
        again = np.array([word == "True" for word in words])
    elif "int" in name:
        again = np.array([int(word) for word in words], array.dtype)
    else:
        again = np.array([(complex if "complex" in name else float)(word) for word in words]).astype(array.dtype)
    assert np.array_equal(again.reshape(array.shape), array, equal_nan=name[0] in "bfc" and name != "bool")


@pytest.mark.parametrize(
    ("shape", "text"), [((), "# float32 []\n1.0\n"), ((0, 3), "# float32 [0, 3]\n"), ((2,), "# float32 [2]\n1.0 1.0\n")]
)
def test_txt_of_few_elements(shape, text, tmp_path):
    write_txt(np.ones(shape, np.float32), tmp_path / "x.txt", as_scalar)
    assert (tmp_path / "x.txt").read_text() == text


def test_blocks_change_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "_BLOCK", 5)
    array = values("bfloat16", (7, 3))
    write_npy(array, tmp_path / "x.npy")
    assert np.array_equal(np.load(tmp_path / "x.npy"), array.astype(np.float32), equal_nan=True)
    write_txt(array, tmp_path / "x.txt", as_scalar)
    assert len((tmp_path / "x.txt").read_text().splitlines()) == 8


@given(NAMES)
def test_names_are_safe_and_all_different(texts):
    names = file_names(texts, ".npy")
    assert len({unicodedata.normalize("NFC", name.casefold()) for name in names}) == len(texts)
    for name in names:
        assert 0 < len(name.encode()) <= 255
        assert name == Path(name).name
        assert not set(name) & set('/\\:*?"<>|\0\n\x1b ')
        assert not name.startswith((".", "-"))


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("文本编码器.层.零/linear.0/forward.output.0", "文本编码器.层.零__linear.0__forward.output.0.npy"),
        ("con/forward.output.0", "con__forward.output.0.npy"),
        ("con", "_con-"),
        ("../../etc/passwd", "__..__etc__passwd-"),
        ("x" * 300, "x" * 180 + "-"),
        ("(model)/forward.output.0", "_model___forward.output.0-"),
        ("a b", "a_b-"),
        ("", "_-"),
    ],
)
def test_names_stay_readable(text, start):
    (name,) = file_names([text], ".npy")
    assert name.startswith(start)


def test_names_that_only_case_tells_apart_end_in_hashes():
    first, second, third = file_names(["Layer", "layer", "other"], ".npy")
    assert first.casefold() != second.casefold()
    assert third == "other.npy"


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array_header_1_0", full)
    with pytest.raises(StoreError, match="is full"):
        write_npy(np.ones(3), tmp_path / "x.npy")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StoreError, match="cannot be written"):
        write_npy(np.ones(3), tmp_path / "missing" / "x.npy")


def test_too_little_room_is_told_before_anything_is_written(tmp_path):
    with pytest.raises(StoreError, match="MB are needed"):
        require_room(tmp_path / "new", 1 << 60)
    require_room(tmp_path / "new", 1)
    assert not (tmp_path / "new").exists()
