"""Evidence about artefacts: calls that warm up, in which a side computed or was given nothing but 0, and rows of padding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from precflow.diagnosis.evidence.pieces import Evidence
from precflow.diagnosis.residual import OUTSIDE
from precflow.dumps.batches import find_given
from precflow.dumps.warm_up import BOTH, find_warm_ups
from precflow.judgement.artefacts import PADDING

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison

EVIDENCE = {
    "warm_ups": Evidence(
        "calls that warm up",
        "Up to five, with the side whose outputs, or inputs, are all 0 there, and not in later calls.",
    ),
    "padding_differs": Evidence("rows of padding", "Why records differ that agree for all real tokens; absent without one."),
    "padding_records": Evidence(
        "records that differ there alone",
        "Their real tokens agree; of a sketch, their norms do.",
    ),
    "residuals_outside": Evidence(
        "residuals added elsewhere", "Up to five modules whose outputs differ by an input of theirs, in a module that agrees."
    ),
}
_SHOWN = 5


def gather(run: Comparison) -> dict[str, Any]:
    """Return the calls that warm up on one side, and the records that differ in padding; nothing without one."""
    given = find_given(run.target).warm_up
    found = [each.text for each in find_warm_ups(run.reference.calls(), run.target.calls()) if each.side != BOTH]
    texts = ([given] if given else []) + found
    reasons = [one.reason for one in run.judged if one.status == "artefact"]
    passing = [one.reason for one in run.judged if one.status == "pass"] if run.region.suspects else []
    padded = [reason for reason in (*reasons, *passing) if reason.startswith(PADDING)]
    residuals = [reason for reason in reasons if reason.endswith(OUTSIDE)]
    return (
        ({"warm_ups": texts[:_SHOWN]} if texts else {})
        | ({"padding_differs": padded[0], "padding_records": len(padded)} if padded else {})
        | ({"residuals_outside": residuals[:_SHOWN]} if residuals else {})
    )
