"""Lines of user code, as opposed to Python's, torch's and the agent's own: for messages about errors and random numbers."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Tuple

import torch

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_AGENT = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # this file is one folder below it
_PYTHON = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED = (_PYTHON + "site-packages", _PYTHON + "dist-packages")
_WORKLOADS = os.path.join(_AGENT, "workloads") + os.sep


def is_user_code(filename: str) -> bool:
    """Tell whether a source file is user code; shipped workloads and installed models count as such."""
    path = os.path.abspath(filename)
    if path.startswith((_TORCH, _AGENT)):
        return path.startswith(_WORKLOADS)
    return path.startswith(_INSTALLED) or not (path.startswith(_PYTHON) or filename.startswith("<frozen "))


def find_running_line() -> str:
    """Return the innermost line of user code that is running, without a path: ``model.py:12 in forward``."""
    return _format_line(*find_running_place())


def find_running_place() -> Tuple[str, int, str]:
    """Return path, line and function of the innermost line of user code that is running."""
    frame = sys._getframe(1)  # noqa: SLF001  documented; inspect.stack reads source files and takes milliseconds
    while frame.f_back is not None and not is_user_code(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name


def describe_error(error: BaseException, *, sentence: bool = False) -> str:
    """Return an exception as one line of text, with the line of user code that it came from.

    Args:
        error: With its traceback.
        sentence: Keep only the first sentence of the message: some versions of torch go on with a list of alternatives.
    """
    message = (str(error).strip().splitlines() or ["without a message"])[0]
    if sentence:
        message = message.partition(". ")[0]
    return "%s: %s (%s)" % (type(error).__name__, message, find_error_line(error))


def find_error_line(error: BaseException) -> str:
    """Return the innermost line of user code in an exception's traceback, or else the line that raised it."""
    steps = traceback.extract_tb(error.__traceback__)
    step = ([step for step in steps if is_user_code(step.filename)] or list(steps))[-1]
    return _format_line(step.filename, step.lineno or 0, step.name)


def _format_line(filename: str, line: int, function: str) -> str:
    return "%s:%d in %s" % (os.path.basename(filename), line, function)
