"""All evidence that a rule may use, by name: its label on a screen and what it means.

A rule that uses any other name is refused when it is loaded. To add evidence, add a row here, and compute it in the module of
this folder that it belongs to.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class EvidenceName(NamedTuple):
    """One piece of evidence.

    Attributes:
        label: The words of a screen.
        meaning: What it is, with its denominator.
        unit: ``%`` for a share, which rules have as a number of one and people read as percent.
        tests: What might have been the cause, if it is the share of the error's energy that this explains; ``""`` otherwise.
    """

    label: str
    meaning: str
    tests: str = ""
    unit: str = ""


_RUN = {
    "ranks": EvidenceName("ranks", "Number of processes; only if there are several."),
    "read_early": EvidenceName(
        "results that are read too early",
        "Collectives whose result the target uses before it has arrived, and the reference not.",
    ),
    "first_rank": EvidenceName("rank of the first suspect", "Only if there are several."),
    "only_rank": EvidenceName(
        "only this rank", "All suspects are on one rank, and no other fails before its first collective of that step."
    ),
    "uneven_parts": EvidenceName(
        "parts of the batch", "Numbers of samples of the ranks, where they are uneven and the other side is a single process."
    ),
    "uneven_factors": EvidenceName(
        "gradients of the parts, times those of the single process", "At the model's output, for each rank."
    ),
    "uneven_explains": EvidenceName("explained by their sizes", "The factor of each rank is that of its part's size."),
    "collectives_missing": EvidenceName(
        "collectives that the target does not call",
        "And what they carry, as far as a suspect depends on it; absent if there are none.",
    ),
    "collectives_extra": EvidenceName("collectives that only the target calls", "The same of the reference."),
    "gradients_unreduced": EvidenceName(
        "they carry gradients", "Whether these collectives carry gradients of parameters; absent without such collectives."
    ),
    "recipe": EvidenceName("recipe", "Name of the recipe."),
    "keep_tensors": EvidenceName(
        "keeps tensors", "The override with which a run of this recipe keeps the tensors of its suspects."
    ),
    "reference_dtype": EvidenceName("reference dtype", "Floating point type of the reference."),
    "target_dtype": EvidenceName("target dtype", "Floating point type of the target."),
    "low_precision": EvidenceName("low precision", "Either side computes in 16 bits or fewer."),
    "damage": EvidenceName("damaged", "What is missing, torn or cut short in the dumps, or was never sealed; up to five."),
    "emulated": EvidenceName("emulated", "Either side is emulated."),
    "failing": EvidenceName(
        "records over their limit", "Number of records that fail, or differ in shape, dtype or finiteness."
    ),
    "accepted_count": EvidenceName("accepted differences", "Number of records whose difference the recipe accepts."),
    "suspect_count": EvidenceName("calls that introduce an error", "Number of suspects."),
    "first_suspect": EvidenceName("first suspect", "Its name; empty without one."),
    "first_record": EvidenceName("its record", "Name of the first suspect's failing output; empty without one."),
    "first_suspect_phase": EvidenceName("part of the step it is in", "Phase of the first suspect; empty without one."),
    "later_phases": EvidenceName(
        "parts of the step behind the start",
        "Phases that follow the one in which the run starts, if that is in the first recorded step; empty otherwise.",
    ),
    "suspect_kinds": EvidenceName(
        "kinds of them", "Operator, class of module and phase of the suspects that evidence about the run does not tell."
    ),
    "suspects_all_matmul": EvidenceName(
        "all of them multiply matrices", "Every suspect is of the family matmul; false without any."
    ),
    "weights_different": EvidenceName("weights that differ", "Up to five names."),
    "weights_different_count": EvidenceName("number of weights that differ", "Weights that differ or are on one side only."),
    "weights_on_one_side_count": EvidenceName(
        "of them on one side only", "Weights whose name only one side has, after the rules of section `pairing`."
    ),
    "weights_of_another_type": EvidenceName(
        "weights of another type", "Up to five, with both types; equal after rounding, in a model whose other weights agree."
    ),
    "weights_of_another_type_count": EvidenceName("number of weights of another type", "Equal after rounding."),
    "weights_tied": EvidenceName("weights tied on one side", "Up to five, with the weight that they are tied to."),
    "weights_tied_count": EvidenceName("of them with other values", "Weights tied on one side that differ in their bits."),
    "copied_weights": EvidenceName(
        "copies of weights",
        "Up to five operators of the target that read a copy of a weight where the reference's read the weight.",
    ),
    "copied_weights_where": EvidenceName("where the first is read", "Module and operator."),
    "copied_weights_stale": EvidenceName(
        "of them not updated", "Copies that still have the same bits in a later step, after the weight has moved."
    ),
    "inputs_different": EvidenceName("inputs that differ", "Up to five names."),
    "inputs_different_count": EvidenceName("number of inputs that differ", "Inputs that differ or are on one side only."),
    "inputs_described": EvidenceName("how these inputs differ", "Up to five, with values and types, the reference's first."),
    "input_words": EvidenceName("how the first differs", "Values and types, or how far apart; empty if no values were kept."),
    "input_kind": EvidenceName(
        "sort of data", "pictures, times, tokens, mask or positions, of the first input that differs; empty if unknown."
    ),
    "first_input_is": EvidenceName(
        "kind of the first difference",
        "data: other data; choice: chosen by the model before; elsewhere: made by another call of it; stale: made in another "
        "step; calls: further calls.",
    ),
    "inputs_chosen": EvidenceName("inputs that the model chose", "Up to five names; no record leads from the choice to them."),
    "inputs_from_elsewhere": EvidenceName(
        "inputs that another call made", "Up to five names; the model made them, in another call than on the reference."
    ),
    "inputs_stale": EvidenceName(
        "inputs that another step made",
        "Up to five, with the calls that made them on both sides; the calls are of different steps.",
    ),
    "seed_reference": EvidenceName("seed of the reference", "As the agent set it."),
    "seed_target": EvidenceName("seed of the target", "As the agent set it."),
    "device_draws": EvidenceName(
        "random numbers drawn on the device", "Operators whose numbers were not drawn on CPU and moved."
    ),
    "device_draw_sites": EvidenceName(
        "where the script draws on the device", "File and line, operator and device of up to five draws of a script."
    ),
    "changed_by_watching": EvidenceName(
        "computes something else when it is watched", "Side, and what differs from a run without capture."
    ),
    "other_amounts": EvidenceName(
        "ran in all", "Steps, micro batches or calls of a model that one side made more of, with the numbers of both."
    ),
    "further_calls": EvidenceName(
        "calls of one side alone",
        "Calls of a model that one side makes more in a step, while it is given the same in all others.",
    ),
    "as_is": EvidenceName(
        "both sides as they are",
        "What a run without what the recipe changes has shown: agrees, differs, not_comparable, failed or not_run; absent if "
        "nobody asked.",
    ),
    "as_is_why": EvidenceName("as they are", "The same in words."),
    "as_is_repeats": EvidenceName(
        "compared with their own noise", "The sides were run twice as they are, so that what a side changes by itself is known."
    ),
    "recipe_changes": EvidenceName("changed by the recipe", "What the recipe changed in what ran, each with its places."),
    "changes_undone": EvidenceName(
        "leaves it alone",
        "The overrides with which a run leaves the most likely of these changes alone; empty if there are none.",
    ),
    "compiled_unseen": EvidenceName(
        "not seen", "What each side ran in compiled code, where nothing is recorded inside, with the number of modules."
    ),
    "draws_patch": EvidenceName(
        "patch", "File in the folder of the report that makes the script draw on the CPU; empty if there is none."
    ),
    "unrepeatable_reference": EvidenceName(
        "reference changes at", "Module and operator of records that change between equal runs, in order."
    ),
    "unrepeatable_target": EvidenceName("target changes at", "The same on the target."),
    "misspelt_variables": EvidenceName("environment variables", "Misspelt names and the names that they resemble."),
    "package_differences": EvidenceName(
        "packages that differ", "`name: reference / target`, those first that the recipe wants the same."
    ),
    "matmul_switches": EvidenceName("switch for matrix products", "TF32, HF32 and their like, in effect on one side only."),
    "convolution_switches": EvidenceName("switch for convolutions", "The same for convolutions."),
    "unpaired_reference": EvidenceName("only on the reference", "Up to five names of calls without a partner."),
    "unpaired_target": EvidenceName("only on the target", "The same on the target."),
    "overflow_reference": EvidenceName(
        "overflow begins on the reference at", "First call that makes saturated values, infinity and NaN, each with its count."
    ),
    "overflow_target": EvidenceName("overflow begins on the target at", "The same on the target."),
    "overflow_both": EvidenceName("the same call on both sides", "Calls that are the first to make a kind on both sides."),
    "overflow_kind": EvidenceName(
        "first on the target only", "`saturated`, `infinity` or `nan`: the first kind that only the target has."
    ),
    "overflow_starts": EvidenceName("where that begins", "Module and operator."),
    "overflow_ends": EvidenceName("kinds that follow", "Further kinds that only the target has, in order."),
    "broken_side": EvidenceName(
        "side with NaN in a step that the other dropped",
        "Such steps are kept (`capture.keep_last`), so that the other side had none; absent without one.",
    ),
    "broken_at": EvidenceName("NaN begins there at", "Module and operator of the first call that makes NaN or infinity."),
    "broken_text": EvidenceName("what it gives", "Call, number of elements and step."),
    "left_out_reference": EvidenceName(
        "steps that the reference skips",
        "Its gradients are not finite and its optimizer did nothing; the target's made the step.",
    ),
    "left_out_target": EvidenceName("steps that the target skips", "The same on the target."),
    "left_out_both": EvidenceName("steps that both skip", "Gradients are not finite, and neither optimizer did anything."),
    "still": EvidenceName(
        "not updated on one side",
        "Which parameters, or tensors of the optimizer's state, move on one side only, and why; absent if none does.",
    ),
    "still_why": EvidenceName("why it is not updated", "frozen, not held, no gradient, rounded or lost."),
    "still_state": EvidenceName(
        "tensor of the state that stands still", "Though its weight moves; empty where the weight itself stands still."
    ),
    "still_side": EvidenceName("it stands still on", "reference or target."),
    "still_where": EvidenceName("step that moves nothing", "The optimizer's step of the first of them, as records are named."),
    "still_parameters": EvidenceName("they stand still", "Parameters of the earliest step, all for the same reason."),
    "still_states": EvidenceName("so does the state", "Tensors of the optimizer's state that one side alone changes."),
    "still_starts": EvidenceName("the error starts there", "Nothing fails before the update that is missing."),
    "optimizer_settings": EvidenceName(
        "settings of the optimizer that differ", "`name: reference / target (parameters)`, as recorded at each step."
    ),
    "optimizer_choices": EvidenceName(
        "class and settings that one side lacks",
        "`name: reference / target`; they choose a formula or another implementation of the same.",
    ),
    "optimizer_settings_proven": EvidenceName(
        "of these change the target's steps",
        "Its steps follow from them, and not from the reference's; absent if no step was computed again.",
    ),
    "optimizer_steps": EvidenceName(
        "steps of the optimizer computed again", "Of parameters whose tensors were kept; absent if there are none."
    ),
    "optimizer_faults": EvidenceName(
        "that do not follow from their own gradient", "Steps of the target whose weight or state the formula does not give."
    ),
    "optimizer_first_fault": EvidenceName("first of them", "Parameter; empty without one."),
    "optimizer_cause": EvidenceName(
        "they follow if", "Another setting than the recorded one that gives the target's weights; empty if none does."
    ),
    "optimizer_explained": EvidenceName("explained by that setting", "Share of the steps that do not follow.", unit="%"),
    "rate_shift": EvidenceName(
        "learning rates are those of the reference's step", "1: a step later, -1: a step earlier; 0 if neither."
    ),
    "gradient_factor": EvidenceName(
        "gradients are those of the reference times", "One factor for all parameters in the first step; absent without one."
    ),
    "gradient_factor_share": EvidenceName("parameters with that factor", "Of those with a gradient.", unit="%"),
    "gradients_reference": EvidenceName(
        "between backward and the optimizer, on the reference",
        "What happened to the gradients in the first step in which it differs; absent if it is the same.",
    ),
    "gradients_target": EvidenceName("the same on the target", "Such as: all multiplied by 0.13, cut off at 0.1, unchanged."),
    "gradients_step": EvidenceName("first in step", "Number of that step."),
    "micro_factors": EvidenceName(
        "loss of each micro batch times",
        "Its gradient at the model's output over the reference's, in order; absent unless each has one factor and they differ.",
    ),
    "micro_tokens": EvidenceName(
        "tokens that count in each", "Rows of that gradient which are not zero; absent if it is not known."
    ),
    "micro_divides": EvidenceName(
        "divides each micro batch by its own tokens",
        "`reference` or `target`; the other side divides by those of the whole step. Absent if the numbers do not say so.",
    ),
    "gradients_left_side": EvidenceName(
        "gradients that still hold the last step's",
        "Side whose gradients are those of the other side and of its own step before; absent if there is none.",
    ),
    "gradients_left_step": EvidenceName("they do so first in step", "Number of the step."),
    "gradients_left_share": EvidenceName(
        "parameters that are such a sum", "Whose gradient is that sum, of those on both sides.", unit="%"
    ),
    "gradients_narrow": EvidenceName(
        "gradients of the target fit into", "16-bit type that holds all that its optimizer sees, and not the reference's."
    ),
    "mixed_precision_different": EvidenceName(
        "mixed precision differs",
        "`setting: reference / target` of what was in effect: level, type, modules, operators, scale.",
    ),
    "batches_shuffled": EvidenceName(
        "batches in another order", "The model was given the same inputs as on the reference, in other steps."
    ),
    "arguments_elsewhere": EvidenceName(
        "arguments that differ elsewhere", "`call: name: reference / target` of calls that are no suspects; up to five."
    ),
    "unpaired_count": EvidenceName("records without a partner", "Number of judged records that are on one side only."),
    "curve": EvidenceName(
        "curve", "Name of the curve that the following is about: the first that is misaligned, else the loss."
    ),
    "curve_verdict": EvidenceName("verdict of the curve", "aligned, misaligned or inconclusive."),
    "curve_compared": EvidenceName("steps compared", "Steps at which both sides are finite."),
    "curve_first_step": EvidenceName("first step", "The first of them."),
    "curve_first_abs_error": EvidenceName("difference of the first step", "Absolute."),
    "curve_first_rel_error": EvidenceName("relative difference of the first step", "Of the reference there.", unit="%"),
    "curve_max_abs_error": EvidenceName("largest difference", "Absolute."),
    "curve_max_abs_step": EvidenceName("step of the largest difference", "Where it is."),
    "curve_mean_rel_error": EvidenceName(
        "mean relative difference", "Mean over the steps, as a share of the reference.", unit="%"
    ),
    "curve_smooth_rel_error": EvidenceName(
        "largest difference of the smoothed curves", "Of running means, as a share of the reference.", unit="%"
    ),
    "curve_parted_step": EvidenceName(
        "they part at step", "From there the smoothed curves stay more than 1 % apart; -1 if they do not."
    ),
    "curve_apart_from": EvidenceName("apart from step", "Begin of the longest stretch in which they are; -1 without one."),
    "curve_apart_to": EvidenceName("apart to step", "The last step of that stretch."),
    "curve_mean_difference": EvidenceName("mean difference", "Target minus reference, with its sign."),
    "curve_one_sided": EvidenceName("to one side", "The mean difference is more than three times its uncertainty."),
    "curve_above": EvidenceName("steps with the target above", "Share of the steps.", unit="%"),
    "curve_growth": EvidenceName(
        "growth of the difference",
        "none, steady, noise (like the root of the step), bias (like the step), faster, shrinks, unknown.",
    ),
    "curve_per_step": EvidenceName("change with each step", "Of the difference, on average."),
    "curve_per_root_step": EvidenceName("times the root of the step", "Size of the difference as a random walk."),
    "curve_exponent": EvidenceName("exponent of the step", "Fitted to the size of the difference."),
    "curve_fluctuation": EvidenceName(
        "largest difference between runs of the reference", "Absolute; 0 without a further run of it."
    ),
    "curve_repeats": EvidenceName("further runs of the reference", "Their number."),
    "curve_shift": EvidenceName("steps to add on the target", "With which the curves agree far better; 0 if with none."),
    "curve_nonfinite_reference": EvidenceName("steps with NaN or Inf on the reference", "Their number."),
    "curve_nonfinite_target": EvidenceName("steps with NaN or Inf on the target", "Their number."),
    "curve_first_nonfinite": EvidenceName("first step with NaN or Inf", "-1 without one."),
    "curve_first_nonfinite_side": EvidenceName("side with it first", "reference, target or both."),
    "curve_spikes_reference": EvidenceName("steps with a spike on the reference alone", "In order; of both sides at most 20."),
    "curve_spikes_target": EvidenceName("steps with a spike on the target alone", "The same on the target."),
    "curve_relation": EvidenceName("the target is", "The factor or the amount in words, with four digits; else empty."),
    "curve_factor": EvidenceName("target / reference at every step", "If one factor explains the whole difference; else 0."),
    "curve_integer": EvidenceName("factor, or its inverse, is the whole number", "0 if neither is one."),
    "curve_offset": EvidenceName("target - reference at every step", "If one amount explains the whole difference; else 0."),
    "curve_left": EvidenceName("left unexplained by it", "Share of the difference, by root mean square.", unit="%"),
    "curve_resumed": EvidenceName(
        "resumed where they part", "The side whose log was resumed at the step from which on the curves are apart; else empty."
    ),
    "curve_restarts": EvidenceName("resumed", "Where a log goes back to an earlier step, in words."),
    "scale_drops_reference": EvidenceName(
        "steps at which the reference lowers its loss scale", "An optimizer step was skipped there because of an overflow."
    ),
    "scale_drops_target": EvidenceName("steps at which the target lowers its loss scale", "The same on the target."),
    "tokens_left_out": EvidenceName(
        "tokens that the target's loss leaves out",
        "Rows of the gradient at the model's output that are exactly zero on the target alone; absent if there are none.",
    ),
    "tokens_added": EvidenceName("tokens that the target's loss counts in addition", "The same on the reference alone."),
    "tokens_ratio": EvidenceName("other rows of that gradient", "Their size over that of the reference, the median."),
}
_SUSPECT = {
    "phase": EvidenceName("part of the step", "Phase of the call."),
    "kind": EvidenceName("kind", "Operator, class of its module, and phase."),
    "collective": EvidenceName("collective", "Name of the suspect, if it carries tensors between ranks."),
    "lost_result": EvidenceName(
        "collective whose result is lost in part",
        "Its result agrees, and what takes it differs by exactly the missing part; absent if there is none.",
    ),
    "lost_share": EvidenceName("lost", "Share of that result that is zeros in its place.", unit="%"),
    "lost_of": EvidenceName("counted in", "`elements`, or `energy` where only sketches were kept."),
    "lost_where": EvidenceName("lost at", "At which end of which axis; empty if at none."),
    "uncalled": EvidenceName(
        "not called on the target", "The suspect is a collective that the target does not call; else absent."
    ),
    "ranks_agree": EvidenceName(
        "every rank gives the same on both sides", "The inputs of the collective have the same bits on every rank of its group."
    ),
    "reductions": EvidenceName(
        "computed reduction", "Of the reference and of the target, where they differ: the one that explains what a rank got."
    ),
    "groups": EvidenceName("ranks that take part", "Of the reference and of the target, where they differ."),
    "left_out": EvidenceName(
        "left out on the target", "Ranks without which the reduction explains what the target's rank got."
    ),
    "name": EvidenceName("where", "Name of the call."),
    "record": EvidenceName("record", "Name of its failing output."),
    "module": EvidenceName("module", "Qualified name of the module."),
    "operator": EvidenceName("operator", "Canonical name of the operator; `module` for a module."),
    "family": EvidenceName(
        "family", "matmul, normalisation, softmax, activation, masking, random, reduction, attention, module, other."
    ),
    "site": EvidenceName("called at", "Place in the source."),
    "why_suspect": EvidenceName("on the graph", "Why it is under suspicion."),
    "status": EvidenceName("status", "Status of its output."),
    "ratio": EvidenceName("times its limit", "How far over its limit; above 1 fails."),
    "movement": EvidenceName("pure movement", "The operator only moves values."),
    "accumulated": EvidenceName("inputs near their limit", "An input uses more than half of its limit already."),
    "inputs_use": EvidenceName(
        "error of the inputs, of their limit", "Largest of the passing records that it is computed from.", unit="%"
    ),
    "inputs_equal": EvidenceName("inputs bitwise equal", "All inputs and weights have the same bits on both sides."),
    "inputs_differ": EvidenceName("an input has other bits", "Of those whose content is known on both sides."),
    "input_shapes_equal": EvidenceName("inputs have the same shapes", "All inputs and weights."),
    "shape_follows_values": EvidenceName(
        "its size depends on values", "The operator returns as many values as its inputs select, such as nonzero."
    ),
    "introduced_fault": EvidenceName(
        "introduces an error in place", "By float64 at the target's own inputs; absent where it was not evaluated."
    ),
    "introduced_rho": EvidenceName("times the reference's own error", "Against float64, each side at its own inputs."),
    "introduced_measure": EvidenceName(
        "shown by",
        "`rho` (size), `variance`, `slope`, `curve`, `largest` (rounding residue), `half_steps`, `other_form`, `movement` or"
        " `nonfinite`.",
    ),
    "half_steps": EvidenceName(
        "smallest values in steps of float16",
        "Those of a bfloat16 output are whole multiples of 2^-24, and correct ones are not; absent otherwise.",
    ),
    "introduced_factor_share": EvidenceName(
        "what one factor leaves, of its line",
        "Of its error in place, over the largest that rounding may leave; above 1 is more.",
    ),
    "introduced_systematic": EvidenceName("the error follows the values", "Not only more rounding."),
    "alone_error": EvidenceName(
        "error when it runs alone",
        "Relative, on the target, at the inputs of either side; with `whatif=[suspects_alone]` only.",
    ),
    "alone_fault": EvidenceName(
        "wrong when it runs alone", "By the line that calls of the run are held to; absent without that."
    ),
    "alone_same_bits": EvidenceName(
        "alone it gives what was recorded", "With the target's own inputs, bit for bit; absent if it is not known."
    ),
    "wired_differently": EvidenceName(
        "takes other inputs", "Sentences that say which call an input comes from on both sides; absent if they are the same."
    ),
    "operand_bits": EvidenceName(
        "bits of the operands that explain it", "11, 10 or 7 explicit bits of the significand; 0 if none explains the output."
    ),
    "operand_share": EvidenceName(
        "explained by those bits", "Share of the error's energy.", tests="operands of fewer bits", unit="%"
    ),
    "exact_products": EvidenceName(
        "products before it that agree", "Products of the same kind that agree to 18 bits or more, before this one."
    ),
    "in_place": EvidenceName(
        "measured at its own inputs", "The numbers below are against float64 at the target's own inputs; absent otherwise."
    ),
    "own_error": EvidenceName("its own error", "Norm of its error against float64 at its own inputs, relative to that."),
    "own_error_units": EvidenceName(
        "its own error in roundings", "In units of one rounding of its type; near 1 if it is right."
    ),
    "variant": EvidenceName(
        "computed exactly as",
        "Way to compute the operator that gives the target's output: gelu_tanh, gelu_erf, gelu_sigmoid, straight_lines,"
        " other_slope,"
        " no_weight, no_bias, no_weight_and_bias, weight_plus_one, not_centred, unbiased_variance, other_groups, uniform,"
        " other_axis, last_keys_ignored, last_terms_left_out, transposed, memory_order, only_first, only_second, norm_added,"
        " rows_shifted, terms_left_out, terms_added_twice, positions_shifted, inputs_in_bfloat16, inputs_in_float16;"
        " empty if none does.",
    ),
    "variant_share": EvidenceName(
        "explained by that", "Share of the error's energy.", tests="another form of the operator", unit="%"
    ),
    "variant_detail": EvidenceName("more of that", "Which terms, which operand, or how far; empty if there is no more to say."),
    "argument_values": EvidenceName(
        "computed exactly with the argument",
        "Values of arguments with which float64 at the target's own inputs gives its output within the line of the operator;"
        " absent if none does. Several explain it equally well.",
    ),
    "argument_recorded": EvidenceName("in place of", "The values of these arguments that both sides were called with."),
    "argument_share": EvidenceName(
        "explained by that argument", "Share of the error's energy.", tests="another argument", unit="%"
    ),
    "argument_places": EvidenceName(
        "elements that tell", "Elements of the output at which the two values of the argument give different numbers."
    ),
    "backward_change": EvidenceName(
        "its backward is computed exactly with",
        "The one change with which the backward of the module, computed again, gives the target's gradients: bfloat16 or"
        " float16 (what leaves a function is rounded to it), operands_11, operands_10 or operands_7 (explicit bits of what a"
        " product multiplies), scaled, or form_ and the name of another form of one function's backward; empty if none does,"
        " absent if none was tried.",
    ),
    "backward_share": EvidenceName(
        "explained by that change", "Share of the error's energy.", tests="a change in the backward", unit="%"
    ),
    "backward_left": EvidenceName(
        "left by that change", "In units of the reference's own error: near 1 if nothing but rounding is left."
    ),
    "backward_factor": EvidenceName("factor of the gradients", "Fitted where they are scaled; 1 otherwise."),
    "backward_at": EvidenceName("in the backward of", "Functions of which that may be said, in order of the forward."),
    "backward_other_share": EvidenceName(
        "explained by another change", "Largest share of the other kinds of changes.", unit="%"
    ),
    "sum_type": EvidenceName(
        "sums fit into", "16-bit type that holds the target's sums before a bias of float32 is added; empty if none does."
    ),
    "unchanged": EvidenceName(
        "left as it came", "Which end of which axis has the values of an input, and the rest is right; empty if none has."
    ),
    "elements": EvidenceName("elements", "Number of elements of the output: one number fits any factor."),
    "few_share": EvidenceName(
        "elements with nearly all of the error", "Smallest share of them that carries 99 % of its energy.", unit="%"
    ),
    "few_rows": EvidenceName("rows with nearly all of the error", "Number of rows of the last axis."),
    "isolated": EvidenceName(
        "wrong alone", "The few elements, rows or columns beyond rounding, where all others are right; empty if more are."
    ),
    "isolated_extreme": EvidenceName("and they are the extreme ones", "The largest or smallest by value or by input."),
    "border": EvidenceName("the error is only at", "Which end of which axis; empty if it is not at a border."),
    "zero_share": EvidenceName(
        "error where the target is zero",
        "Share of the error's energy where the reference is not zero.",
        tests="zeros in place of values",
        unit="%",
    ),
    "zero_block": EvidenceName(
        "zeros in their block",
        "Of the smallest block around these zeros: 1 for a part that was not written.",
        unit="%",
    ),
    "clamp_value": EvidenceName("cut off at", "Largest or smallest value of the target, which several elements have."),
    "clamp_share": EvidenceName(
        "explained by the cut", "Share of the error's energy.", tests="values that are cut off", unit="%"
    ),
    "sign_share": EvidenceName(
        "only the sign differs", "Share of the error's energy at such elements.", tests="another sign", unit="%"
    ),
    "norm_change": EvidenceName(
        "change of norms", "Of the rows, relative to the error: near 0 for a rotation, up to 1 for a scale."
    ),
    "rows_read": EvidenceName(
        "reads", "What it reads in place of which rows of its table, wherever their numbers stand; empty if others are wrong."
    ),
    "first_sample_right": EvidenceName("the first sample agrees", "And the others do not; absent without several samples."),
    "position_growth": EvidenceName("grows with the position", "Relative error of the last quarter over that of the first."),
    "position_rank": EvidenceName("order of the errors by position", "Rank correlation, 1 if every position is worse."),
    "rearranged": EvidenceName("values are", "How they were moved; empty if no rearrangement explains the target."),
    "rearranged_share": EvidenceName(
        "explained by that order", "Share of the error's energy.", tests="the values in another order", unit="%"
    ),
    "rearranged_exact": EvidenceName(
        "nothing else is left", "The right values in that order give the target's but for rounding and what arrived otherwise."
    ),
    "uniform_target": EvidenceName("rows of equal weights on the target", "Share of the rows.", unit="%"),
    "uniform_reference": EvidenceName("rows of equal weights on the reference", "Share of the rows.", unit="%"),
    "masked_rows_wrong": EvidenceName(
        "wrong rows that are masked everywhere", "Share of the rows with the largest errors.", unit="%"
    ),
    "mask_pattern": EvidenceName(
        "the target's mask is",
        "missing, additional, inverted, moved, transposed, aligned to the other corner, that of the first sample for all,"
        " partly missing or additional; empty if none of these.",
    ),
    "saturated_target": EvidenceName("at the end of the type", "Elements there whose reference is infinite or beyond it."),
    "flushed": EvidenceName(
        "too small for a normal number, and zero on the target",
        "Elements; the target has no subnormal number, and hardly any other zero in place of a value. Absent otherwise.",
    ),
    "nan_rows_masked": EvidenceName(
        "NaN in rows that are masked everywhere", "Share of the rows with NaN on the target only.", unit="%"
    ),
    "repro": EvidenceName(
        "runs alone", "Script in the run folder that runs this call without precflow; absent if there is none."
    ),
    "changed": EvidenceName(
        "changed in between",
        "A tensor of the call that changed after another call had returned it, with that call and its source line.",
    ),
    "given_differently": EvidenceName(
        "given differently",
        "An input of whole numbers that differs between the sides though no call before it fails.",
    ),
    "other_weight": EvidenceName(
        "other weight", "A weight of the call that differs between the sides although no recorded call wrote it."
    ),
    "behind_accepted": EvidenceName(
        "its inputs carry the accepted difference of", "Module and operator; absent if they carry none."
    ),
    "behind_start": EvidenceName(
        "it takes gradients that are wrong since",
        "Where the error starts, if this is a later step of the optimizer; else absent.",
    ),
    "after": EvidenceName(
        "the last that agree", "Calls whose records agree, if the error starts between them and the suspect."
    ),
    "between_reference": EvidenceName("in between on the reference", "Calls there without a partner on the target."),
    "between_target": EvidenceName("in between on the target", "Calls there without a partner on the reference."),
    "drawn_between": EvidenceName(
        "random numbers in between", "Calls of either side in between, if each of them draws random numbers; else absent."
    ),
    "arguments_different": EvidenceName(
        "arguments that differ", "`name: reference / target`; devices and the run's own dtype are left out."
    ),
    "reference_shape": EvidenceName("shape on the reference", "Sizes of its output."),
    "target_shape": EvidenceName("shape on the target", "Sizes of its output."),
    "reference_output_dtype": EvidenceName("dtype on the reference", "Of its output."),
    "target_output_dtype": EvidenceName("dtype on the target", "Of its output."),
    "kept": EvidenceName(
        "kept of its output", "`tensors`, `sketch or statistics`, or `content id`: the least that either side kept."
    ),
    "relative_l2": EvidenceName("error", "Norm of the error relative to the norm of the reference, ordinary elements only."),
    "error_bits": EvidenceName("bits that agree", "-log2 of the error."),
    "error_cosine": EvidenceName("cosine of error and value", "Near 1 or -1 for a scale, near 0 for rounding."),
    "scale_slope": EvidenceName("target = reference times", "Least squares factor over all ordinary elements."),
    "scale_share": EvidenceName(
        "explained by that factor", "Share of the error's energy.", tests="one factor for all values", unit="%"
    ),
    "uneven_factor": EvidenceName(
        "factors differ between", "Rows, columns or slices that each have a factor of their own, in 16 bits; empty if none."
    ),
    "different_values": EvidenceName(
        "different values", "Of the reference, ordinary elements only: one value fits any factor."
    ),
    "curve_share": EvidenceName(
        "error is a curve over the input", "Share of the error's energy that a function of the input explains.", unit="%"
    ),
    "narrow_type": EvidenceName("all values fit into", "Narrower type that holds the target's values but not the reference's."),
    "wrapped_type": EvidenceName(
        "wraps like", "Narrower type of whole numbers at whose end the target's values began again; absent if there is none."
    ),
    "wraps_at": EvidenceName("wraps at", "The first number that this type lacks."),
    "epsilon_reference": EvidenceName("epsilon of the reference", "As recorded, or PyTorch's default."),
    "epsilon_target": EvidenceName("epsilon that explains the target", "Fitted from the input and both outputs."),
    "epsilon_share": EvidenceName(
        "explained by that epsilon", "Share of the error's energy.", tests="another epsilon", unit="%"
    ),
    "nonfinite_reference": EvidenceName("NaN or Inf on the reference", "Elements of its output."),
    "nonfinite_target": EvidenceName("NaN or Inf on the target", "Elements of its output."),
    "nonfinite_target_only": EvidenceName("NaN or Inf on the target only", "Elements that are numbers on the reference."),
    "overflow_share": EvidenceName(
        "broken where float16 ends", "Share of broken elements whose reference value is beyond 65504.", unit="%"
    ),
    "reference_max": EvidenceName("largest value on the reference", "Finite magnitude."),
    "masked_reference": EvidenceName("masked on the reference", "Elements with a fill value, or exact zeros after a softmax."),
    "masked_target": EvidenceName("masked on the target", "The same on the target."),
    "masked_different": EvidenceName("masked on one side only", "Elements."),
}
EVIDENCE: dict[str, EvidenceName] = {**_RUN, **_SUSPECT}
"""Name -> label and meaning. Names of a suspect are known only in rules about one."""
OF_SUSPECT = frozenset(_SUSPECT)

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
