"""Switches ``torch.compile`` off, so that the modules of a script run as they were written."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import Iterator

import torch

_SWITCH = "TORCHDYNAMO_DISABLE"  # read when a function is compiled


@contextmanager
def compile_nothing(*, unless: bool) -> Iterator[None]:
    """Run compiled modules and functions as they were written until the block ends.

    Args:
        unless: Do nothing.
    """
    if unless:
        yield
    elif hasattr(torch.compiler, "set_stance"):  # torch 2.6
        torch.compiler.set_stance("force_eager")
        try:
            yield
        finally:
            torch.compiler.set_stance("default")
    else:  # compile() returns what it was given, without the wrapper that newer versions put around it
        before = os.environ.get(_SWITCH)
        os.environ[_SWITCH] = "1"
        try:
            yield
        finally:
            os.environ.pop(_SWITCH)
            if before is not None:
                os.environ[_SWITCH] = before
