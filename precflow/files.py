"""Files that are looked at once they are open, so that nothing else is read in their place; the agent reads so too."""

from __future__ import annotations

from precflow.agent.intake import open_regular

__all__ = ["open_regular"]
