"""Which lines are the user's: neither Python's, torch's nor the agent's own."""

from __future__ import annotations

import os
import sys
import traceback

import torch

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_AGENT = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # this file is one folder below it
_PYTHON = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED = (_PYTHON + "site-packages", _PYTHON + "dist-packages")
_WORKLOADS = os.path.join(_AGENT, "workloads") + os.sep


def is_users(filename: str) -> bool:
    """Tell whether a source file is the user's; the shipped workloads and installed models count as such."""
    path = os.path.abspath(filename)
    if path.startswith((_TORCH, _AGENT)):
        return path.startswith(_WORKLOADS)
    return path.startswith(_INSTALLED) or not (path.startswith(_PYTHON) or filename.startswith("<frozen "))


def running_place() -> str:
    """Return the innermost line of the user's that is running, without a path: ``model.py:12 in forward``."""
    frame = sys._getframe(1)  # noqa: SLF001  documented; inspect.stack reads source files and takes milliseconds
    while frame.f_back is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return _text(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def error_text(error: BaseException, *, sentence: bool = False) -> str:
    """Return what an exception says, in one line with the place it came from.

    Args:
        error: With its traceback.
        sentence: Of its first line the first sentence alone: some versions of torch go on with all that they could do.
    """
    said = (str(error).strip().splitlines() or ["without a message"])[0]
    return "%s: %s (%s)" % (type(error).__name__, said.partition(". ")[0] if sentence else said, place_of_error(error))


def place_of_error(error: BaseException) -> str:
    """Return the innermost line of the user's that an exception came through, or where it was raised."""
    steps = traceback.extract_tb(error.__traceback__)
    step = ([step for step in steps if is_users(step.filename)] or list(steps))[-1]
    return _text(step.filename, step.lineno or 0, step.name)


def _text(filename: str, line: int, function: str) -> str:
    return "%s:%d in %s" % (os.path.basename(filename), line, function)
