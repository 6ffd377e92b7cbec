"""Fixtures of the reader's tests."""

import importlib.util
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("dump_builder", Path(__file__).parent / "builder.py")
builder = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(builder)


@pytest.fixture
def build(tmp_path):
    """Return a function that starts a dump in a folder of its own."""
    return lambda name="dump", **facts: builder.DumpBuilder(tmp_path / name, **facts)


@pytest.fixture
def content_of():
    """Return the function that makes content ids."""
    return builder.content_of


@pytest.fixture
def with_checksum():
    """Return the function that gives plain data the checksum over all else in it."""
    return builder.with_checksum
