"""Evidence about the curves of a training run: of the loss, or of the first curve that is not aligned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from precflow.curves.outcome import CurveOutcome

_LOSS = "loss"


def gather_curves(outcomes: Sequence[CurveOutcome]) -> dict[str, Any]:
    """Return evidence by the names of ``names.EVIDENCE``; nothing without a curve that was compared.

    Rules speak of one curve. The loss comes first, if it is not aligned; then the others in order of the recipe.
    """
    scales = next((one.scale_drops for one in outcomes if one.scale_drops), {})
    skipped: dict[str, Any] = {f"scale_drops_{side}": list(drops) for side, drops in scales.items()}
    compared = [one for one in outcomes if one.found.compared or one.found.first_nonfinite >= 0]
    if not compared:
        return skipped
    one = min(compared, key=lambda one: (one.verdict != "misaligned", one.name != _LOSS))
    found, growth = one.found, one.growth
    return {
        **skipped,
        "curve": one.name,
        "curve_verdict": one.verdict,
        "curve_compared": found.compared,
        "curve_first_step": found.first_step,
        "curve_first_abs_error": found.first_abs_error,
        "curve_first_rel_error": found.first_rel_error,
        "curve_max_abs_error": found.max_abs_error,
        "curve_max_abs_step": found.max_abs_step,
        "curve_mean_rel_error": found.mean_rel_error,
        "curve_smooth_rel_error": found.smooth_rel_error,
        "curve_parted_step": found.parted_step,
        "curve_apart_from": found.apart_from,
        "curve_apart_to": found.apart_to,
        "curve_mean_difference": found.mean_difference,
        "curve_one_sided": found.one_sided,
        "curve_above": found.above,
        "curve_growth": growth.kind,
        "curve_per_step": growth.per_step,
        "curve_per_root_step": growth.per_root_step,
        "curve_exponent": growth.exponent,
        "curve_fluctuation": one.fluctuation,
        "curve_repeats": one.repeats,
        "curve_shift": one.shift,
        "curve_nonfinite_reference": found.nonfinite_reference,
        "curve_nonfinite_target": found.nonfinite_target,
        "curve_first_nonfinite": found.first_nonfinite,
        "curve_first_nonfinite_side": found.first_nonfinite_side,
        "curve_spikes_reference": [spike.step for spike in found.spikes if spike.side == "reference"],
        "curve_spikes_target": [spike.step for spike in found.spikes if spike.side == "target"],
        "curve_relation": one.relation.words,
        "curve_factor": one.relation.number if one.relation.kind == "factor" else 0.0,
        "curve_integer": one.relation.integer,
        "curve_offset": one.relation.number if one.relation.kind == "offset" else 0.0,
        "curve_left": one.relation.left,
        "curve_resumed": one.resumed,
        "curve_restarts": list(one.restarts),
    }
