"""Fixtures of the comparison: the dump builder of the reader's tests, and dumps that keep less than tensors."""

import dump_builder as builder
import evidence as _evidence
import pytest


@pytest.fixture(scope="session")
def evidence():
    """Return dumps that keep less than the tensors, and what measures them."""
    return _evidence


@pytest.fixture
def build(tmp_path):
    """Return a function that starts a dump in a folder of its own."""
    return lambda name="dump", **facts: builder.DumpBuilder(tmp_path / name, **facts)
