"""The engine, and every shipped rule with evidence that meets it and evidence that does not."""

import pytest

from precflow import resources
from precflow.diagnosis.advice.rule_files import AdviceRule, Objection, load_rules
from precflow.diagnosis.advice.rules import advise
from precflow.diagnosis.evidence.names import EVIDENCE, OF_SUSPECT
from precflow.errors import ConfigError

SHIPPED = {rule.id: rule for rule in load_rules([resources.directory("conf") / "rule"])}
RUN = {
    "recipe": "demo",
    "keep_tensors": "capture=escalating",
    "reference_dtype": "float32",
    "target_dtype": "float32",
    "damage": [],
    "low_precision": False,
    "failing": 10,
    "unpaired_count": 0,
    "unpaired_reference": [],
    "unpaired_target": [],
    "weights_different": [],
    "weights_different_count": 0,
    "inputs_different": [],
    "inputs_different_count": 0,
    "unrepeatable_reference": [],
    "unrepeatable_target": [],
    "misspelt_variables": [],
    "package_differences": [],
    "matmul_switches": [],
    "convolution_switches": [],
    "device_draws": [],
    "device_draw_sites": [],
    "draws_patch": "",
    "seed_reference": 1234,
    "seed_target": 1234,
    "overflow_reference": [],
    "overflow_target": [],
    "overflow_both": [],
    "overflow_kind": "",
    "overflow_starts": "",
    "curve": "loss",
    "curve_verdict": "aligned",
    "curve_compared": 400,
    "curve_first_step": 1,
    "curve_first_abs_error": 1e-4,
    "curve_first_rel_error": 1e-5,
    "curve_max_abs_error": 1e-3,
    "curve_max_abs_step": 300,
    "curve_mean_rel_error": 1e-5,
    "curve_smooth_rel_error": 1e-5,
    "curve_parted_step": -1,
    "curve_apart_from": -1,
    "curve_apart_to": -1,
    "curve_equal_until": -1,
    "curve_mean_difference": 0.0,
    "curve_one_sided": False,
    "curve_above": 0.5,
    "curve_growth": "steady",
    "curve_per_step": 1e-7,
    "curve_per_root_step": 1e-6,
    "curve_exponent": 0.0,
    "curve_fluctuation": 0.0,
    "curve_repeats": 0,
    "curve_shift": 0,
    "curve_nonfinite_reference": 0,
    "curve_nonfinite_target": 0,
    "curve_first_nonfinite": -1,
    "curve_first_nonfinite_side": "",
    "curve_spikes_reference": [],
    "curve_spikes_target": [],
    "curve_relation": "",
    "curve_factor": 0.0,
    "curve_integer": 0,
    "curve_offset": 0.0,
    "curve_left": 1.0,
    "curve_resumed": "",
    "curve_restarts": [],
    "scale_drops_reference": [],
    "scale_drops_target": [],
    "overflow_ends": [],
    "left_out_reference": [],
    "left_out_target": [],
    "left_out_both": [],
    "arguments_elsewhere": [],
    "optimizer_settings": [],
    "rate_shift": 0,
    "batches_shuffled": False,
    "mixed_precision_different": [],
    "suspect_count": 1,
    "suspects_all_matmul": False,
    "first_suspect": "layers.0 / op",
}
SUSPECT = {
    "name": "layers.0 / op",
    "module": "layers.0",
    "operator": "op",
    "family": "other",
    "site": "model.py:3 in forward",
    "why_suspect": "its inputs agree, its output does not",
    "status": "fail",
    "ratio": 20.0,
    "movement": False,
    "accumulated": False,
    "inputs_use": 0.0,
    "inputs_equal": True,
    "inputs_differ": False,
    "input_shapes_equal": True,
    "shape_follows_values": False,
    "arguments_different": [],
    "reference_shape": [2, 3],
    "target_shape": [2, 3],
    "reference_output_dtype": "float32",
    "target_output_dtype": "float32",
    "kept": "tensors",
    "relative_l2": 1e-3,
    "error_bits": 10.0,
    "error_cosine": 0.5,
    "scale_slope": 1.0,
    "scale_share": 0.1,
    "narrow_type": "",
    "nonfinite_reference": 0,
    "nonfinite_target": 0,
    "nonfinite_target_only": 0,
    "overflow_share": 0.0,
    "reference_max": 3.0,
    "in_place": True,
    "own_error": 1e-3,
    "variant": "",
    "variant_share": 0.1,
    "elements": 6144,
    "isolated": "",
    "few_share": 0.6,
    "few_rows": 90,
    "border": "",
    "zero_share": 0.0,
    "sign_share": 0.0,
    "norm_change": 0.3,
    "first_sample_right": False,
    "position_growth": 1.1,
    "position_rank": 0.1,
    "rearranged": "",
    "rearranged_share": 0.0,
}
UNEVEN = {"failing": 3, "uneven_parts": "9 and 4", "uneven_factors": "0.72, 1.6", "uneven_explains": True}
LACKING = {"ranks": 2, "collectives_missing": ["all_reduce of the gradients of fc.weight"], "gradients_unreduced": True}
COLLECTIVE = {"collective": "all_reduce", "operator": "all_reduce", "ranks_agree": True}
BEHIND = {"behind_accepted": "a / softmax", "inputs_equal": False, "introduced_fault": False}
MATMUL = {"family": "matmul", "operator": "linear", "error_bits": 12.0, "error_cosine": 0.01}
EPSILON = {"family": "normalisation", "epsilon_reference": 1e-5, "epsilon_target": 1e-3, "epsilon_share": 0.999}
MASK = {"family": "masking", "masked_reference": 1000, "masked_target": 0, "masked_different": 1000}
OTHER_SAMPLE = {
    "family": "masking",
    "in_place": True,
    "masked_reference": 1040,
    "masked_target": 1000,
    "masked_different": 40,
    "mask_pattern": "that of the first sample for all",
}
PERMUTED = {
    "rearranged": "3 blocks in the order 1, 0, 2 along the last axis",
    "rearranged_share": 0.999,
    "rearranged_exact": True,
}
BETWEEN = {"between_target": ["attn / sdpa"], "after": ["norm / layer_norm"]}
ROWS_READ = {"rows_read": "row 7 in place of row 0", "operator": "embedding"}
MOVED = {"movement": True, "inputs_equal": False, "inputs_differ": True, "introduced_measure": "movement"}
PAIRED = {
    "rearranged": "halves interleaved (pairs in place of halves) along the last axis",
    "rearranged_share": 0.999,
    "rearranged_exact": True,
}
TAIL = {"border": "the last 3 of 64 along axis 1", "zero_share": 1.0}
ROTATED = {"name": "layers.0.rotary / add", "norm_change": 0.001, "relative_l2": 0.3}
GROWING = {"position_growth": 9.0, "position_rank": 0.95, "operator": "cos"}
LOSS = {"name": "loss / cross_entropy", "operator": "cross_entropy", "scale_slope": 0.25, "scale_share": 0.9999}
FURTHER_BACKWARD = {
    "backward_alone": "generator.2 (backward)",
    "backward_alone_side": "target",
    "unpaired_target": ["generator.2 (backward)"],
}
CHANGED_WEIGHTS = {
    "weights_different": ["fc.weight"],
    "weights_different_count": 1,
    "weight_change": "axes 0 and 1 exchanged",
    "weights_rounded": False,
}
SHARED = {"inputs_shared": ["ranks 0 and 1 in step 0"], "inputs_different": ["rank1.step0.x"], "inputs_different_count": 1}
GIVEN = {
    "name": "(outside) / cat",
    "given_tensor": "input 0.0",
    "given_change": "other random numbers of the same distribution",
    "given_draws": True,
}
CUT = {"clamp_value": 1.5, "clamp_share": 0.999}
BACKWARD = {
    "operator": "module backward",
    "family": "module",
    "backward_at": "softmax",
    "backward_share": 0.9999,
    "backward_left": 0.9,
    "backward_factor": 1.0,
    "backward_other_share": 0.4,
}
ARGUMENT = {
    "operator": "interpolate",
    "argument_values": ["mode='nearest'"],
    "argument_recorded": ["mode='bilinear'"],
    "argument_share": 0.9999,
    "argument_places": 4576,
}
TWO_VALUES = {**ARGUMENT, "argument_values": ["mode='nearest'", "mode='area'"]}
ALONE = {"isolated": "1 of 6144 elements: [0, 4, 7]", "isolated_extreme": False}
ROW = {"isolated": "1 of 96 rows: [0, 4]", "isolated_extreme": False}


def variant(name, **more):
    return {"variant": name, "variant_share": 0.999, **more}


