"""Dumps for screens, written by hand."""

import dump_builder as builder
import pytest


@pytest.fixture
def build(tmp_path):
    """Return a function that starts a dump in a folder of its own."""
    return lambda name="dump", **facts: builder.DumpBuilder(tmp_path / name, **facts)
