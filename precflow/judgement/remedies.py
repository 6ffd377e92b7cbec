"""What would decide the records that what was kept of them leaves open."""

from __future__ import annotations

from collections.abc import Sequence

from precflow.comparison.measures import Measure
from precflow.config.schema import RunConfig
from precflow.config.words import ESCALATING

_TENSORS = "tensors"
_ROOM = " as far as capture.budget has room"
_CHOOSING = "region"  # the stage that chooses what the second pass looks into


def remedy(undecided: Sequence[Measure], config: RunConfig, *, second_pass: bool) -> str:
    """Return in words what would decide these records; ``""`` where more of them would not.

    Args:
        undecided: Records that no limit could decide. Of those whose tensors were read, nothing more can be kept.
        config: The recipe. Dumps that it was given cannot be recorded again by it.
        second_pass: The tensors of the suspect calls have been fetched already.
    """
    if all(measure.evidence == _TENSORS for measure in undecided):
        return ""
    capture = config.capture
    if config.reference.dump or config.target.dump:
        return "their tensors would: record both sides again with capture=tensors"
    if capture.detail != ESCALATING:
        again = "capture=tensors" if capture.keep_last else "capture=escalating"  # which exclude each other
        return f"their tensors would: {again}"
    if config.stages and _CHOOSING not in config.stages:
        return f"the second pass would fetch their tensors, and stages leaves {_CHOOSING} out"
    return _after(config) if second_pass else f"the second pass fetches their tensors{_ROOM if capture.budget else ''}"


def _after(config: RunConfig) -> str:
    """Return what would decide records that a second pass was not about."""
    if config.capture.budget:
        return "the second pass had no room for their tensors: a larger capture.budget"
    return "the second pass did not fetch their tensors: capture=tensors keeps those of every record"