ACCUMULATED = {"accumulated": True, "inputs_use": 0.95, "ratio": 1.8}
SATURATED = {"overflow_kind": "saturated", "overflow_starts": "a / linear", "overflow_target": ["a / linear: 2"]}
# rule, evidence that meets it, evidence that nearly does
RATE = "lr: 0.001 / 0.002 (all 12 parameters)"
WRONG_STEP = {
    "optimizer_steps": 12,
    "optimizer_faults": 12,
    "optimizer_first_fault": "head.weight",
    "optimizer_cause": "eps is 0.001 in place of 1e-08",
    "optimizer_explained": 1.0,
}
ONE_FACTOR = {"low_precision": True, "introduced_factor_share": 0.21}
ANOTHER_CURVE = {"introduced_factor_share": 0.8}
SCALED = {"gradient_factor": 4.0, "gradient_factor_share": 1.0}
CLASS = "optimizer: 'Adam' / 'FusedAdam'"
STILL = {
    "still": ["a.weight moves on the reference only"],
    "still_why": "frozen",
    "still_state": "",
    "still_side": "target",
    "still_where": "a.weight (optimizer)",
    "still_parameters": ["a.weight"],
    "still_states": [],
    "still_starts": True,
}
CLIPPED = {"gradients_reference": "all multiplied by 0.13", "gradients_target": "cut off at 0.1", "gradients_step": 0}
FIRST_STEP = {
    "curve_verdict": "misaligned",
    "curve_apart_from": 1,
    "curve_first_rel_error": 0.03,
    "curve_first_abs_error": 0.08,
}
LATER = {"curve_verdict": "misaligned", "curve_parted_step": 170, "curve_apart_from": 170, "curve_apart_to": 400}
TWICE = {"curve_verdict": "misaligned", "curve_factor": 2.0005, "curve_integer": 2, "curve_relation": "2.000 times"}
MORE = {"curve_verdict": "misaligned", "curve_offset": -0.5, "curve_relation": "0.5000 below"}
RESUMED = {**LATER, "curve_resumed": "target"}
NOISE = {"curve_verdict": "misaligned", "curve_repeats": 1, "curve_fluctuation": 0.5, "curve_max_abs_error": 0.5}
OTHER_WEIGHT = {"weights_different": ["head.weight"], "weights_different_count": 1}
OTHER_INPUT = {
    "inputs_different": ["step1.timestep"],
    "inputs_different_count": 1,
    "inputs_described": ["step1.timestep: 955.2 / 956"],
    "input_words": "955.2 / 956",
    "first_input_is": "data",
}
CHANGED_INPUT = {**OTHER_INPUT, "input_change": "channels in the order 2, 1, 0", "input_change_kinds": ["channels"]}
FROM_ELSEWHERE = {"first_input_is": "elsewhere", "inputs_from_elsewhere": ["rank1.step1.x"]}
MORE_STEPS = {"other_amounts": ["the reference made 5 steps and the target 7"]}
COPIED_WEIGHT = {
    "copied_weights": ["head / linear reads a copy of embed.weight on the target"],
    "copied_weights_where": "head / linear",
    "copied_weights_stale": 1,
}
ROUNDED_TWICE = {  # a product in bfloat16 times 1.01
    "family": "matmul",
    "low_precision": True,
    "scale_slope": 1.0097,
    "scale_share": 0.933,
    "introduced_factor_share": 0.05,
}
STALE_INPUT = {"inputs_stale": ["rank1.step1.x: made by (model)@1.0 on the reference, (model) on the target"]}
AS_IS = {
    "failing": 0,
    "as_is": "differs",
    "as_is_why": "the script as it is does not agree: the gradients of step 0 differ by 0.3, limit 0.0002",
    "as_is_repeats": False,
    "recipe_changes": ["dropout removed (3 places)"],
    "changes_undone": "determinism.dropout=kept determinism.random_numbers=cpu",
}
WRITING = {"writing_part": "decode", "writing_token": 3, "writing_tokens": 8}
OTHER_TOKEN = {
    "writing_tokens": 8,
    "other_tokens": ["token 3 of prompt 1: 412 / 97"],
    "other_tokens_count": 1,
    "other_tokens_why": "near tie",
    "failing": 0,
}

