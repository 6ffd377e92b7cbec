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
    "whole and infinite": ("[" + "9" * 330 + "]", "9999... is beyond what a float64 holds"),
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


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_numbers_can_be_asked_to_be_finite(tmp_path, word):
    (tmp_path / "a.json").write_text(f'{{"bytes": {word}}}')
    with pytest.raises(ValueError, match=f"it has {word} where a number is expected"):
        intake.read_json(tmp_path / "a.json", finite=True)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1.0, -1, True, "7", None, [3], 1 << 70])
def test_a_count_is_a_whole_number_from_0_up(value):
    assert intake.check_count(0, "the size") == 0
    with pytest.raises(ValueError, match=r"the size is .*, expected a whole number from 0 up"):
        intake.check_count(value, "the size")


def test_lines_that_are_no_json_do_not_hide_the_others():
    text = '{"loss": 1}\n\n' + "[" * 100_000 + "\n" + "8" * 5000 + '\n{"loss": 1e400}\n{"loss": 2}\n{"lo'
    values = list(intake.parse_lines(text))
    assert [number for number, _ in values] == [1, 3, 4, 5, 6, 7]
    assert [value for _, value in values if not isinstance(value, ValueError)] == [{"loss": 1}, {"loss": 2}]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_text_is_read_in_the_encoding_that_it_begins_with(tmp_path, encoding):
    (tmp_path / "log").write_bytes("verlust 0.5 \u2713".encode(encoding))
    assert intake.read_text(tmp_path / "log") == "verlust 0.5 \u2713"
    (tmp_path / "log").write_bytes(b"loss \xff 0.5")
    assert intake.read_text(tmp_path / "log") == "loss \ufffd 0.5"
    with pytest.raises(OSError, match="expected at most 4"):
        intake.read_text(tmp_path / "log", 4)


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
        with pytest.raises(OSError, match="not a valid file name"):
            read(name)
