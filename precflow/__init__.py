"""precflow shows whether a PyTorch model that moved to another device still computes the same numbers.

In Python there are five functions, imported when they are first used: ``assert_aligned`` for unit tests, ``compare`` for two
tensors or two dumps, ``read`` for the result of an earlier run, ``history`` for all runs of a recipe, and ``capture`` for a
loop of your own, which needs nothing but torch. What ``compare``, ``read`` and ``history`` return gives tables of pandas.
"""

import importlib
from typing import TYPE_CHECKING, List

from precflow.version import __version__

if TYPE_CHECKING:
    from precflow.agent.failures import AgentError
    from precflow.agent.own_loop import capture
    from precflow.errors import PrecflowError
    from precflow.library import assert_aligned, compare, history, read
    from precflow.result import Compared, Comparison

__all__ = [
    "AgentError",
    "Compared",
    "Comparison",
    "PrecflowError",
    "__version__",
    "assert_aligned",
    "capture",
    "compare",
    "history",
    "read",
]

_HOME = {
    "AgentError": "precflow.agent.failures",
    "Compared": "precflow.result",
    "Comparison": "precflow.result",
    "PrecflowError": "precflow.errors",
    "assert_aligned": "precflow.library",
    "capture": "precflow.agent.own_loop",
    "compare": "precflow.library",
    "history": "precflow.library",
    "read": "precflow.library",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError("module 'precflow' has no attribute %r" % (name,))
    try:
        return getattr(importlib.import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if error.name != _HOME[name]:
            raise
        message = "%s is not in the packed agent, which can only capture: install precflow for precflow.%s" % (error.name, name)
        raise ImportError(message) from error


def __dir__() -> List[str]:
    return __all__