TABLE = [
    ("PF101", {"unrepeatable_target": ["a / index_put"]}, {}),
    ("PF102", MATMUL, {**MATMUL, "error_cosine": 0.9}),
    ("PF102", MATMUL, {**MATMUL, "operand_bits": 0, "operand_share": 0.02}),
    ("PF102", MATMUL, {**MATMUL, "exact_products": 3}),
    ("PF102", {**MATMUL, "operand_bits": 10, "operand_share": 0.999, "exact_products": 3}, {}),
    ("PF102", {**MATMUL, "error_bits": 13.9}, {**MATMUL, "error_bits": 20.0}),
    ("PF102", MATMUL, {**MATMUL, "low_precision": True}),
    ("PF103", {"seed_target": 1}, {}),
    (
        "PF104",
        {"misspelt_variables": ["HCCL_DETERMINISITIC is set, but nothing reads it: did you mean HCCL_DETERMINISTIC?"]},
        {},
    ),
    ("PF105", {"package_differences": ["torch.version: 2.13.0 / 2.6.0"]}, {"package_differences": ["x: 1 / 2"], "failing": 0}),
    ("PF106", {"family": "random"}, {"family": "random", "status": "pass"}),
    ("PF106", {"drawn_between": ["attn / dropout"]}, {"between_target": ["attn / dropout", "attn / sdpa"]}),
    ("PF107", {"damage": ["target: rank0/step0/records-0.jsonl:3 is torn"]}, {"unpaired_count": 1, "unpaired_target": ["a"]}),
    ("PF201", {"status": "shape", "target_shape": [3, 2]}, {}),
    (
        "PF201",
        {"status": "shape", "target_shape": [3, 2], "operator": "nonzero", "shape_follows_values": True},
        {"status": "shape", "target_shape": [3, 2], "input_shapes_equal": False},
    ),
    (
        "PF201",
        {"status": "shape", "target_shape": [3, 2], "inputs_equal": False},
        {"status": "shape", "target_shape": [3, 2], "shape_follows_values": True, "inputs_equal": False},
    ),
    ("PF206", {"arguments_elsewhere": ["a / layer_norm: eps: 1e-05 / 1e-06"], "failing": 0}, {}),
    ("PF202", {"status": "dtype", "target_output_dtype": "float16"}, {}),
    (
        "PF202",
        {"status": "dtype", "target_output_dtype": "int32"},
        {"status": "dtype", "wrapped_type": "int8", "wraps_at": 128},
    ),
    ("PF203", {"arguments_different": ["eps: 1 / 2"]}, {}),
    ("PF204", {"unpaired_count": 1, "unpaired_target": ["a / rope"]}, {"unpaired_count": 1, "damage": ["torn"]}),
    ("PF204", {"unpaired_count": 1, "unpaired_target": ["a / rope"]}, {**FURTHER_BACKWARD, "unpaired_count": 1}),
    ("PF424", FURTHER_BACKWARD, {}),
    ("PF205", {"wired_differently": ["its input 0 comes from a"], "introduced_fault": False}, {"introduced_fault": False}),
    ("PF207", {**BETWEEN, "between_reference": ["attn / softmax"]}, BETWEEN),
    ("PF207", {**BETWEEN, "between_reference": ["a / add"]}, {"between_target": ["a / add"], "drawn_between": ["a / add"]}),
    ("PF234", BETWEEN, {**BETWEEN, "between_reference": ["attn / softmax"]}),
    ("PF234", {"between_reference": ["a / mul"]}, {"between_target": ["a / dropout"], "drawn_between": ["a / dropout"]}),
    ("PF217", variant("no_weight"), variant("not_centred")),
    ("PF218", variant("unbiased_variance"), variant("unbiased_variance", **{**EPSILON, "epsilon_share": 0.9999})),
    ("PF219", ARGUMENT, {**ARGUMENT, "argument_values": []}),
    ("PF219", ARGUMENT, {**ARGUMENT, "arguments_different": ["mode: 'bilinear' / 'nearest'"]}),
    ("PF219", ARGUMENT, {**ARGUMENT, **variant("other_slope")}),
    ("PF219", {**ARGUMENT, **EPSILON, "epsilon_share": 0.5}, {**ARGUMENT, **EPSILON}),
    ("PF219", TWO_VALUES, {"operator": "interpolate"}),
    ("PF221", TAIL, {**TAIL, "rearranged": "in another order along axis 0"}),
    ("PF221", {**TAIL, "zero_share": 0.0}, {"zero_share": 1.0}),
    ("PF221", {"unchanged": "the last 7 of 16 along axis 3"}, {"unchanged": ""}),
    ("PF222", variant("last_terms_left_out"), {}),
    ("PF222", variant("terms_left_out", variant_detail="8 to 10 of 48"), variant("")),
    ("PF222", variant("terms_added_twice", variant_detail="1 of 48"), variant("memory_order")),
    ("PF223", variant("memory_order", variant_detail="first"), variant("last_terms_left_out")),
    ("PF236", variant("not_bent", variant_says="hands on its input as it is"), variant("norm_added")),
    ("PF237", {"module_settings": ["eps: 1e-05 / 0.001"]}, {}),
    ("PF209", variant("norm_added", variant_detail="rms_norm of its first"), variant("only_second")),
    ("PF209", variant("norm_added", variant_detail="layer_norm of its second"), variant("")),
    ("PF224", variant("only_second"), variant("only_first", **MASK)),
    ("PF225", CUT, {**CUT, "variant": "straight_lines"}),
    ("PF225", CUT, {**CUT, "clamp_value": 0.0}),
    ("PF226", PERMUTED, {**PERMUTED, "scale_share": 0.9999, "scale_slope": -1.0}),
    ("PF226", PERMUTED, PAIRED),
    ("PF226", PERMUTED, {**PERMUTED, **variant("rows_shifted", variant_share=0.93)}),
    ("PF229", ROWS_READ, {**ROWS_READ, **variant("rows_shifted")}),
    ("PF230", {"wrapped_type": "int8", "wraps_at": 128}, {"wrapped_type": ""}),
    ("PF302", variant("uniform"), {"uniform_target": 1.0, "uniform_reference": 1.0}),
    ("PF302", {"uniform_target": 1.0, "uniform_reference": 0.0}, {"uniform_target": 0.3, "uniform_reference": 0.0}),
    ("PF303", variant("other_axis"), {}),
    ("PF304", variant("last_keys_ignored"), variant("uniform")),
    ("PF305", {"nan_rows_masked": 1.0, "nonfinite_target_only": 4}, {"nan_rows_masked": 0.2, "nonfinite_target_only": 4}),
    ("PF305", {"masked_rows_wrong": 1.0}, {"masked_rows_wrong": 1.0, **MASK}),
    ("PF306", {"first_sample_right": True}, {"first_sample_right": True, **MASK}),
    ("PF306", {"first_sample_right": True}, {"first_sample_right": True, **ROWS_READ}),
    (
        "PF306",  # behind a window of attention that is missing, a short first sample is right
        {"first_sample_right": True, "operator": "module", "name": "model", "first_suspect": "model"},
        {"first_sample_right": True, "operator": "module", "name": "model", "first_suspect": "layers.0.self_attn"},
    ),
    ("PF311", PAIRED, PERMUTED),
    ("PF312", ROTATED, {**ROTATED, "sign_share": 0.99}),
    ("PF312", ROTATED, {**ROTATED, "norm_change": 0.12}),
    ("PF312", {**ROTATED, "norm_spread": 1e-4}, {**ROTATED, "norm_spread": 0.006, "name": "layers.0.attention"}),
    ("PF312", {**ROTATED, "norm_spread": 0.1, "name": "layers.0.attention"}, {**ROTATED, "norm_spread": 0.0, "name": "norm"}),
    ("PF313", {"sign_share": 0.99, "scale_slope": 0.1}, {"sign_share": 0.99, "scale_slope": -1.0}),
    ("PF314", GROWING, {**GROWING, "border": "the last 3 of 64 along axis 1"}),
    ("PF314", GROWING, {**GROWING, "position_rank": 0.3}),
    ("PF314", GROWING, {**GROWING, "operator": "module backward"}),
    ("PF315", variant("rows_shifted"), {}),
    ("PF315", variant("positions_shifted", variant_detail="by 2"), variant("only_first")),
    ("PF404", LOSS, {**LOSS, "scale_slope": 0.8}),
    ("PF404", {**LOSS, "scale_slope": 4.0}, {**LOSS, "name": "fc / linear"}),
    ("PF509", {"saturated_target": 3, "nonfinite_reference": 3}, {"saturated_target": 0, "nonfinite_reference": 3}),
    ("PF510", {"flushed": 1}, {}),
    ("PF510", {"flushed": 900}, {"flushed": 900, **variant("relu")}),
    ("PF208", BEHIND, {**BEHIND, "introduced_fault": True}),
    ("PF208", BEHIND, {**BEHIND, "inputs_equal": True}),
    ("PF321", {**WRITING, "cache_slots": "keys of layer 0: position 2 of all heads is zeros", "cache_starts": True}, WRITING),
    ("PF322", WRITING, {**WRITING, "cache_slots": "keys of layer 0: position 2 of all heads is zeros"}),
    ("PF322", {**WRITING, "writing_part": "prefill", "writing_token": 1}, {"writing_tokens": 8}),
    ("PF323", OTHER_TOKEN, {**OTHER_TOKEN, "other_tokens_why": "fault"}),
    ("PF323", OTHER_TOKEN, {**OTHER_TOKEN, "failing": 3}),
    ("PF601", {}, {"suspect_count": 2}),
    ("PF601", {**SCALED, "gradient_factor": 1.001}, SCALED),  # that says more
    ("PF601", {"accepted_count": 0}, {"accepted_count": 1}),
    ("PF602", {"suspect_count": 9}, {"suspect_count": 2}),
    (
        "PF603",
        {
            "parts_to_blame": ["unet"],
            "parts_that_inherit": ["vae"],
            "part_starts": "unet.up",
        },
        {"parts_to_blame": [], "parts_that_inherit": ["vae"]},
    ),
    ("PF602", {"suspect_count": 9, "suspect_kinds": ["a", "b"]}, {"suspect_count": 9, "suspect_kinds": ["a"]}),
    ("PF212", variant("gelu_tanh", scale_share=0.99), variant("inputs_in_float16", family="activation")),
    ("PF212", {"family": "activation"}, {"family": "activation", "own_error_units": 1.2}),
    ("PF212", {"family": "activation"}, {"family": "activation", "few_share": 0.02, "few_rows": 1, "curve_share": 0.04}),
    (
        "PF212",
        variant("other_slope", clamp_share=1.0, clamp_value=0.0),
        variant("other_slope", clamp_share=1.0, clamp_value=0.1),
    ),
    ("PF212", {"family": "activation", **TWO_VALUES}, {"family": "activation", **ARGUMENT}),
    ("PF212", variant("other_slope", **ARGUMENT), {"family": "activation", **ARGUMENT}),
    ("PF215", {"movement": True, **TWO_VALUES}, {"movement": True, **ARGUMENT}),
    ("PF213", variant("inputs_in_bfloat16"), variant("inputs_in_bfloat16", **MATMUL, operand_bits=10)),
    ("PF213", {**MATMUL, "sum_type": "bfloat16"}, {**MATMUL, "sum_type": ""}),
    ("PF213", {**MATMUL, "operand_bits": 7}, {**MATMUL, "operand_bits": 11}),
    ("PF102", {**MATMUL, "operand_bits": 10}, {**MATMUL, "operand_bits": 7}),
    ("PF301", MASK, {**MASK, **variant("uniform")}),
    ("PF301", {**MASK, "mask_pattern": "inverted", "masked_target": 900}, {**MASK, **variant("last_keys_ignored")}),
    ("PF422", SHARED, {**SHARED, "inputs_shared": []}),
    ("PF402", {**SHARED, "inputs_shared": []}, SHARED),
    ("PF421", CHANGED_WEIGHTS, {**CHANGED_WEIGHTS, "weight_change": ""}),
    ("PF401", {**CHANGED_WEIGHTS, "weight_change": ""}, CHANGED_WEIGHTS),
    ("PF420", GIVEN, {**GIVEN, "inputs_different_count": 1}),
    ("PF420", {**GIVEN, "given_change": "", "given_error": 0.1}, {}),
    ("PF501", {"nonfinite_target_only": 3}, {"nonfinite_target_only": 3, "nan_rows_masked": 1.0}),
    ("PF211", {"scale_slope": 1.01, "scale_share": 0.9999}, {"scale_slope": 1.01, "scale_share": 0.5}),
    (
        "PF211",
        {"scale_slope": 1.01, "scale_share": 0.96, "low_precision": True},
        {"scale_slope": 0.9, "scale_share": 0.98, **EPSILON},
    ),
    (  # where a tanh is saturated all its values are rounded alike, which a curve explains and a factor does not
        "PF211",
        {"family": "activation", "scale_slope": 1.03, "scale_share": 0.994, "curve_share": 0.999, **ONE_FACTOR},
        {
            "family": "activation",
            "scale_slope": 1.03,
            "scale_share": 0.994,
            "curve_share": 0.999,
            **ONE_FACTOR,
            **ANOTHER_CURVE,
        },
    ),
    (
        "PF212",
        {
            "family": "activation",
            "scale_slope": 1.03,
            "scale_share": 0.994,
            "curve_share": 0.999,
            **ONE_FACTOR,
            **ANOTHER_CURVE,
        },
        {"family": "activation", "scale_slope": 1.03, "scale_share": 0.994, "curve_share": 0.999, **ONE_FACTOR},
    ),
    (  # rows that each have a factor of their own, near 1.02
        "PF211",
        {"scale_slope": 1.02, "scale_share": 0.995, "introduced_factor_share": 0.8},
        {"scale_slope": 1.02, "scale_share": 0.995, "introduced_factor_share": 1.6},
    ),
    (
        "PF211",
        {"scale_slope": 1.02, "scale_share": 0.97, "low_precision": True, "uneven_factor": ""},
        {"scale_slope": 1.02, "scale_share": 0.97, "low_precision": True, "uneven_factor": "rows"},
    ),
    ("PF211", {"operator": "module", "scale_slope": 1.01, "scale_share": 0.9999}, {}),
    (  # the second moment has the square of what the gradient has that the optimizer is given
        "PF211",
        {"operator": "optimizer", "inputs_equal": True, "scale_slope": 70.0, "scale_share": 1.0},
        {"operator": "optimizer", "inputs_equal": False, "scale_slope": 70.0, "scale_share": 1.0},
    ),
    ("PF211", ROUNDED_TWICE, {**ROUNDED_TWICE, "family": "activation"}),
    ("PF211", ROUNDED_TWICE, {**ROUNDED_TWICE, "introduced_factor_share": 0.2}),
    ("PF211", ROUNDED_TWICE, {**ROUNDED_TWICE, "low_precision": False}),
    (  # a constant that is added to values near each other: a factor explains most of it, and leaves far more than rounding
        "PF211",
        {"scale_slope": 0.99, "scale_share": 0.999999, "own_error_units": 1e4},
        {"scale_slope": 0.99, "scale_share": 0.995, "own_error_units": 1e4},
    ),
    (
        "PF211",
        {"scale_slope": 0.99, "scale_share": 0.99, "ratio": 50.0, "in_place": False},
        {"scale_slope": 0.99, "scale_share": 0.99, "ratio": 2e4, "in_place": False},
    ),
    (
        "PF211",
        {"scale_slope": 1.01, "scale_share": 1.0, "elements": 8},
        {"scale_slope": 1.01, "scale_share": 1.0, "elements": 1},
    ),
    ("PF212", {"family": "activation", "curve_share": 0.99}, {"family": "activation", "scale_share": 0.99}),
    (
        "PF212",
        {"family": "activation", "curve_share": 0.999, "scale_share": 0.97},
        {"family": "activation", "scale_share": 1.0},
    ),
    ("PF213", {"family": "softmax", "narrow_type": "float16"}, {"family": "softmax"}),
    ("PF214", EPSILON, {**EPSILON, "epsilon_share": 0.3}),
    ("PF214", EPSILON, {**EPSILON, "epsilon_target": 1.1e-5}),
    ("PF214", EPSILON, {**EPSILON, **variant("unbiased_variance", epsilon_share=0.98)}),
    (
        "PF214",
        EPSILON,
        {**EPSILON, **variant("unbiased_variance", epsilon_share=0.972, variant_share=0.97)},
    ),  # as good without a number
    ("PF214", {**EPSILON, "own_error_units": 50.0}, {**EPSILON, "epsilon_share": 0.9, "own_error_units": 50.0}),
    (
        "PF218",
        variant("unbiased_variance", epsilon_share=0.9993),
        variant("unbiased_variance", epsilon_share=0.9993, variant_share=0.98),
    ),
    ("PF215", {"movement": True}, {"movement": True, "between_reference": ["(outside) / setitem"]}),
    ("PF215", {"movement": True, "operator": "transpose"}, {"movement": True, "inputs_equal": False, "inputs_differ": True}),
    (
        "PF215",
        {**MOVED, "introduced_fault": True},
        {**MOVED, "introduced_fault": False},
    ),
    ("PF226", {**PERMUTED, "rearranged": "halves exchanged along the last axis"}, PAIRED),
    ("PF311", PAIRED, {**PAIRED, "rearranged": "halves exchanged along the last axis"}),
    ("PF213", {"half_steps": True}, {}),
    ("PF216", {"changed": "input 0 after a / linear returned it (model.py:3 in forward)", "operator": "tanh"}, {}),
    (
        "PF227",
        {"introduced_fault": True, "alone_fault": False, "alone_error": 1e-8},
        {"introduced_fault": True, "alone_fault": True},
    ),
    ("PF227", {"introduced_fault": True, "alone_fault": False, "alone_error": 1e-8}, {"introduced_fault": True}),
    ("PF231", {**BACKWARD, "backward_change": "bfloat16"}, {**BACKWARD, "backward_change": "operands_10"}),
    ("PF231", {**BACKWARD, "backward_change": "operands_7"}, {**BACKWARD, "backward_change": ""}),
    (
        "PF231",
        {**BACKWARD, "backward_change": "float16"},
        {**BACKWARD, "backward_change": "float16", "backward_other_share": 0.999},
    ),
    ("PF232", {**BACKWARD, "backward_change": "operands_10"}, {**BACKWARD, "backward_change": "operands_7"}),
    (
        "PF232",
        {**BACKWARD, "backward_change": "operands_11"},
        {**BACKWARD, "backward_change": "operands_11", "backward_other_share": 0.999},
    ),
    ("PF233", {**BACKWARD, "backward_change": "scaled", "backward_factor": 1.01}, {**BACKWARD, "backward_change": "bfloat16"}),
    ("PF233", {**BACKWARD, "backward_change": "scaled", "backward_factor": 0.0}, BACKWARD),
    ("PF235", {**BACKWARD, "backward_change": "form_gelu_tanh"}, {**BACKWARD, "backward_change": "bfloat16"}),
    (
        "PF233",
        {**BACKWARD, "backward_change": "scaled"},
        {**BACKWARD, "backward_change": "scaled", "backward_other_share": 0.9999},
    ),
    ("PF406", {"tokens_left_out": "2 of 48 (rows 45, 46)", "tokens_ratio": 1.04}, {}),
    ("PF406", {"tokens_added": "2 of 48 (rows 3, 4)", "tokens_ratio": 0.96}, {"tokens_left_out": "", "tokens_ratio": 1.0}),
    ("PF418", {"labels_shifted": -1, "labels_shifted_rows": 8}, {"labels_shifted": 0}),
    ("PF419", {"loss_gradient": "head (backward)"}, {"loss_gradient": "head (backward)", "labels_shifted": 1}),
    ("PF419", {"loss_gradient": "head (backward)"}, {"loss_gradient": "head (backward)", **SCALED}),  # which says more
    ("PF419", {"loss_alone": True}, {"loss_alone": True, **SCALED}),
    ("PF601", {}, {"loss_gradient": "head (backward)"}),
    ("PF601", {}, {"written_weights": ["head.weight: 0.04 / 0.07"]}),
    ("PF228", ALONE, variant("gelu_tanh", **ALONE)),
    ("PF228", ALONE, {**ALONE, "family": "random"}),
    ("PF228", ROW, {**ROW, **MASK, "family": "softmax"}),
    ("PF228", {**ALONE, **MASK}, {**ROW, **TAIL}),
    ("PF301", {**OTHER_SAMPLE, **ALONE}, {**OTHER_SAMPLE, **ALONE, "mask_pattern": "partly missing"}),  # few are padded
    ("PF301", {**OTHER_SAMPLE, **ALONE}, {**OTHER_SAMPLE, **ALONE, "masked_different": 1}),
    ("PF228", {**OTHER_SAMPLE, **ALONE, "mask_pattern": ""}, {**OTHER_SAMPLE, **ALONE}),
    ("PF228", ROW, {**ROW, "border": "both ends of axis 2, 2 of 40", "zero_share": 0.0}),  # another padding
    ("PF228", {**ALONE, **CUT}, {**ALONE, **CUT, "isolated_extreme": True}),
    ("PF211", {"scale_slope": 1.5, "scale_share": 0.999}, {"scale_slope": 1.5, "scale_share": 0.999, **ALONE}),
    ("PF212", {"family": "activation"}, {"family": "activation", **ALONE}),
    ("PF212", {"family": "activation", "curve_share": 0.9}, {"family": "activation", "curve_share": 0.1}),
    ("PF221", TAIL, {**TAIL, **ALONE}),
    ("PF301", MASK, {**MASK, **ALONE}),
    ("PF313", {"sign_share": 0.99, "scale_slope": 0.1}, {"sign_share": 0.99, "scale_slope": 0.9, **ALONE}),
    ("PF404", {**LOSS, "scale_slope": 30.0}, {**LOSS, "scale_slope": 30.1}),
    ("PF225", CUT, {**CUT, "elements": 9}),
    ("PF211", {"scale_slope": 1.01, "scale_share": 0.9999}, variant("unbiased_variance", scale_slope=1.01, scale_share=0.9999)),
    ("PF299", {}, EPSILON),
    ("PF299", SCALED, {**SCALED, "operator": "linear backward"}),  # which has the factor of all gradients
    ("PF299", {**SCALED, "operator": "linear backward", "introduced_fault": True}, EPSILON),  # wrong at its own inputs
    ("PF301", MASK, {**MASK, "masked_target": 1000, "masked_different": 0}),
    ("PF301", {**MASK, "masked_target": 1000, "masked_different": 2}, {**MASK, "masked_different": 0}),
    ("PF301", {**MASK, "family": "softmax"}, {**MASK, "family": "softmax", "masked_target": 1200, "low_precision": True}),
    ("PF401", {"weights_different": ["a.weight"], "weights_different_count": 1}, {}),
    ("PF402", {"inputs_different": ["input_ids"], "inputs_different_count": 1}, {}),
    ("PF407", {**OTHER_INPUT, **FROM_ELSEWHERE}, OTHER_INPUT),
    ("PF407", {**OTHER_INPUT, **FROM_ELSEWHERE}, {**OTHER_INPUT, **FROM_ELSEWHERE, **STALE_INPUT}),
    ("PF412", STALE_INPUT, {**OTHER_INPUT, **FROM_ELSEWHERE}),
    ("PF410", {"weights_of_another_type": ["inv_freq: float32 / bfloat16"], "weights_of_another_type_count": 1}, {}),
    ("PF411", {"weights_tied": ["head.weight is tied to embed.weight on the reference only"]}, {}),
    ("PF401", OTHER_WEIGHT, {**OTHER_WEIGHT, "weights_tied_count": 1}),
    ("PF413", {**COPIED_WEIGHT, "failing": 3}, {**COPIED_WEIGHT, "failing": 0}),
    ("PF409", {"further_calls": ["only the target has call 0 of step 0"]}, OTHER_INPUT),
    ("PF414", {"warm_ups": ["step 0 warms up on the target: all 3 outputs are 0"]}, {"warm_ups": []}),
    ("PF402", OTHER_INPUT, {**OTHER_INPUT, "warm_ups": ["step 0 warms up on the target: its model is given zeros alone"]}),
    ("PF415", {"padding_differs": "only rows of padding differ, where step0.mask is 0", "padding_records": 3}, {}),
    ("PF416", {"residuals_outside": ["the target adds input 0 of mlp inside of it, and the reference outside"]}, {}),
    ("PF408", {**OTHER_INPUT, "first_input_is": "choice", "inputs_chosen": ["step0.call1.ids"]}, OTHER_INPUT),
    ("PF402", OTHER_INPUT, CHANGED_INPUT),
    ("PF417", CHANGED_INPUT, OTHER_INPUT),
    ("PF417", CHANGED_INPUT, {**CHANGED_INPUT, "first_input_is": "elsewhere"}),
    ("PF402", OTHER_INPUT, {**OTHER_INPUT, "first_input_is": "choice", "inputs_chosen": ["step1.timestep"]}),
    ("PF405", {"other_weight": "ema.weight", "introduced_fault": False}, {"introduced_fault": False}),
    ("PF405", {"other_weight": "ema.weight"}, {"other_weight": "ema.weight", "introduced_fault": True}),
    ("PF403", {"given_differently": "input 1", "introduced_fault": False}, {"introduced_fault": False}),
    ("PF501", {"nonfinite_target_only": 3, "nonfinite_target": 3}, {"nonfinite_target_only": 3, **MASK}),
    ("PF502", {"overflow_share": 1.0, "reference_max": 1e5}, {"overflow_share": 0.1}),
    (
        "PF504",
        {"accumulated": True, "inputs_use": 0.95, "ratio": 1.8},
        {"accumulated": True, "inputs_use": 0.95, "ratio": 45.0},
    ),
    (
        "PF504",
        {"accumulated": True, "inputs_use": 0.95, "ratio": 1.8},
        {"accumulated": True, "inputs_use": 0.95, "ratio": 1.8, "introduced_fault": True},
    ),
    ("PF505", SATURATED, {**SATURATED, "overflow_kind": "infinity"}),
    ("PF505", {**SATURATED, "overflow_ends": ["infinity", "nan"]}, {**SATURATED, "failing": 0}),
    ("PF506", {"overflow_both": ["a / exp"]}, {"overflow_target": ["a / exp: 1 infinite"]}),
    (
        "PF506",
        {"overflow_both": ["a / exp"], "left_out_both": ["step 0"]},
        {"overflow_both": ["a (backward)"], "left_out_both": ["step 0"]},
    ),
    ("PF507", {"left_out_target": ["step 1", "step 2"]}, {"left_out_both": ["step 1"]}),
    ("PF507", {"left_out_reference": ["step 1"]}, {}),
    ("PF508", {"left_out_both": ["step 0"]}, {"left_out_target": ["step 0"]}),
    ("PF801", {"optimizer_settings": [RATE]}, {"optimizer_settings": [RATE], "rate_shift": 1}),
    ("PF801", {"optimizer_settings": [RATE]}, {"optimizer_settings": [RATE], "state_anew": "target", "state_counts": "5 / 1"}),
    ("PF801", {"optimizer_choices": [CLASS], "first_suspect_phase": "optimizer"}, {"optimizer_choices": [CLASS]}),
    ("PF801", {"optimizer_choices": [CLASS], "optimizer_settings_proven": [CLASS]}, {"optimizer_choices": [CLASS], **STILL}),
    ("PF810", STILL, {**STILL, "still_why": "rounded"}),
    ("PF811", {**STILL, "still_why": "rounded"}, STILL),
    ("PF822", {"operator": "optimizer", "gradient_agrees": True}, {"operator": "optimizer", "gradient_agrees": False}),
    ("PF815", {"broken_side": "target", "broken_at": "a / mm", "broken_text": "a / mm: 3 NaN in step 5"}, {}),
    ("PF814", {"micro_factors": [0.589, 3.3], "micro_tokens": [84, 15], "micro_divides": "target"}, {"micro_factors": []}),
    ("PF813", {"gradients_left_side": "target", "gradients_left_step": 1, "gradients_left_share": 1.0}, {}),
    ("PF812", {**STILL, "still_state": "exp_avg"}, STILL),
    ("PF818", {"state_anew": "target", "state_counts": "5 / 1"}, {}),
    ("PF821", {"written_after": 0, "written_weights": ["head.weight: 0.04 / 0.07"], "written_share": 1.0}, {}),
    ("PF830", {"between_side": "target", "between_step": 0, "between_factor": 0.0, "between_share": 1.0}, {}),
    ("PF816", {"copy_differs": "average", "copy_step": 1, "copy_ratio": 40.0, "copy_parameters": 8}, {}),
    ("PF802", WRONG_STEP, {**WRONG_STEP, "optimizer_explained": 0.2}),
    ("PF802", WRONG_STEP, {**WRONG_STEP, "optimizer_faults": 0}),
    ("PF803", {**WRONG_STEP, "optimizer_cause": ""}, WRONG_STEP),
    ("PF804", SCALED, {**SCALED, "gradient_factor": 1.0001}),
    ("PF804", {**SCALED, "gradient_scale_taken_off": False}, {**SCALED, "gradient_scale_taken_off": True}),
    ("PF823", {**SCALED, "gradient_scale_taken_off": True}, {**SCALED, "gradient_scale_taken_off": False}),
    ("PF804", {**SCALED, "gradient_factor": 0.25}, {**SCALED, "gradient_factor_share": 0.5}),
    ("PF805", CLIPPED, {**CLIPPED, **SCALED}),
    ("PF805", CLIPPED, {"gradients_narrow": "bfloat16"}),
    ("PF806", {"gradients_narrow": "bfloat16"}, CLIPPED),
    ("PF807", {"rate_shift": -1, "optimizer_settings": [RATE]}, {"optimizer_settings": [RATE]}),
    ("PF901", {**COLLECTIVE, "reductions": ["mean", "sum"]}, COLLECTIVE),
    ("PF902", {**COLLECTIVE, "left_out": "rank 1"}, COLLECTIVE),
    ("PF902", {**COLLECTIVE, "groups": ["ranks 0, 1", "rank 0"]}, COLLECTIVE),
    ("PF903", COLLECTIVE, {**COLLECTIVE, "ranks_agree": False}),
    ("PF903", COLLECTIVE, {**COLLECTIVE, "reductions": ["mean", "sum"]}),
    ("PF904", {"ranks": 2, "read_early": ["fc / all_reduce"]}, {"ranks": 2, "read_early": []}),
    ("PF905", {"ranks": 2, "first_rank": 1, "only_rank": True}, {"ranks": 2, "first_rank": 1, "only_rank": False}),
    ("PF906", LACKING, {"ranks": 2, "collectives_extra": ["all_reduce"]}),
    ("PF907", {"ranks": 2, "collectives_extra": ["all_reduce"], "gradients_unreduced": False}, LACKING),
    ("PF908", {"lost_result": "fc / all_reduce", "lost_share": 0.5, "lost_of": "elements"}, COLLECTIVE),
    ("PF909", UNEVEN, {**UNEVEN, "uneven_explains": False}),
    ("PF809", {"mixed_precision_different": ["level: none / O2"]}, {}),
    ("PF824", {"loss_type_side": "target", "loss_type": "bfloat16"}, {}),
    ("PF809", {"mixed_precision_different": ["level: none / O2"]}, {"mixed_precision_different": ["x"], "failing": 0}),
    (
        "PF108",
        {
            "device_draw_sites": ["train.py:9 in main: randn on npu"],
            "draws_patch": "draws.patch",
            "inputs_different": ["step0.x"],
        },
        {"inputs_different": [], "failing": 0},
    ),
    (
        "PF109",
        {"changed_by_watching": ["the target capturing changes what it computes: loss after step 0"]},
        {"changed_by_watching": []},
    ),
    (
        "PF116",
        {"compiled_unseen": ["compiled code on the target: 2 modules"], "unpaired_count": 1, "unpaired_reference": ["a.b"]},
        {"compiled_unseen": [], "unpaired_count": 1, "unpaired_reference": ["a.b"]},
    ),
    ("PF241", {"exporter_nodes": ["Gelu g"], "exporter_at": "Gelu g", "exported_by": "dynamo"}, {"links": ["all agree"]}),
    ("PF242", {"optimiser_nodes": ["FusedMatMul m"], "optimiser_at": "FusedMatMul m"}, {"exporter_nodes": ["Gelu g"]}),
    ("PF243", {"half_nodes": ["Cos c"], "half_at": "Cos c", "half_keep": "", "half_kept": "none"}, {"links": ["all agree"]}),
    ("PF245", {"upgrade_nodes": ["Gelu g"], "upgrade_at": "Gelu g"}, {"links": ["the upgrade agrees"]}),
    ("PF244", {"runtime_nodes": ["Erf e"], "runtime_at": "Erf e"}, {"optimiser_nodes": ["FusedMatMul m"]}),
    ("PF115", MORE_STEPS, {"other_amounts": []}),
    ("PF817", {"other_mode": "the target trains in evaluation mode from step 2 on: 1 call of its model more"}, {}),
    ("PF115", MORE_STEPS, {**MORE_STEPS, "further_calls": ["only the target has call 0 of step 0"]}),
    ("PF110", AS_IS, {**AS_IS, "as_is": "agrees"}),
    ("PF110", {**AS_IS, "as_is_alone": True}, {**AS_IS, "as_is_alone": False}),  # a loss differs although every record agrees
    ("PF110", AS_IS, {**AS_IS, "weights_different": ["fc.weight"], "weights_different_count": 1}),
    ("PF110", AS_IS, {**AS_IS, "inputs_different": ["step0.x"], "inputs_different_count": 1}),
    ("PF110", {**AS_IS, "as_is_repeats": True, "changes_undone": ""}, {**AS_IS, "failing": 3}),
    ("PF111", {**AS_IS, "as_is": "not_comparable"}, AS_IS),
    ("PF112", {**AS_IS, "as_is": "failed"}, AS_IS),
    ("PF117", {"sources_different": ["model.py"], "failing": 1}, {"sources_different": ["model.py"], "failing": 0}),
    (
        "PF118",
        {"settings_different": ["argparse.lr: 1 / 2"], "inputs_different_count": 1},
        {"settings_different": [], "inputs_different_count": 1},
    ),
    ("PF119", {"samples_different": "Words, batch 0001: 3 / 4"}, {"samples_different": ""}),
    ("PF808", {"batches_shuffled": True}, {"batches_shuffled": False}),
    ("PF701", FIRST_STEP, {**FIRST_STEP, "curve_verdict": "aligned"}),
    ("PF701", FIRST_STEP, {**FIRST_STEP, "curve_first_rel_error": 0.004}),
    ("PF701", FIRST_STEP, {**FIRST_STEP, "curve_shift": -1}),
    ("PF701", FIRST_STEP, {**FIRST_STEP, "loss_alone": True}),
    ("PF701", FIRST_STEP, {**FIRST_STEP, "inputs_different": ["step0.x"], "inputs_different_count": 1}),
    ("PF701", FIRST_STEP, {**FIRST_STEP, "weights_different": ["fc.weight"], "weights_different_count": 1}),
    ("PF702", LATER, {**LATER, "curve_first_rel_error": 0.006}),
    ("PF702", LATER, {**LATER, "curve_apart_from": -1}),
    (
        "PF702",
        {**LATER, "curve_growth": "noise"},
        {**LATER, "curve_growth": "noise", "curve_repeats": 2, "curve_fluctuation": 0.5, "curve_max_abs_error": 0.4},
    ),
    (
        "PF703",
        {"curve_first_nonfinite_side": "target", "curve_first_nonfinite": 7, "curve_nonfinite_target": 3},
        {
            "curve_first_nonfinite_side": "both",
            "curve_first_nonfinite": 7,
            "curve_nonfinite_target": 3,
            "curve_nonfinite_reference": 3,
        },
    ),
    ("PF704", {"curve_growth": "bias"}, {"curve_growth": "noise"}),
    ("PF705", NOISE, {**NOISE, "curve_max_abs_error": 0.6}),
    ("PF705", NOISE, {**NOISE, "curve_one_sided": True}),
    ("PF705", NOISE, {**NOISE, "curve_repeats": 0}),
    (
        "PF706",
        {"scale_drops_target": [3], "scale_drops_reference": []},
        {"scale_drops_target": [3], "scale_drops_reference": [3]},
    ),
    ("PF707", {"curve_shift": -1}, {}),
    ("PF709", TWICE, {**TWICE, "curve_verdict": "aligned"}),
    ("PF701", FIRST_STEP, {**FIRST_STEP, **TWICE}),
    ("PF701", FIRST_STEP, {**FIRST_STEP, "curve_apart_from": -1}),
    ("PF704", {"curve_growth": "bias"}, {"curve_growth": "bias", **TWICE}),
    ("PF710", MORE, {**MORE, "curve_offset": 0.0}),
    ("PF711", RESUMED, {**RESUMED, "curve_resumed": ""}),
    ("PF702", LATER, RESUMED),
    ("PF712", {"curve_verdict": "misaligned"}, {"curve_verdict": "misaligned", "curve_growth": "noise"}),
    ("PF712", {"curve_verdict": "misaligned"}, {"curve_verdict": "misaligned", "curve_apart_from": 20}),
    ("PF708", {"curve_spikes_target": [70]}, {}),
    ("PF708", {"curve_spikes_reference": [70]}, {}),
]


