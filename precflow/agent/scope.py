"""Checking a scope before the model runs: a pattern that matches nothing would give an empty dump."""

from __future__ import annotations

import difflib
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Sequence

from precflow.agent.contract import OUTSIDE, module_text
from precflow.agent.failures import AgentError

if TYPE_CHECKING:
    import torch

_SHOWN = 5  # names that a message offers


def check_scope(patterns: Sequence[str], model: torch.nn.Module) -> None:
    """Make sure that every pattern names a module: what a misspelt one was to record would be missed in silence.

    Args:
        patterns: Patterns of module names, as in ``capture.scope``; ``(model)`` is the model itself.
        model: The model that will run.

    Raises:
        AgentError: ``bad_request``: a pattern matches no module; offers names that are near, or the outermost ones.
    """
    names = [module_text(name) for name, _ in model.named_modules()]
    idle = [pattern for pattern in patterns if pattern != OUTSIDE and not any(fnmatchcase(name, pattern) for name in names)]
    if not idle:
        return
    near = [name for pattern in idle for name in difflib.get_close_matches(pattern.rstrip(".*"), names, n=_SHOWN)]
    outermost = [name for name in names if "." not in name]
    shown = ", ".join((near or outermost)[:_SHOWN])
    message = "capture.scope=%s matches no module of %s (%d modules)" % (idle, type(model).__name__, len(names))
    raise AgentError("bad_request", message, "modules are named like this: %s" % shown)
