"""Libraries that only some workloads need."""

from __future__ import annotations

import importlib
import os
from typing import Any

from precflow.agent.failures import AgentError


def require(module: str) -> Any:
    """Import and return a module of the extra ``models``, and keep it from asking for anything on the network.

    Raises:
        AgentError: ``workload``: not installed in this side's interpreter; names the extra.
    """
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        os.environ.setdefault(name, "1")  # read when the library is imported
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        library = module.partition(".")[0]
        if error.name != library:
            raise  # the library is installed, but one of its own imports is missing
        message = "%s is not installed in this side's interpreter" % library
        raise AgentError("workload", message, "pip install 'precflow[models]', or %s alone" % library) from error