def evidence(changes):
    """Split changed names into those of the run and those of its one suspect."""
    run = {name: value for name, value in changes.items() if name not in OF_SUSPECT}
    return {**RUN, **run, "suspects": [{**SUSPECT, **{name: value for name, value in changes.items() if name in OF_SUSPECT}}]}


@pytest.mark.parametrize(("identifier", "meets", "misses"), TABLE)
def test_a_shipped_rule_applies_to_its_evidence_and_to_nothing_near_it(identifier, meets, misses):
    found = {finding.rule: finding for finding in advise(evidence(meets), SHIPPED.values())}
    assert identifier in found
    finding = found[identifier]
    assert all((finding.title, finding.why, finding.fix, finding.where))
    assert "{{" not in f"{finding.title}{finding.why}{finding.fix}{finding.where}{finding.try_it}"
    assert identifier not in {one.rule for one in advise(evidence(misses), SHIPPED.values())}


def test_every_shipped_rule_is_in_the_table():
    assert {row[0] for row in TABLE} == set(SHIPPED)


def test_what_confirms_a_rule_is_a_what_if_that_exists():
    known = {path.stem for path in (resources.directory("conf") / "whatif").glob("*.yaml")}
    named = {word.removeprefix("whatif=") for rule in SHIPPED.values() for word in rule.confirm.split()}
    assert named
    assert named <= known


