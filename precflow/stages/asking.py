"""Sends a request to the agent of one side, with what the recipe says about that side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precflow.sides.launch import run_agent
from precflow.stages.job import Job


def ask(job: Job, side: str, request: Mapping[str, Any], folder: Path) -> None:
    """Run the agent of ``side`` on ``request``; what it makes is in ``folder`` then.

    Raises:
        SideError: It refused, crashed, hung, or left no result.
    """
    settings, timeout = job.side(side), job.config.capture.timeout
    run_agent(
        request,
        side=settings,
        folder=folder,
        variables=settings.variables,
        timeout=timeout,
        on_progress=job.say,
        agents=job.agents,
    )
