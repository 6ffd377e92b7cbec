"""Evidence about the curves of a training run: of the loss, or of the first curve that is not aligned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from precflow.curves.outcome import CurveOutcome
from precflow.diagnosis.evidence.pieces import Evidence

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison

EVIDENCE = {
    "curve": Evidence("curve", "Name of the curve that the following is about: the first that is misaligned, else the loss."),
    "curve_verdict": Evidence("verdict of the curve", "aligned, misaligned or inconclusive."),
    "curve_compared": Evidence("steps compared", "Steps at which both sides are finite."),
    "curve_first_step": Evidence("first step", "The first of them."),
    "curve_first_abs_error": Evidence("difference of the first step", "Absolute."),
    "curve_first_rel_error": Evidence("relative difference of the first step", "Of the reference there.", unit="%"),
    "curve_max_abs_error": Evidence("largest difference", "Absolute."),
    "curve_max_abs_step": Evidence("step of the largest difference", "Where it is."),
    "curve_mean_rel_error": Evidence("mean relative difference", "Mean over the steps, as a share of the reference.", unit="%"),
    "curve_smooth_rel_error": Evidence(
        "largest difference of the smoothed curves", "Of running means, as a share of the reference.", unit="%"
    ),
    "curve_parted_step": Evidence(
        "apart for good from step", "From there the smoothed curves stay more than 1 % apart; -1 if they do not."
    ),
    "curve_apart_from": Evidence("apart from step", "Start of the longest stretch in which they are apart; -1 without one."),
    "curve_apart_to": Evidence("apart to step", "Last step of that stretch."),
    "curve_equal_until": Evidence(
        "equal up to step", "The step before they are apart, if the sides have the same bits until then; else -1."
    ),
    "curve_mean_difference": Evidence("mean difference", "Target minus reference, with its sign."),
    "curve_one_sided": Evidence("to one side", "The mean difference is more than three times its uncertainty."),
    "curve_above": Evidence("steps with the target above", "Share of the steps.", unit="%"),
    "curve_growth": Evidence(
        "growth of the difference",
        "none, steady, noise (like the root of the step), bias (like the step), faster, shrinks, unknown.",
    ),
    "curve_per_step": Evidence("change with each step", "Of the difference, on average."),
    "curve_per_root_step": Evidence("times the root of the step", "Size of the difference as a random walk."),
    "curve_exponent": Evidence("exponent of the step", "Fitted to the size of the difference."),
    "curve_fluctuation": Evidence(
        "largest difference between two runs of the reference", "Absolute; 0 without a further run of it."
    ),
    "curve_repeats": Evidence("further runs of the reference", "Their number."),
    "curve_shift": Evidence(
        "steps to add on the target",
        "Shifting the target by so many steps makes the curves agree far better; 0 if no shift does.",
    ),
    "curve_nonfinite_reference": Evidence("steps with NaN or Inf on the reference", "Their number."),
    "curve_nonfinite_target": Evidence("steps with NaN or Inf on the target", "Their number."),
    "curve_first_nonfinite": Evidence("first step with NaN or Inf", "-1 without one."),
    "curve_first_nonfinite_side": Evidence("side with it first", "reference, target or both."),
    "curve_spikes_reference": Evidence("steps with a spike on the reference alone", "In order; of both sides at most 20."),
    "curve_spikes_target": Evidence("steps with a spike on the target alone", "The same on the target."),
    "curve_relation": Evidence("the target is", "The factor or the amount in words, with four digits; else empty."),
    "curve_factor": Evidence("target / reference at every step", "If one factor explains the whole difference; else 0."),
    "curve_integer": Evidence("factor, or its inverse, is the whole number", "0 if neither is one."),
    "curve_offset": Evidence("target - reference at every step", "If one amount explains the whole difference; else 0."),
    "curve_left": Evidence("not explained by it", "Share of the difference, by root mean square.", unit="%"),
    "curve_resumed": Evidence(
        "resumed where they come apart", "The side whose log was resumed at the step where the curves come apart; else empty."
    ),
    "curve_restarts": Evidence("resumed", "Where a log goes back to an earlier step, in words."),
    "scale_drops_reference": Evidence(
        "steps at which the reference lowers its loss scale", "An optimizer step was skipped there because of an overflow."
    ),
    "scale_drops_target": Evidence("steps at which the target lowers its loss scale", "The same on the target."),
}

_LOSS = "loss"


def gather(run: Comparison) -> dict[str, Any]:
    """Return the evidence about the run's curves."""
    return gather_curves(run.outcomes)


def gather_curves(outcomes: Sequence[CurveOutcome]) -> dict[str, Any]:
    """Return evidence by the names of ``EVIDENCE``; nothing without a curve that was compared.

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
        "curve_equal_until": found.equal_until,
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
