"""What an agent could not do, in a form that the judge can show.

The agent has no access to the judge's exception tree: a failure becomes one JSON line on stdout and exit code 2.
"""

from __future__ import annotations

KINDS = ("device_missing", "bad_request", "workload", "disk_full", "unsupported", "budget", "untrusted")


class AgentError(Exception):
    """Something that the agent could not do.

    Args:
        kind: One of ``KINDS``.
        message: What was wrong, what was expected, what came.
        next_step: What to do about it.
    """

    def __init__(self, kind: str, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.next_step = next_step
