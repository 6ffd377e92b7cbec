"""All evidence that a rule may use, by name: its label on a screen and what it means.

A rule that uses any other name is refused when it is loaded. Evidence about a run stands in the module that gathers it
(:mod:`precflow.diagnosis.evidence.pieces`); here is what several modules gather together, and what is known of a suspect.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from precflow.diagnosis.evidence.pieces import Evidence, Piece, list_of_run, list_of_suspect

_RUN = {
    "ranks": Evidence("ranks", "Number of processes; only if there are several."),
    "read_early": Evidence(
        "results that are read too early",
        "Collectives whose result the target uses before it has arrived, and the reference not.",
    ),
    "first_rank": Evidence("rank of the first suspect", "Only if there are several."),
    "only_rank": Evidence(
        "only this rank", "All suspects are on one rank, and no other fails before its first collective of that step."
    ),
    "uneven_parts": Evidence(
        "parts of the batch", "Numbers of samples of the ranks, where they are uneven and the other side is a single process."
    ),
    "uneven_factors": Evidence(
        "gradients of the parts, times those of the single process", "At the model's output, for each rank."
    ),
    "uneven_explains": Evidence("explained by their sizes", "The factor of each rank is that of its part's size."),
    "collectives_missing": Evidence(
        "collectives that the target does not call",
        "And what they carry, as far as a suspect depends on it; absent if there are none.",
    ),
    "collectives_extra": Evidence("collectives that only the target calls", "The same of the reference."),
    "gradients_unreduced": Evidence(
        "they carry gradients", "Whether these collectives carry gradients of parameters; absent without such collectives."
    ),
    "recipe": Evidence("recipe", "Name of the recipe."),
    "keep_tensors": Evidence(
        "keeps tensors", "The override with which a run of this recipe keeps the tensors of its suspects."
    ),
    "reference_dtype": Evidence("reference dtype", "Floating point type of the reference."),
    "target_dtype": Evidence("target dtype", "Floating point type of the target."),
    "low_precision": Evidence("low precision", "Either side computes in 16 bits or fewer."),
    "damage": Evidence("damaged", "What is missing, torn or cut short in the dumps, or was never sealed; up to five."),
    "emulated": Evidence("emulated", "Either side is emulated."),
    "failing": Evidence("records over their limit", "Number of records that fail, or differ in shape, dtype or finiteness."),
    "accepted_count": Evidence("accepted differences", "Number of records whose difference the recipe accepts."),
    "suspect_count": Evidence("calls that introduce an error", "Number of suspects."),
    "first_suspect": Evidence("first suspect", "Its name; empty without one."),
    "first_record": Evidence("its record", "Name of the first suspect's failing output; empty without one."),
    "first_suspect_phase": Evidence("part of the step it is in", "Phase of the first suspect; empty without one."),
    "later_phases": Evidence(
        "parts of the step behind the start",
        "Phases that follow the one in which the run starts, if that is in the first recorded step; empty otherwise.",
    ),
    "suspect_kinds": Evidence(
        "kinds of them", "Operator, class of module and phase of the suspects that evidence about the run does not tell."
    ),
    "suspects_all_matmul": Evidence(
        "all of them multiply matrices", "Every suspect is of the family matmul; false without any."
    ),
    "weights_different": Evidence("weights that differ", "Up to five names."),
    "weights_different_count": Evidence("number of weights that differ", "Weights that differ or are on one side only."),
    "weights_on_one_side_count": Evidence(
        "of them on one side only", "Weights whose name only one side has, after the rules of section `pairing`."
    ),
    "inputs_different": Evidence("inputs that differ", "Up to five names."),
    "inputs_different_count": Evidence("number of inputs that differ", "Inputs that differ or are on one side only."),
    "seed_reference": Evidence("seed of the reference", "As the agent set it."),
    "seed_target": Evidence("seed of the target", "As the agent set it."),
    "device_draws": Evidence("random numbers drawn on the device", "Operators whose numbers were not drawn on CPU and moved."),
    "device_draw_sites": Evidence(
        "where the script draws on the device", "File and line, operator and device of up to five draws of a script."
    ),
    "changed_by_watching": Evidence(
        "computes something else when it is watched", "Side, and what differs from a run without capture."
    ),
    "other_amounts": Evidence(
        "ran in all", "Steps, micro batches or calls of a model that one side made more of, with the numbers of both."
    ),
    "compiled_unseen": Evidence(
        "not seen", "What each side ran in compiled code, where nothing is recorded inside, with the number of modules."
    ),
    "draws_patch": Evidence(
        "patch", "File in the folder of the report that makes the script draw on the CPU; empty if there is none."
    ),
    "unrepeatable_reference": Evidence(
        "reference changes at", "Module and operator of records that change between equal runs, in order."
    ),
    "unrepeatable_target": Evidence("target changes at", "The same on the target."),
    "misspelt_variables": Evidence("environment variables", "Misspelt names and the names that they resemble."),
    "package_differences": Evidence(
        "packages that differ", "`name: reference / target`, those first that the recipe wants the same."
    ),
    "matmul_switches": Evidence("switch for matrix products", "TF32, HF32 and their like, in effect on one side only."),
    "convolution_switches": Evidence("switch for convolutions", "The same for convolutions."),
    "unpaired_reference": Evidence("only on the reference", "Up to five names of calls without a partner."),
    "unpaired_target": Evidence("only on the target", "The same on the target."),
    "overflow_reference": Evidence(
        "overflow begins on the reference at", "First call that makes saturated values, infinity and NaN, each with its count."
    ),
    "overflow_target": Evidence("overflow begins on the target at", "The same on the target."),
    "overflow_both": Evidence("the same call on both sides", "Calls that are the first to make a kind on both sides."),
    "overflow_kind": Evidence(
        "first on the target only", "`saturated`, `infinity` or `nan`: the first kind that only the target has."
    ),
    "overflow_starts": Evidence("where that begins", "Module and operator."),
    "overflow_ends": Evidence("kinds that follow", "Further kinds that only the target has, in order."),
    "broken_side": Evidence(
        "side with NaN in a step that the other dropped",
        "Such steps are kept (`capture.keep_last`), so that the other side had none; absent without one.",
    ),
    "broken_at": Evidence("NaN begins there at", "Module and operator of the first call that makes NaN or infinity."),
    "broken_text": Evidence("what it gives", "Call, number of elements and step."),
    "left_out_reference": Evidence(
        "steps that the reference skips",
        "Its gradients are not finite and its optimizer did nothing; the target's made the step.",
    ),
    "left_out_target": Evidence("steps that the target skips", "The same on the target."),
    "left_out_both": Evidence("steps that both skip", "Gradients are not finite, and neither optimizer did anything."),
    "still": Evidence(
        "not updated on one side",
        "Which parameters, or tensors of the optimizer's state, move on one side only, and why; absent if none does.",
    ),
    "still_why": Evidence("why it is not updated", "frozen, not held, no gradient, rounded or lost."),
    "still_state": Evidence(
        "tensor of the state that stands still", "Though its weight moves; empty where the weight itself stands still."
    ),
    "still_side": Evidence("it stands still on", "reference or target."),
    "still_where": Evidence("step that moves nothing", "The optimizer's step of the first of them, as records are named."),
    "still_parameters": Evidence("they stand still", "Parameters of the earliest step, all for the same reason."),
    "still_states": Evidence("so does the state", "Tensors of the optimizer's state that one side alone changes."),
    "still_starts": Evidence("the error starts there", "Nothing fails before the update that is missing."),
    "optimizer_settings": Evidence(
        "settings of the optimizer that differ", "`name: reference / target (parameters)`, as recorded at each step."
    ),
    "optimizer_choices": Evidence(
        "class and settings that one side lacks",
        "`name: reference / target`; they choose a formula or another implementation of the same.",
    ),
    "optimizer_settings_proven": Evidence(
        "of these change the target's steps",
        "Its steps follow from them, and not from the reference's; absent if no step was computed again.",
    ),
    "optimizer_steps": Evidence(
        "steps of the optimizer computed again", "Of parameters whose tensors were kept; absent if there are none."
    ),
    "optimizer_faults": Evidence(
        "that do not follow from their own gradient", "Steps of the target whose weight or state the formula does not give."
    ),
    "optimizer_first_fault": Evidence("first of them", "Parameter; empty without one."),
    "optimizer_cause": Evidence(
        "they follow if", "Another setting than the recorded one that gives the target's weights; empty if none does."
    ),
    "optimizer_explained": Evidence("explained by that setting", "Share of the steps that do not follow.", unit="%"),
    "rate_shift": Evidence(
        "learning rates are those of the reference's step", "1: a step later, -1: a step earlier; 0 if neither."
    ),
    "gradient_factor": Evidence(
        "gradients are those of the reference times", "One factor for all parameters in the first step; absent without one."
    ),
    "gradient_factor_share": Evidence("parameters with that factor", "Of those with a gradient.", unit="%"),
    "gradients_reference": Evidence(
        "between backward and the optimizer, on the reference",
        "What happened to the gradients in the first step in which it differs; absent if it is the same.",
    ),
    "gradients_target": Evidence("the same on the target", "Such as: all multiplied by 0.13, cut off at 0.1, unchanged."),
    "gradients_step": Evidence("first in step", "Number of that step."),
    "gradients_left_side": Evidence(
        "gradients that still hold the last step's",
        "Side whose gradients are those of the other side and of its own step before; absent if there is none.",
    ),
    "gradients_left_step": Evidence("they do so first in step", "Number of the step."),
    "gradients_left_share": Evidence(
        "parameters that are such a sum", "Whose gradient is that sum, of those on both sides.", unit="%"
    ),
    "gradients_narrow": Evidence(
        "gradients of the target fit into", "16-bit type that holds all that its optimizer sees, and not the reference's."
    ),
    "mixed_precision_different": Evidence(
        "mixed precision differs",
        "`setting: reference / target` of what was in effect: level, type, modules, operators, scale.",
    ),
    "batches_shuffled": Evidence(
        "batches in another order", "The model was given the same inputs as on the reference, in other steps."
    ),
    "arguments_elsewhere": Evidence(
        "arguments that differ elsewhere", "`call: name: reference / target` of calls that are no suspects; up to five."
    ),
    "unpaired_count": Evidence("records without a partner", "Number of judged records that are on one side only."),
}
_SUSPECT = {
    "phase": Evidence("part of the step", "Phase of the call."),
    "kind": Evidence("kind", "Operator, class of its module, and phase."),
    "collective": Evidence("collective", "Name of the suspect, if it carries tensors between ranks."),
    "lost_result": Evidence(
        "collective whose result is lost in part",
        "Its result agrees, and what takes it differs by exactly the missing part; absent if there is none.",
    ),
    "lost_share": Evidence("lost", "Share of that result that is zeros in its place.", unit="%"),
    "lost_of": Evidence("counted in", "`elements`, or `energy` where only sketches were kept."),
    "lost_where": Evidence("lost at", "At which end of which axis; empty if at none."),
    "uncalled": Evidence("not called on the target", "The suspect is a collective that the target does not call; else absent."),
    "ranks_agree": Evidence(
        "every rank gives the same on both sides", "The inputs of the collective have the same bits on every rank of its group."
    ),
    "reductions": Evidence(
        "computed reduction", "Of the reference and of the target, where they differ: the one that explains what a rank got."
    ),
    "groups": Evidence("ranks that take part", "Of the reference and of the target, where they differ."),
    "left_out": Evidence("left out on the target", "Ranks without which the reduction explains what the target's rank got."),
    "name": Evidence("where", "Name of the call."),
    "record": Evidence("record", "Name of its failing output."),
    "module": Evidence("module", "Qualified name of the module."),
    "operator": Evidence("operator", "Canonical name of the operator; `module` for a module."),
    "family": Evidence(
        "family", "matmul, normalisation, softmax, activation, masking, random, reduction, attention, module, other."
    ),
    "site": Evidence("called at", "Place in the source."),
    "why_suspect": Evidence("on the graph", "Why it is under suspicion."),
    "status": Evidence("status", "Status of its output."),
    "ratio": Evidence("times its limit", "How far over its limit; above 1 fails."),
    "movement": Evidence("pure movement", "The operator only moves values."),
    "accumulated": Evidence("inputs near their limit", "An input uses more than half of its limit already."),
    "inputs_use": Evidence(
        "error of the inputs, of their limit", "Largest of the passing records that it is computed from.", unit="%"
    ),
    "inputs_equal": Evidence("inputs bitwise equal", "All inputs and weights have the same bits on both sides."),
    "inputs_differ": Evidence("an input has other bits", "Of those whose content is known on both sides."),
    "input_shapes_equal": Evidence("inputs have the same shapes", "All inputs and weights."),
    "shape_follows_values": Evidence(
        "its size depends on values", "The operator returns as many values as its inputs select, such as nonzero."
    ),
    "introduced_fault": Evidence(
        "introduces an error in place", "By float64 at the target's own inputs; absent where it was not evaluated."
    ),
    "introduced_rho": Evidence("times the reference's own error", "Against float64, each side at its own inputs."),
    "introduced_measure": Evidence(
        "shown by",
        "`rho` (size), `variance`, `slope`, `curve`, `largest` (rounding residue), `half_steps`, `other_form`, `movement` or"
        " `nonfinite`.",
    ),
    "half_steps": Evidence(
        "smallest values in steps of float16",
        "Those of a bfloat16 output are whole multiples of 2^-24, and correct ones are not; absent otherwise.",
    ),
    "introduced_factor_share": Evidence(
        "what one factor leaves, of its line",
        "Of its error in place, over the largest that rounding may leave; above 1 is more.",
    ),
    "introduced_systematic": Evidence("the error follows the values", "Not only more rounding."),
    "wired_differently": Evidence(
        "takes other inputs", "Sentences that say which call an input comes from on both sides; absent if they are the same."
    ),
    "in_place": Evidence(
        "measured at its own inputs", "The numbers below are against float64 at the target's own inputs; absent otherwise."
    ),
    "own_error": Evidence("its own error", "Norm of its error against float64 at its own inputs, relative to that."),
    "own_error_units": Evidence("its own error in roundings", "In units of one rounding of its type; near 1 if it is right."),
    "sum_type": Evidence(
        "sums fit into", "16-bit type that holds the target's sums before a bias of float32 is added; empty if none does."
    ),
    "unchanged": Evidence(
        "left as it came", "Which end of which axis has the values of an input, and the rest is right; empty if none has."
    ),
    "elements": Evidence("elements", "Number of elements of the output: one number fits any factor."),
    "few_share": Evidence(
        "elements with nearly all of the error", "Smallest share of them that carries 99 % of its energy.", unit="%"
    ),
    "few_rows": Evidence("rows with nearly all of the error", "Number of rows of the last axis."),
    "isolated": Evidence(
        "wrong alone", "The few elements, rows or columns beyond rounding, where all others are right; empty if more are."
    ),
    "isolated_extreme": Evidence("and they are the extreme ones", "The largest or smallest by value or by input."),
    "border": Evidence("the error is only at", "Which end of which axis; empty if it is not at a border."),
    "zero_share": Evidence(
        "error where the target is zero",
        "Share of the error's energy where the reference is not zero.",
        tests="zeros in place of values",
        unit="%",
    ),
    "zero_block": Evidence(
        "zeros in their block",
        "Of the smallest block around these zeros: 1 for a part that was not written.",
        unit="%",
    ),
    "clamp_value": Evidence("cut off at", "Largest or smallest value of the target, which several elements have."),
    "clamp_share": Evidence("explained by the cut", "Share of the error's energy.", tests="values that are cut off", unit="%"),
    "sign_share": Evidence(
        "only the sign differs", "Share of the error's energy at such elements.", tests="another sign", unit="%"
    ),
    "norm_change": Evidence(
        "change of norms", "Of the rows, relative to the error: near 0 for a rotation, up to 1 for a scale."
    ),
    "rows_read": Evidence(
        "reads", "What it reads in place of which rows of its table, wherever their numbers stand; empty if others are wrong."
    ),
    "first_sample_right": Evidence("the first sample agrees", "And the others do not; absent without several samples."),
    "position_growth": Evidence("grows with the position", "Relative error of the last quarter over that of the first."),
    "position_rank": Evidence("order of the errors by position", "Rank correlation, 1 if every position is worse."),
    "rearranged": Evidence("values are", "How they were moved; empty if no rearrangement explains the target."),
    "rearranged_share": Evidence(
        "explained by that order", "Share of the error's energy.", tests="the values in another order", unit="%"
    ),
    "rearranged_exact": Evidence(
        "nothing else is left", "The right values in that order give the target's but for rounding and what arrived otherwise."
    ),
    "uniform_target": Evidence("rows of equal weights on the target", "Share of the rows.", unit="%"),
    "uniform_reference": Evidence("rows of equal weights on the reference", "Share of the rows.", unit="%"),
    "masked_rows_wrong": Evidence(
        "wrong rows that are masked everywhere", "Share of the rows with the largest errors.", unit="%"
    ),
    "mask_pattern": Evidence(
        "the target's mask is",
        "missing, additional, inverted, moved, transposed, aligned to the other corner, that of the first sample for all,"
        " partly missing or additional; empty if none of these.",
    ),
    "saturated_target": Evidence("at the end of the type", "Elements there whose reference is infinite or beyond it."),
    "flushed": Evidence(
        "too small for a normal number, and zero on the target",
        "Elements; the target has no subnormal number, and hardly any other zero in place of a value. Absent otherwise.",
    ),
    "nan_rows_masked": Evidence(
        "NaN in rows that are masked everywhere", "Share of the rows with NaN on the target only.", unit="%"
    ),
    "repro": Evidence("runs alone", "Script in the run folder that runs this call without precflow; absent if there is none."),
    "changed": Evidence(
        "changed in between",
        "A tensor of the call that changed after another call had returned it, with that call and its source line.",
    ),
    "given_differently": Evidence(
        "given differently",
        "An input of whole numbers that differs between the sides though no call before it fails.",
    ),
    "other_weight": Evidence(
        "other weight", "A weight of the call that differs between the sides although no recorded call wrote it."
    ),
    "behind_accepted": Evidence(
        "its inputs carry the accepted difference of", "Module and operator; absent if they carry none."
    ),
    "behind_start": Evidence(
        "it takes gradients that are wrong since",
        "Where the error starts, if this is a later step of the optimizer; else absent.",
    ),
    "after": Evidence("the last that agree", "Calls whose records agree, if the error starts between them and the suspect."),
    "between_reference": Evidence("in between on the reference", "Calls there without a partner on the target."),
    "between_target": Evidence("in between on the target", "Calls there without a partner on the reference."),
    "drawn_between": Evidence(
        "random numbers in between", "Calls of either side in between, if each of them draws random numbers; else absent."
    ),
    "arguments_different": Evidence(
        "arguments that differ", "`name: reference / target`; devices and the run's own dtype are left out."
    ),
    "reference_shape": Evidence("shape on the reference", "Sizes of its output."),
    "target_shape": Evidence("shape on the target", "Sizes of its output."),
    "reference_output_dtype": Evidence("dtype on the reference", "Of its output."),
    "target_output_dtype": Evidence("dtype on the target", "Of its output."),
    "kept": Evidence(
        "kept of its output", "`tensors`, `sketch or statistics`, or `content id`: the least that either side kept."
    ),
    "relative_l2": Evidence("error", "Norm of the error relative to the norm of the reference, ordinary elements only."),
    "error_bits": Evidence("bits that agree", "-log2 of the error."),
    "error_cosine": Evidence("cosine of error and value", "Near 1 or -1 for a scale, near 0 for rounding."),
    "scale_slope": Evidence("target = reference times", "Least squares factor over all ordinary elements."),
    "scale_share": Evidence(
        "explained by that factor", "Share of the error's energy.", tests="one factor for all values", unit="%"
    ),
    "uneven_factor": Evidence(
        "factors differ between", "Rows, columns or slices that each have a factor of their own, in 16 bits; empty if none."
    ),
    "different_values": Evidence("different values", "Of the reference, ordinary elements only: one value fits any factor."),
    "curve_share": Evidence(
        "error is a curve over the input", "Share of the error's energy that a function of the input explains.", unit="%"
    ),
    "narrow_type": Evidence("all values fit into", "Narrower type that holds the target's values but not the reference's."),
    "wrapped_type": Evidence(
        "wraps like", "Narrower type of whole numbers at whose end the target's values began again; absent if there is none."
    ),
    "wraps_at": Evidence("wraps at", "The first number that this type lacks."),
    "epsilon_reference": Evidence("epsilon of the reference", "As recorded, or PyTorch's default."),
    "epsilon_target": Evidence("epsilon that explains the target", "Fitted from the input and both outputs."),
    "epsilon_share": Evidence("explained by that epsilon", "Share of the error's energy.", tests="another epsilon", unit="%"),
    "nonfinite_reference": Evidence("NaN or Inf on the reference", "Elements of its output."),
    "nonfinite_target": Evidence("NaN or Inf on the target", "Elements of its output."),
    "nonfinite_target_only": Evidence("NaN or Inf on the target only", "Elements that are numbers on the reference."),
    "overflow_share": Evidence(
        "broken where float16 ends", "Share of broken elements whose reference value is beyond 65504.", unit="%"
    ),
    "reference_max": Evidence("largest value on the reference", "Finite magnitude."),
    "masked_reference": Evidence("masked on the reference", "Elements with a fill value, or exact zeros after a softmax."),
    "masked_target": Evidence("masked on the target", "The same on the target."),
    "masked_different": Evidence("masked on one side only", "Elements."),
}


def _merge(pieces: Sequence[Piece]) -> dict[str, Evidence]:
    return {name: one for piece in pieces for name, one in piece.evidence.items()}


EVIDENCE: dict[str, Evidence] = {
    **_RUN,
    **_merge(list_of_run()),
    **_SUSPECT,
    **_merge(list_of_suspect()),
}
"""Name -> label and meaning. Names of a suspect are known only in rules about one."""
OF_SUSPECT = frozenset(_SUSPECT) | frozenset(_merge(list_of_suspect()))

_NEAR_ONE = 0.9  # 0.9996 and 0.9999 are far apart for a share or a scale, and both would be shown as 1
_LISTED = 5


def format_evidence(value: Any, unit: str = "") -> str:
    """Return a value of evidence as a person reads it; rules have it as the filters ``shown`` and, for shares, ``percent``.

    Near 1, where shares and factors are, five digits are shown; elsewhere three. Of lists the first five.

    >>> [format_evidence(value) for value in (True, 0.00123456, 0.9998, ["a", "b"], (2, 3), [])]
    ['yes', '0.00123', '0.9998', 'a, b', '2, 3', 'none']
    >>> [format_evidence(value, "%") for value in (1, 0.25, 0.99964, 0.0)]
    ['100 %', '25 %', '99.964 %', '0 %']
    """
    if unit == "%" and isinstance(value, (int, float)) and math.isfinite(value):
        return f"{100 * value:.5g} %" if _NEAR_ONE < abs(value) < 1.0 else f"{100 * value:.3g} %"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}" if _NEAR_ONE < abs(value) < 1.0 / _NEAR_ONE else f"{value:.3g}"
    if isinstance(value, (list, tuple)):
        more = [f"and {len(value) - _LISTED} more"] if len(value) > _LISTED else []
        return ", ".join([*(format_evidence(item) for item in value[:_LISTED]), *more]) or "none"
    return str(value)
