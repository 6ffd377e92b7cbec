"""What the tests of curves share."""

import pytest


@pytest.fixture
def log(tmp_path):
    """Return a function that writes a log and returns its path."""

    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write
