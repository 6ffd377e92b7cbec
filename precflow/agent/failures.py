"""The one exception of the agent: something it could not do, in a form that the judge can show.

The agent cannot use the judge's exception classes: a failure becomes one JSON line on stdout and exit code 2.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional

from precflow.agent import redaction

KINDS = (
    "bad_request",  # the request itself
    "device_missing",  # this machine has none of the wanted devices
    "untrusted",  # a _target_ of a package that the user has not trusted
    "unsupported",  # an operator, element type, level or library version
    "workload",  # the user's model, inputs or weights
    "memory",  # too little of it for what is computed
    "budget",  # the dump would exceed its budget
    "disk_full",
    "read_only",
    "unwritable",
    "busy",  # another process writes this dump
)


class AgentError(Exception):
    """Something that the agent could not do. Secrets are removed from all texts.

    Args:
        kind: One of ``KINDS``.
        message: What was wrong, what was expected, and what was found.
        next_step: What to do about it.
        trace: Traceback of an exception of user code; ``""`` if the message is enough.
        where: Where user code raised it, see ``session/failed_call.py``.
    """

    def __init__(
        self, kind: str, message: str, next_step: str = "", trace: str = "", where: Optional[Mapping[str, Any]] = None
    ) -> None:
        message, next_step, trace = map(redaction.redact_text, (message, next_step, trace))
        super().__init__(message + ("\n   " + next_step if next_step else ""))  # what a traceback shows
        self.kind = kind
        self.message = message
        self.next_step = next_step
        self.trace = trace
        self.where = redaction.redact(where or {})