def test_nothing_measured_gives_no_finding_about_the_run_and_does_not_raise():
    assert advise({"suspects": []}, list(SHIPPED.values())) == []
    assert [one.rule for one in advise({"suspects": [{"name": "a"}]}, list(SHIPPED.values()))] == ["PF299"]


def test_names_in_tests_are_evidence():
    assert set(RUN) | set(SUSPECT) <= set(EVIDENCE)


@pytest.mark.parametrize(
    ("identifier", "changes", "certainty"),
    [
        ("PF214", EPSILON, "certain"),
        ("PF211", {"scale_slope": 1.01, "scale_share": 0.9999, "different_values": 4}, "certain"),
        ("PF211", {"scale_slope": 1.01, "scale_share": 0.9999, "different_values": 1}, "possible"),
        ("PF211", {"scale_slope": 1.01, "scale_share": 0.9999, "amount_share": 0.9}, "certain"),
        ("PF211", {"scale_slope": 1.01, "scale_share": 0.9999, "amount_share": 0.9995}, "possible"),  # values that hardly vary
        (
            "PF211",
            {"scale_slope": 1.01, "scale_share": 0.995, "low_precision": True, "introduced_factor_share": 0.4},
            "possible",
        ),
        ("PF421", {**CHANGED_WEIGHTS, "weights_rounded": True}, "likely"),
        ("PF421", {**CHANGED_WEIGHTS, "weights_rounded": True, "weights_untrained": True}, "possible"),
        ("PF219", ARGUMENT, "certain"),
        ("PF219", TWO_VALUES, "possible"),
        ("PF219", {**ARGUMENT, "argument_share": 0.93}, "likely"),
        ("PF219", {**ARGUMENT, "argument_places": 1}, "likely"),  # a loss
        ("PF219", {**ARGUMENT, "argument_places": 1, "low_precision": True}, "possible"),
        ("PF821", {"written_after": 0, "written_weights": ["head.weight: 0.04 / 0.07"], "written_share": 1.0}, "certain"),
        ("PF821", {"written_after": 0, "written_weights": ["head.weight: 0.04 / 0.07"], "written_share": 0.1}, "likely"),
        ("PF237", {"module_settings": ["eps: 1e-05 / 0.001"], "inputs_equal": True}, "certain"),
        (
            "PF237",
            {"module_settings": ["self.scale: 4.0 / 0.25"], "module_settings_declared": False, "inputs_equal": True},
            "likely",
        ),
        ("PF816", {"copy_differs": "ema", "copy_step": 0, "copy_ratio": 3.0}, "likely"),
        ("PF816", {"copy_differs": "ema", "copy_step": 1, "copy_ratio": 40.0}, "certain"),
        ("PF807", {"rate_shift": 1, "rate_shift_steps": 2, "optimizer_settings": [RATE]}, "certain"),
        ("PF807", {"rate_shift": 1, "rate_shift_steps": 1, "optimizer_settings": [RATE]}, "likely"),
        ("PF231", {**BACKWARD, "backward_change": "bfloat16"}, "certain"),
        ("PF231", {**BACKWARD, "backward_change": "bfloat16", "backward_share": 0.93}, "likely"),
        (
            "PF231",
            {**BACKWARD, "backward_change": "bfloat16", "backward_share": 0.93, "backward_other_share": 0.91},
            "possible",
        ),
        ("PF231", {**BACKWARD, "backward_change": "bfloat16", "inputs_equal": False, "introduced_fault": True}, "certain"),
        ("PF232", {**BACKWARD, "backward_change": "operands_10"}, "certain"),
        ("PF406", {"tokens_left_out": "2 of 48 (rows 45, 46)", "tokens_ratio": 1.04}, "certain"),
        ("PF418", {"labels_shifted": 1, "labels_shifted_rows": 8}, "certain"),
        ("PF418", {"labels_shifted": 1, "labels_shifted_rows": 2}, "likely"),
        ("PF406", {"tokens_left_out": "2 of 48 (rows 45, 46)", "tokens_ratio": 1.0}, "likely"),
        ("PF233", {**BACKWARD, "backward_change": "scaled", "backward_factor": 1.01}, "certain"),
        ("PF235", {**BACKWARD, "backward_change": "form_diagonal"}, "certain"),
        ("PF235", {**BACKWARD, "backward_change": "form_diagonal", "backward_left": 40.0}, "likely"),
        ("PF233", {**BACKWARD, "backward_change": "scaled", "backward_factor": 1.01, "backward_left": 40.0}, "likely"),
        ("PF306", {"first_sample_right": True, "reference_shape": [3, 4, 8, 8]}, "likely"),
        ("PF226", {**PERMUTED, "rearranged_exact": False}, "possible"),
        ("PF226", PERMUTED, "certain"),
        ("PF228", ALONE, "likely"),
        ("PF228", {**ALONE, "operator": "cumsum"}, "possible"),
        ("PF229", {**ROWS_READ, "in_place": True}, "certain"),
        ("PF229", {"rows_read": "other values in place of row 3", "in_place": True}, "likely"),
        ("PF230", {"wrapped_type": "int8", "wraps_at": 128, "inputs_equal": False}, "likely"),
        ("PF306", {"first_sample_right": True, "reference_shape": [2, 4, 8, 8]}, "possible"),
        ("PF221", TAIL, "likely"),
        ("PF221", {**TAIL, "zero_block": 0.6}, "possible"),  # values stand between the zeros
        ("PF214", {**EPSILON, "epsilon_share": 0.9}, "likely"),
        ("PF211", {"scale_slope": 1.01, "scale_share": 0.9999, "inputs_equal": False}, "likely"),
        ("PF102", {**MATMUL, "matmul_switches": ["target: matmul.allow_hf32=True"]}, "likely"),
        ("PF102", {**MATMUL, "operator": "conv2d", "matmul_switches": ["target: matmul.allow_hf32=True"]}, "possible"),
        ("PF102", {**MATMUL, "operand_bits": 11}, "certain"),
        ("PF102", {**MATMUL, "operand_bits": 11, "inputs_equal": False}, "likely"),
        ("PF102", {**MATMUL, "operand_bits": 11, "inputs_equal": False, "introduced_fault": True}, "certain"),
        ("PF102", {**MATMUL, "operand_bits": 11, "inputs_equal": False, "introduced_fault": False}, "possible"),
        ("PF201", {"status": "shape", "target_shape": [3, 2]}, "certain"),
        ("PF201", {"status": "shape", "target_shape": [3, 2], "inputs_equal": False}, "likely"),
        ("PF214", {**EPSILON, "inputs_equal": False}, "likely"),
        ("PF214", {**EPSILON, "inputs_equal": False, "accumulated": True}, "possible"),
        ("PF301", MASK, "certain"),
        ("PF108", {"device_draw_sites": ["a.py:9 in main: randn on npu"], "inputs_different": ["step0.x"]}, "certain"),
        ("PF108", {"device_draw_sites": ["a.py:9 in forward: dropout on npu"], "inputs_different": ["step0.x"]}, "likely"),
        (
            "PF108",
            {"device_draw_sites": ["a.py:9 in forward: dropout on npu"], "inputs_different": ["step0.call1.x"]},
            "certain",
        ),
        ("PF108", {"device_draw_sites": ["a.py:9 in forward: dropout on npu"], "inputs_different": ["step1.x"]}, "certain"),
        ("PF801", {"optimizer_settings": [RATE]}, "certain"),
        ("PF801", {"optimizer_settings": [RATE], "failing": 0}, "likely"),
        ("PF801", {"optimizer_settings": [RATE], "optimizer_steps": 3}, "likely"),  # something else fails
        ("PF801", {"optimizer_settings": [RATE], "optimizer_steps": 3, "optimizer_settings_proven": ["lr"]}, "certain"),
        ("PF801", {"optimizer_settings": [RATE], "optimizer_steps": 3, "first_suspect_phase": "optimizer"}, "certain"),  # NaN
        (
            "PF801",
            {"optimizer_settings": [RATE], "optimizer_steps": 3, "first_suspect_phase": "optimizer", "optimizer_faults": 2},
            "likely",
        ),
        ("PF801", {"optimizer_choices": [CLASS], "first_suspect_phase": "optimizer"}, "possible"),
        ("PF810", STILL, "certain"),
        ("PF810", {**STILL, "still_starts": False}, "likely"),
        ("PF810", {**STILL, "still_why": "lost"}, "likely"),
        ("PF802", WRONG_STEP, "certain"),
        ("PF802", {**WRONG_STEP, "optimizer_explained": 0.8}, "likely"),
        ("PF804", SCALED, "certain"),
        ("PF804", {**SCALED, "gradient_factor_estimated": True}, "likely"),
        ("PF804", {**SCALED, "gradient_given_factor": 4.0}, "certain"),
        ("PF804", {**SCALED, "gradient_given_factor": 1.0}, "possible"),
        ("PF805", CLIPPED, "likely"),
        ("PF805", {**CLIPPED, "gradient_factor": 1.0, "gradient_factor_share": 1.0}, "certain"),
        ("PF806", {"gradients_narrow": "bfloat16"}, "likely"),
        (
            "PF806",
            {"gradients_narrow": "bfloat16", "gradients_reference": "unchanged", "gradients_target": "rounded to bfloat16"},
            "certain",
        ),
        ("PF217", variant("no_weight", inputs_equal=False), "likely"),
        ("PF217", variant("no_weight", inputs_equal=False, own_error_units=1.1), "possible"),
    ],
)
def test_certainty_rises_with_the_evidence(identifier, changes, certainty):
    found = {finding.rule: finding for finding in advise(evidence(changes), SHIPPED.values())}
    assert found[identifier].certainty == certainty


