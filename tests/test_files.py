import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from precflow.files import open_regular, replacing, write_bytes, write_text


def test_a_regular_file_is_opened_to_be_read(tmp_path):
    (tmp_path / "a").write_bytes(b"text")
    (tmp_path / "link").symlink_to("a")
    for name in ("a", "link"):
        with open_regular(tmp_path / name) as stream:
            assert stream.read() == b"text"


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/proc/kmsg", "/proc/self/status", "/"])
def test_what_may_never_end_is_not_opened(path, tmp_path):
    with pytest.raises(OSError, match="it is not a regular file but"):
        open_regular(tmp_path / path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is not a regular file but"):
        open_regular(tmp_path / "pipe")


def test_a_file_that_turns_into_a_pipe_is_looked_at_once_open(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"text")
    os.mkfifo(tmp_path / "pipe")
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, flags: real(tmp_path / "pipe", flags))
    with pytest.raises(OSError, match="it is not a regular file but"):
        open_regular(tmp_path / "a")


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / ("long" * 63)  # as long as a name may be
    write_text(path, "first\n")
    write_bytes(path, b"second\n")
    assert path.read_bytes() == b"second\n"
    assert list(tmp_path.iterdir()) == [path]


def test_letters_that_utf_8_lacks_are_escaped(tmp_path):
    write_text(tmp_path / "a", "caf\u00e9 \ud800")
    assert (tmp_path / "a").read_bytes() == b"caf\xc3\xa9 \\ud800"


def test_the_old_file_stays_where_writing_failed(tmp_path):
    path = tmp_path / "a"
    write_text(path, "old")

    def fail():
        with replacing(path) as temporary:
            temporary.write_text("half of the n")
            assert path.read_text() == "old"
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_that_write_the_same_file_do_not_disturb_each_other(tmp_path):
    path = tmp_path / "a"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: write_text(path, str(number) * 100_000), range(8)))
    assert len(set(path.read_text())) == 1
    assert path.stat().st_size == 100_000
    assert list(tmp_path.iterdir()) == [path]
