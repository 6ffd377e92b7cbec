"""The compiled pass needs numba: extra `fast`, part of extra `test`."""

from pathlib import Path

import pytest

pytest.importorskip("numba")
HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items):
    """Keep these tests on one worker: each compiled form takes seconds, and is compiled once in a process."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group("compiled"))