def test_the_wording_of_a_finding():
    finding = next(one for one in advise(evidence({**EPSILON, "operator": "layer_norm"}), SHIPPED.values()))
    assert finding.title == "eps of layer_norm differs: 1e-05 on the reference, about 0.001 on the target"
    assert finding.where == "layers.0 / op"
    assert finding.site == "model.py:3 in forward"
    assert ("epsilon that explains the target", "0.001") in finding.evidence
    assert ("inputs bitwise equal", "yes") in finding.evidence


@pytest.mark.parametrize(
    "specific",
    [
        {"scale_slope": 1.01, "scale_share": 0.9999, "different_values": 4},
        {"family": "softmax", "narrow_type": "float16"},
        {**MATMUL, "operand_bits": 10},
        MASK,
        PERMUTED,
        variant("no_bias"),
    ],
)
def test_a_rule_that_knows_more_of_a_suspect_comes_before_the_value_of_an_argument(specific):
    without = advise(evidence(specific), SHIPPED.values())[0].rule
    assert without != "PF299"
    assert advise(evidence({**ARGUMENT, **specific}), SHIPPED.values())[0].rule == without


def test_values_of_an_argument_are_named_with_the_one_that_was_recorded():
    def title(changes):
        return next(one for one in advise(evidence(changes), SHIPPED.values()) if one.rule == "PF219").title

    start = "interpolate computes as if it were called with mode='nearest'"
    assert title(ARGUMENT) == f"{start} on the target, in place of mode='bilinear'"
    assert title(TWO_VALUES) == f"{start} or mode='area' on the target, in place of mode='bilinear'"


