"""Fixtures of the reader's tests."""

import dump_builder as builder
import pytest


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
