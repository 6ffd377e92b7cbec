"""Weights that something else writes after the optimizer's step, on one side: an average that is left in, a checkpoint.

The header says how far each weight has moved from before a step until the next one begins; the optimizer's record says what
its step has left. If the first differs by more than the second does, something wrote in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from precflow.agent.contract import OPTIMIZER, OUTPUT, join_names, parse_identity
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.dumps.dtypes import FLOATS, float_facts

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison

EVIDENCE = {
    "written_after": Evidence(
        "weights are written after the step", "Number of the step, whose own results agree; absent if there is none."
    ),
    "written_weights": Evidence("weights that move otherwise", "Up to five, with how far they move on both sides."),
    "written_share": Evidence("share of them", "Of the parameters whose step agrees.", unit="%"),
}

_TIMES = 4.0  # what a weight has moved further, over the difference that the step has left: samples stand for the whole
_UNITS = 16.0
_SHOWN = 5
_AGREES = frozenset({"pass", "accepted"})


def gather(run: Comparison) -> dict[str, Any]:
    """Return the first step after which weights differ that it has left alike."""
    if not run.region.suspects or run.blockers:
        return {}
    here, there = run.reference.header.updates, run.target.header.updates
    agree: dict[int, dict[str, float]] = {}
    for measure, judged in zip(run.measures, run.judged, strict=True):
        if measure.phase == OPTIMIZER and judged.status in _AGREES:
            identity = parse_identity(measure.record)
            if identity.role == OUTPUT and "." not in identity.index and identity.rank == 0:
                left = measure.metrics.get("relative_l2") or 0.0
                agree.setdefault(identity.step, {})[join_names(identity.module, identity.index)] = left
    for step, names in sorted(agree.items()):
        known = [name for name in names if all(name in side and step in side[name].moved for side in (here, there))]
        other = [
            f"{name}: {here[name].moved[step]:.3g} / {there[name].moved[step]:.3g}"
            for name in known
            if _is_written(here[name].moved[step], there[name].moved[step], names[name], (here[name].dtype, there[name].dtype))
        ]
        if other:
            share = len(other) / len(known)
            return {"written_after": step, "written_weights": other[:_SHOWN], "written_share": share}
    return {}


def _is_written(moved: float, other: float, left: float, dtypes: tuple[str, str]) -> bool:
    """Tell whether a weight has moved further on one side than what its step has left explains; none stands still."""
    rounding = max(2.0 ** -float_facts(dtype).digits if dtype in FLOATS else 1.0 for dtype in dtypes) * _UNITS
    return moved > 0.0 and other > 0.0 and abs(moved - other) > _TIMES * left + rounding