def rule(identifier, **options):
    return AdviceRule(**{"id": identifier, "title": "{{ name }}", "when": "true", "why": "w", "fix": "f", **options})


def test_order_is_certainty_then_rank_then_the_graph():
    suspects = [{"name": "first", "status": "a", "inputs_equal": True}, {"name": "second", "status": "b", "inputs_equal": True}]
    rules = [
        rule("PF901", certainty="likely"),
        rule("PF902", certainty="certain", when="status == 'b'"),
        rule("PF903", certainty="certain", when="status == 'a'"),
        rule("PF904", certainty="certain", rank="after", when="status == 'a'"),
        rule("PF905", certainty="likely", rank="before", when="status == 'b'"),
    ]
    assert [one.rule for one in advise({"suspects": suspects}, rules)] == ["PF903", "PF902", "PF904", "PF905", "PF901"]


def test_what_a_rank_lost_comes_before_that_it_is_that_rank():
    lost = {
        "ranks": 2,
        "first_rank": 1,
        "only_rank": True,
        "lost_result": "fc / all_reduce",
        "lost_share": 0.54,
        "lost_of": "energy",
    }
    found = [one.rule for one in advise(evidence(lost), SHIPPED.values())]
    assert found[0] == "PF908"
    assert "PF905" in found


def test_where_the_error_surely_begins_comes_before_a_better_fit_elsewhere():
    suspects = [{"name": "doubtful", "status": "a"}, {"name": "sure", "status": "b", "introduced_fault": True}]
    rules = [
        rule("PF901", certainty="certain", when="status == 'a'"),
        rule("PF902", certainty="unknown", about="unexplained"),
    ]
    found = [(one.rule, one.where, one.certainty) for one in advise({"suspects": suspects}, rules)]
    assert found == [("PF902", "sure", "unknown"), ("PF901", "doubtful", "possible")]


def test_curves_that_have_to_differ_because_the_inputs_do_are_said_at_the_inputs():
    given = {**FIRST_STEP, "inputs_different": ["step0.x"], "inputs_different_count": 1}
    findings = advise(evidence(given), SHIPPED.values())
    assert "PF701" not in {finding.rule for finding in findings}
    first = findings[0]
    assert (first.rule, first.certainty) == ("PF402", "certain")
    assert [because for claim, because in first.against if claim.startswith("PF701")] == [
        "the inputs differ already (PF402), so the curves have to differ from the first step on"
    ]


def test_what_speaks_against_a_rule_rules_it_out_and_is_listed():
    objection = Objection(when="ratio > 2", because="{{ name }} is {{ ratio }} times over")
    rules = [rule("PF901", against=(objection,)), rule("PF902", about="unexplained")]
    (finding,) = advise({"suspects": [{"name": "a", "ratio": 3}]}, rules)
    assert (finding.rule, finding.against) == ("PF902", (("PF901 a", "a is 3 times over"),))
    assert [one.rule for one in advise({"suspects": [{"name": "a"}]}, rules)] == ["PF901"]


def test_evidence_that_was_not_measured_is_neither_true_nor_false():
    assert advise({"suspects": [{"name": "a"}]}, [rule("PF901", when="not inputs_differ")]) == []


def test_a_claim_names_its_place():
    (finding,) = advise({"suspects": [{"name": "a"}]}, [rule("PF901", title="it is wrong", try_it="x=1")])
    assert (finding.claim, finding.confirm) == ("a: it is wrong", "x=1")


def test_one_rule_at_several_places_is_one_finding_that_names_them():
    suspects = [{"name": name} for name in ("q", "k", "v")]
    (finding,) = advise({"suspects": suspects}, [rule("PF901")])
    assert finding.where == "q"
    assert finding.evidence == (("also at", "k, v"),)


def test_infinity_beyond_the_range_of_a_type_begins_there_though_float64_clears_the_call():
    overflow = {
        "name": "big / linear",
        "operator": "linear",
        "status": "nonfinite",
        "overflow_share": 1.0,
        "reference_max": 7.5e5,
    }
    rounded = {"inputs_equal": False, "introduced_fault": False, "nonfinite_target": 528}
    finding = advise({"suspects": [{**overflow, **rounded}]}, [SHIPPED["PF502"]])[0]
    assert (finding.rule, finding.certainty) == ("PF502", "certain")
    (few,) = advise({"suspects": [{**rounded, "overflow_share": 0.1, "name": "a"}]}, [rule("PF901", certainty="certain")])
    assert few.certainty == "possible"


