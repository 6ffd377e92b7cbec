"""What is read of other people's files is bounded, and said in words where it is not what it should be."""

import os
import re
import signal

import pytest

from precflow.agent import intake


@pytest.fixture(autouse=True)
def impatient():
    """End a test that waits for ever."""

    def late(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


OUT_OF_BOUNDS = {
    "nested": ("[" * 100_000, "nested too deeply, expected at most 64 levels"),
    "nested and closed": ("[" * 70 + "]" * 70, "nested too deeply"),
    "infinite": ('{"size": 1e999}', "number 1e999 is beyond what a float64 holds"),
    "long": ('{"rank": ' + "7" * 5000 + "}", "7777... has 5000 digits"),
    "twice": ('{"a": 1, "a": 2}', "key 'a' appears twice"),
    "cut": ('{"a":\n 1,', "line 2 column"),
    "not UTF-8": (b"\xff\xfe", "utf-8"),
}


@pytest.mark.parametrize("name", OUT_OF_BOUNDS)
def test_json_out_of_bounds_is_a_value_error_in_words(name):
    text, words = OUT_OF_BOUNDS[name]
    with pytest.raises(ValueError, match=re.escape(words)):
        intake.parse_json(text)


def test_what_python_writes_comes_back():
    assert intake.parse_json('{"a": [NaN, -Infinity, 1e308, 12345678901234567890123]}')["a"][1:] == [
        float("-inf"),
        1e308,
        12345678901234567890123,
    ]
    assert intake.parse_json("[" * 64 + "]" * 64)


def test_a_file_is_read_up_to_a_size(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    assert intake.read_bytes(tmp_path / "a") == b"12345"
    assert list(intake.read_pieces(tmp_path / "a", 2)) == [b"12", b"34", b"5"]
    with pytest.raises(OSError, match="it has 5 bytes, expected at most 4"):
        intake.read_bytes(tmp_path / "a", 4)


@pytest.mark.parametrize("read", [intake.read_bytes, intake.read_json, lambda path: list(intake.read_pieces(path, 9))])
def test_nothing_is_read_that_never_ends(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    for name, path in (("zero", "/dev/zero"), ("kmsg", "/proc/kmsg"), ("link", tmp_path / "pipe")):
        (tmp_path / name).symlink_to(path)
        with pytest.raises(OSError, match="it is not a regular file but"):
            read(tmp_path / name)
    for name in ("a\0b", "a\ud800"):
        with pytest.raises(OSError, match="no file can have such a name"):
            read(name)
