"""Evidence about the parts of a model that were run on the reference's inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from precflow.diagnosis.chain import INHERITS, TO_BLAME, name_starts
from precflow.diagnosis.evidence.pieces import Evidence

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison

EVIDENCE = {
    "parts_to_blame": Evidence("parts to blame", "Parts that are over their limit on the reference's inputs, in order."),
    "parts_that_inherit": Evidence("parts that inherit", "Parts that are over their limit on their own inputs alone."),
    "part_error": Evidence("error of the first part to blame", "On the reference's inputs, by its tightest limit."),
    "part_limit": Evidence("limit of the first part to blame", "In the same metric."),
    "part_starts": Evidence("first suspect inside that part", "The first suspect in that part; empty without one."),
    "mend": Evidence(
        "smallest mend", "The smallest set of parts or modules that was raised and made the run pass; empty without one."
    ),
    "mend_price": Evidence("its time, in times of today's", "Median over timed rounds in turn with the run as it is."),
    "mends_tried": Evidence("mends that were tried", "Sets of parts that were raised, whether they passed or not."),
}


def gather(run: Comparison) -> dict[str, Any]:
    """Return what is known of the parts; nothing if the recipe names none."""
    parts = name_starts(run.parts, [(suspect.record, suspect.name) for suspect in run.region.suspects])
    if not parts:
        return {}
    blamed = [part for part in parts if part.state == TO_BLAME]
    found: dict[str, Any] = {
        "parts_to_blame": [part.name for part in blamed],
        "parts_that_inherit": [part.name for part in parts if part.state == INHERITS],
    }
    if blamed:
        found["part_starts"] = blamed[0].starts
        if blamed[0].forced is not None:
            found |= {"part_error": blamed[0].forced.error, "part_limit": blamed[0].forced.limit}
    tried = [mend for mend in run.mends if mend.raised]
    if tried:
        found["mends_tried"] = [mend.title for mend in tried]
    for mend in tried:
        if mend.smallest:
            found |= {"mend": mend.title} | ({"mend_price": mend.price.ratio} if mend.price else {})
    return found