def test_another_place_with_another_claim_is_named_with_its_claim():
    suspects = [{"name": name, "operator": operator} for name, operator in (("q", "linear"), ("k", "linear"), ("s", "softmax"))]
    (finding,) = advise({"suspects": suspects}, [rule("PF901", title="{{ operator }} is wrong")])
    assert finding.title == "linear is wrong"
    assert finding.evidence == (("also at", "k, s (softmax is wrong)"),)


def test_weights_under_other_names_are_no_certain_difference():
    names = {**RUN, "weights_different": ["a", "b"], "weights_different_count": 2}
    (partly,) = [one for one in advise({**names, "weights_on_one_side_count": 1}, SHIPPED.values()) if one.rule == "PF401"]
    (apart,) = [one for one in advise({**names, "weights_on_one_side_count": 2}, SHIPPED.values()) if one.rule == "PF401"]
    assert (partly.title, partly.certainty) == ("2 weights differ, first a", "certain")
    assert (apart.title, apart.certainty) == ("2 weights are on one side only, first a", "possible")
    further = advise({**names, "weights_on_one_side_count": 0, "first_input_is": "calls"}, SHIPPED.values())
    assert [one.certainty for one in further if one.rule == "PF401"] == ["possible"]  # that call may have changed buffers
    assert "Load the same file" in partly.fix
    assert "section pairing" in apart.fix


def test_the_unexplained_rule_is_for_suspects_that_no_other_explains():
    suspects = [{"name": "known", "status": "a"}, {"name": "open", "status": "b"}]
    rules = [rule("PF901", when="status == 'a'"), rule("PF902", about="unexplained")]
    assert [(one.rule, one.where) for one in advise({"suspects": suspects}, rules)] == [("PF901", "known"), ("PF902", "open")]


LAYERS = [{"name": name, "kind": "gelu (backward)"} for name in ("a", "b")]


@pytest.mark.parametrize(
    ("kinds", "certainty", "left"),
    [
        (["gelu (backward)"], "certain", []),
        (["gelu (backward)", "linear (forward)"], "certain", ["whole"]),  # a kind that was not even examined
        (["gelu (backward)"], "likely", ["b", "whole"]),  # it may be another one
    ],
)
def test_what_a_certain_finding_explains_of_a_kind_is_neither_unknown_nor_a_whole_network(kinds, certainty, left):
    rules = [
        rule("PF001", when="name == 'a'", certainty=certainty),
        rule("PF002", about="unexplained", where="{{ name }}", explains=False),
        rule("PF003", about="unexplained_run", where="whole", explains=False),
    ]
    first, *others = [{**one, "inputs_equal": True} for one in LAYERS]
    found = advise({"suspect_kinds": kinds, "suspects": [first, *others]}, rules)
    assert sorted(one.where for one in found if one.rule != "PF001") == left


def test_what_a_later_part_of_the_step_shows_stands_back():
    rules = [rule("PF001", about="run", phase="optimizer", rank="before", where=""), rule("PF002")]
    suspects = [{"name": "a", "inputs_equal": True}]
    order = [
        [one.rule for one in advise({"later_phases": later, "suspects": suspects}, rules)] for later in ([], ["optimizer"])
    ]
    assert order == [["PF001", "PF002"], ["PF002", "PF001"]]


def test_an_optimizer_that_follows_from_an_unknown_cause_does_not_stand_above_it():
    rules = [rule("PF001", when="status == 'a'"), rule("PF002", about="unexplained", certainty="unknown", explains=False)]
    step = {"name": "step", "phase": "optimizer", "status": "a", "inputs_equal": True}
    start = {"name": "start", "phase": "backward", "status": "b"}
    found = advise({"later_phases": ["gradient", "optimizer"], "suspects": [step, start]}, rules)
    assert [one.where for one in found] == ["start", "step"]


def test_missing_evidence_does_not_match_and_is_not_shown():
    names = {"suspects": [{"name": "a"}]}
    assert advise(names, [rule("PF901", when="scale_share > 0.5")]) == []
    nothing = {"suspects": [{"name": "a", "arguments_different": [], "narrow_type": ""}]}
    assert advise(nothing, [rule("PF901", evidence=("arguments_different", "narrow_type"))])[0].evidence == ()
    assert advise(names, [rule("PF901", evidence=("scale_share", "name"))])[0].evidence == (("where", "a"),)


def test_a_condition_that_cannot_be_evaluated_names_its_rule():
    with pytest.raises(ConfigError, match="PF901"):
        advise({"suspects": [{"name": "a"}]}, [rule("PF901", when="name > 3")])


def test_names_of_a_user_are_text_and_never_templates():
    (finding,) = advise({"suspects": [{"name": "{{ 7 * 7 }}<script>"}]}, [rule("PF901")])
    assert finding.title == "{{ 7 * 7 }}<script>"


@pytest.mark.parametrize(
    ("kept", "low_precision", "advice", "change"),
    [
        ("tensors", True, "Run float32 against float32 first", "target.dtype=float32"),
        ("tensors", False, "Compute this operator on CPU", ""),
        ("content id", True, "Run float32 against float32 first", "capture=escalating"),
        ("content id", False, "Keep the tensors of this operator", "capture=escalating"),
    ],
)
def test_what_nothing_explains_asks_for_what_is_missing(kept, low_precision, advice, change):
    names = evidence({"kept": kept, "low_precision": low_precision})
    (finding,) = [one for one in advise(names, SHIPPED.values()) if one.rule == "PF299"]
    assert finding.try_it == change
    assert finding.fix.startswith(advice)
    assert "  " not in finding.fix


@pytest.mark.parametrize(("operator", "inside"), [("module", True), ("linear", False)])
def test_a_module_of_which_only_the_outside_was_recorded_asks_for_its_inside(operator, inside):
    names = {**evidence({"operator": operator, "kept": "tensors"}), "record_inside": "capture.level=[module,api]"}
    (finding,) = [one for one in advise(names, SHIPPED.values()) if one.rule == "PF299"]
    assert finding.try_it == ("capture.level=[module,api]" if inside else "")
    assert finding.fix.startswith("Record what runs inside of this module" if inside else "Compute this operator on CPU")


def test_what_nothing_explains_never_asks_for_what_the_run_does_already():
    names = {**evidence({"kept": "content id"}), "keep_tensors": "capture=tensors"}
    (finding,) = [one for one in advise(names, SHIPPED.values()) if one.rule == "PF299"]
    assert finding.try_it == "capture=tensors"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_clean_run_is_advised_nothing(dtype):
    evidence = {"low_precision": dtype == "bfloat16", "target_dtype": dtype, "reference_dtype": dtype, "failing": 0}
    assert advise({**evidence, "suspects": []}, list(SHIPPED.values())) == []


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("pictures", "antialias"),
        ("times", "float32"),
        ("tokens", "tokenizer"),
        ("mask", "padding"),
        ("", "how this input is made"),
    ],
)
def test_advice_about_other_inputs_speaks_of_what_they_are(kind, word):
    finding = advise({**RUN, **OTHER_INPUT, "input_kind": kind, "suspects": []}, list(SHIPPED.values()))[0]
    assert (finding.rule, word in finding.fix) == ("PF402", True)


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        (["channels", "scale"], ["BGR", "standard deviation"]),
        (["layout"], ["permute"]),
        (["flip"], ["flips"]),
        (["order"], ["sampler"]),
        (["shift"], ["crop"]),
        (["padding"], ["padding_side"]),
        (["tokens"], ["add_special_tokens"]),
    ],
)
def test_advice_about_a_changed_input_speaks_of_each_change_and_of_no_other(kinds, words):
    finding = advise({**RUN, **CHANGED_INPUT, "input_change_kinds": kinds, "suspects": []}, list(SHIPPED.values()))[0]
    said = [word for word in ("BGR", "standard deviation", "permute", "flips", "sampler", "crop", "padding_side",
                              "add_special_tokens") if word in finding.fix]  # fmt: skip
    assert (finding.rule, said) == ("PF417", words)


@pytest.mark.parametrize("is_kept", [True, False])
def test_other_inputs_that_were_not_kept_are_to_be_recorded_with_their_values(is_kept):
    finding = advise({**RUN, **OTHER_INPUT, "first_input_kept": is_kept, "suspects": []}, list(SHIPPED.values()))[0]
    assert (finding.rule, "capture=tensors" in finding.fix) == ("PF402", not is_kept)
    changed = advise({**RUN, **CHANGED_INPUT, "first_input_kept": is_kept, "suspects": []}, list(SHIPPED.values()))[0]
    assert ("509 sums" in changed.why) == (not is_kept)


def test_what_was_tested_and_explains_little_is_ruled_out():
    suspect = {
        "name": "a",
        "operator": "layer_norm",
        "scale_share": 0.12,
        "sign_share": 0.0,
        "clamp_share": 0.001,
        "variant_share": 0.9,
    }
    (finding,) = advise({"suspects": [suspect]}, [rule("PF901", when="operator == 'layer_norm'", evidence=("operator",))])
    assert finding.against == (
        ("one factor for all values", "explains 12 % of the error"),
        ("values that are cut off, another sign", "explain none of the error"),
    )
    (own,) = advise({"suspects": [suspect]}, [rule("PF901", when="scale_share > 0.1 and sign_share == 0 and clamp_share < 1")])
    assert own.against == ()
