import os

import pytest

from precflow.files import open_regular


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
