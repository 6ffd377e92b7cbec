"""No variable and no user configuration of the machine reaches these tests; small dumps are written by hand."""

import os
import sys

import dump_builder as builder
import pytest

from precflow import cli


@pytest.fixture(autouse=True)
def _clean(clean):
    """Take the machine's own settings away."""


@pytest.fixture
def build(tmp_path):
    """Return a function that starts a dump in a folder of its own."""
    return lambda name="dump", **facts: builder.DumpBuilder(tmp_path / name, **facts)


@pytest.fixture
def behind_a_closed_pipe(monkeypatch):
    """Return a function that runs a command whose stdout nobody reads any more, as ``| true`` does, and returns its code."""

    def run(*words):
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "w", encoding="utf-8") as stream, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            return cli.main(words)

    return run
