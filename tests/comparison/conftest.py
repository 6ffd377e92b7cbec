"""Fixtures of the comparison: the dump builder of the reader's tests, and dumps that keep less than tensors."""

import importlib.util
from pathlib import Path

import pytest


def _loaded(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


builder = _loaded("dump_builder", Path(__file__).parents[1] / "dumps" / "builder.py")
_evidence = _loaded("evidence", Path(__file__).parent / "evidence.py")


@pytest.fixture(scope="session")
def evidence():
    """Return dumps that keep less than the tensors, and what measures them."""
    return _evidence


@pytest.fixture
def build(tmp_path):
    """Return a function that starts a dump in a folder of its own."""
    return lambda name="dump", **facts: builder.DumpBuilder(tmp_path / name, **facts)
