"""Evidence about one suspect: what is there by family, and what is left out where it cannot be had."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from precflow.diagnosis.evidence import suspect
from precflow.diagnosis.evidence.names import OF_SUSPECT
from precflow.diagnosis.evidence.suspect import find_different_arguments, find_further_tensors, read_number
from precflow.diagnosis.evidence.tensors import observe
from precflow.diagnosis.findings import Suspect
from precflow.diagnosis.introduced import IntroducedError
from precflow.judgement.verdicts import Judged

VALUES = np.random.default_rng(5).standard_normal((64, 64)).astype(np.float32)


@pytest.fixture
def about(hand_made):
    """Evidence about one operator, whose target gives ``wrong``."""

    def of(operator, wrong, *, right=VALUES, inputs_use=0.0, changed="", **options):
        sides = []
        for value in (right, wrong):
            dump = hand_made()
            before = dump.operator("a", "add", value=VALUES * 2)
            dump.operator("b", operator, before, value=value, **options)
            sides.append(dump)
        call = sides[0].made[1]
        who = Suspect(call.outputs[0].text, call.name, "b", operator, 1, 3.0, "because", "model.py:1", inputs_use, changed)
        (observed,) = observe(*sides, [who])
        return suspect.gather(observed, Judged(who.record, "fail"), same_dtype=True)

    return of


def test_every_name_belongs_to_a_suspect_and_nothing_is_none(about):
    found = about("layer_norm", VALUES * 1.5, arguments={"normalized_shape": "(64,)"})
    assert set(found) <= OF_SUSPECT
    assert None not in found.values()


def test_who_it_is_and_why(about):
    found = about("linear", VALUES * 2, inputs_use=0.7)
    assert (found["name"], found["operator"], found["family"], found["site"]) == (
        "b / linear",
        "linear",
        "matmul",
        "model.py:1",
    )
    assert (found["why_suspect"], found["status"], found["ratio"]) == ("because", "fail", 3.0)
    assert found["accumulated"]
    assert found["inputs_equal"]


@pytest.mark.parametrize(
    ("operator", "phase", "name"),
    [
        ("linear", "forward", "linear"),
        ("linear", "backward", "linear"),
        ("", "forward", "linear"),
        ("", "backward", "linear backward"),
        ("", "gradient", "linear gradient"),
        ("", "optimizer", "optimizer"),
    ],
)
def test_a_module_outside_of_its_forward_is_no_operator_of_that_name(about, operator, phase, name):
    """Rules about ``linear`` speak of its forward, and must not fire for the gradients of a Linear."""
    assert about(operator, VALUES * 2, phase=phase, class_name="Linear")["operator"] == name


def test_what_changed_its_input_is_evidence_where_something_did(about):
    assert "changed" not in about("linear", VALUES * 2)
    assert about("linear", VALUES * 2, changed="input 0 after a / add returned it")["changed"].startswith("input 0")


def test_numbers_of_the_difference(about):
    found = about("linear", VALUES * 2)
    assert found["scale_slope"] == pytest.approx(2)
    assert found["relative_l2"] == pytest.approx(1)
    assert found["error_bits"] == pytest.approx(0, abs=1e-6)
    assert found["error_cosine"] == pytest.approx(1)


def test_another_shape_leaves_the_values_out(about):
    found = about("linear", VALUES[:32])
    assert (found["reference_shape"], found["target_shape"]) == ([64, 64], [32, 64])
    assert "relative_l2" not in found


def test_epsilon_is_fitted_over_one_axis_only(about):
    variance = (2 * VALUES).var(1, keepdims=True)
    wrong = VALUES * np.sqrt(variance / (variance + 4.0))
    assert "epsilon_share" in about("layer_norm", wrong, arguments={"normalized_shape": "(64,)"})
    assert "epsilon_share" not in about("layer_norm", wrong, arguments={"normalized_shape": "(64, 64)"})
    assert "epsilon_share" not in about("group_norm", wrong)


@pytest.mark.parametrize(
    ("operator", "name", "there"),
    [
        ("sigmoid", "curve_share", True),
        ("linear", "curve_share", False),
        ("add", "masked_different", True),
        ("softmax", "masked_different", True),
        ("linear", "masked_different", False),
    ],
)
def test_what_belongs_to_a_family_is_told_of_it_alone(about, operator, name, there):
    assert (name in about(operator, VALUES + 1)) is there


def test_a_narrow_type_counts_only_where_the_reference_is_wider(about):
    halves = VALUES.astype(np.float16).astype(np.float32)
    assert about("softmax", halves)["narrow_type"] == "float16"
    assert about("softmax", VALUES * 2)["narrow_type"] == ""
    assert about("softmax", halves.astype(np.float16))["narrow_type"] == ""


def test_values_of_bfloat16_are_narrow_in_float16(about):
    coarse = VALUES.astype(np.float16).astype(ml_dtypes.bfloat16).astype(np.float16)
    assert about("mul", coarse)["narrow_type"] == "bfloat16"
    assert about("mul", VALUES.astype(np.float16))["narrow_type"] == ""
    assert about("mul", coarse, right=coarse)["narrow_type"] == ""


@pytest.fixture
def call(hand_made):
    return lambda **arguments: hand_made().operator("a", "op", arguments=arguments)


def test_a_changed_number_is_named_with_both_values(call):
    assert find_different_arguments(call(eps="1e-05"), call(eps="0.001"), same_dtype=True) == ["eps: 1e-05 / 0.001"]


def test_an_argument_of_one_side_is_absent_on_the_other(call):
    assert find_different_arguments(call(), call(is_causal="True"), same_dtype=True) == ["is_causal: (absent) / True"]


def test_a_mask_that_is_a_tensor_on_one_side_is_not_absent_there(hand_made):
    """What is a tensor stands among the inputs of a call, and so not among its arguments."""
    given = hand_made().operator("a", "op", {"content": "x"}, {"content": "m"})
    left_out = hand_made().operator("a", "op", {"content": "x"}, arguments={"1": "None"})
    assert find_different_arguments(given, left_out, same_dtype=True) == ["1: (a tensor) / None"]


def test_a_tensor_that_only_one_side_gives_is_named(hand_made):
    with_bias = hand_made().operator("a", "linear", {"content": "x"}, {"content": "b", "weight": "a.bias"})
    plain = hand_made().operator("a", "linear", {"content": "x"})
    assert find_further_tensors(plain, with_bias) == ["1: (absent) / a.bias"]
    assert find_further_tensors(with_bias, plain) == ["1: a.bias / (absent)"]
    assert find_further_tensors(plain, plain) == []
    assert find_further_tensors(with_bias, hand_made().operator("a", "linear", {"content": "x"}, arguments={"1": "None"})) == []


def test_devices_differ_on_purpose(call):
    assert find_different_arguments(call(device="device(type='cuda', index=0)"), call(device="'npu:0'"), same_dtype=True) == []


def test_dtypes_and_fill_constants_differ_only_where_the_runs_do(call):
    reference, target = call(dtype="torch.float32", value="-3.4e+38"), call(dtype="torch.float16", value="-65504.0")
    assert find_different_arguments(reference, target, same_dtype=False) == []
    assert len(find_different_arguments(reference, target, same_dtype=True)) == 2


def test_a_number_by_name_by_position_or_by_default():
    assert read_number({"eps": "0.5"}, "eps", 4, 1.0) == 0.5
    assert read_number({"4": "0.25"}, "eps", 4, 1.0) == 0.25
    assert read_number({}, "eps", 4, 1.0) == 1.0
    assert read_number({"eps": "None"}, "eps", 4, 1.0) == 1.0


SHOWN = IntroducedError("b", "0", "matmul", 70.0, 9.0, "rho", is_fault=True, factor_share=0.4)


def test_what_float64_shows_in_place_is_evidence(hand_made):
    dumps = hand_made(), hand_made()
    call, _ = (dump.operator("b", "linear", value=VALUES) for dump in dumps)
    (observed,) = observe(*dumps, [Suspect(call.outputs[0].text, call.name, "b", "linear", 0, 3.0, "because")])
    judged = Judged(call.outputs[0].text, "fail")
    found = suspect.gather(observed, judged, same_dtype=True, introduced=SHOWN)
    assert (found["introduced_rho"], found["introduced_measure"], found["introduced_fault"]) == (70.0, "rho", True)
    assert "introduced_fault" not in suspect.gather(observed, judged, same_dtype=True)


def test_of_a_gradient_inside_of_a_module_its_output_says_nothing(hand_made):
    dumps = hand_made(), hand_made()
    call, _ = (dump.operator("b", "linear", value=VALUES * factor) for dump, factor in zip(dumps, (1.0, 1.5), strict=True))
    (observed,) = observe(*dumps, [Suspect(call.outputs[0].text, call.name, "b", "linear", 0, 3.0, "because")])
    judged = Judged(call.outputs[0].text, "fail")
    assert suspect.gather(observed, judged, same_dtype=True, introduced=SHOWN)["scale_slope"] == pytest.approx(1.5)
    inside = replace(SHOWN, index="attention.q~0.0")
    assert "scale_slope" not in suspect.gather(observed, judged, same_dtype=True, introduced=inside)


def test_values_that_hardly_vary_fit_an_added_amount_as_well_as_a_factor(about):
    """A critic gives nearly the same score to all pictures of a generator that has learned nothing yet."""
    scores = 0.3 + 1e-3 * VALUES
    found = about("linear", (0.75 * scores + 3e-4 * np.cos(VALUES)).astype(np.float32), right=scores.astype(np.float32))
    assert 1 - found["amount_share"] < 10 * (1 - found["scale_share"]) < 0.01
    varied = about("linear", (0.75 * VALUES).astype(np.float32), right=VALUES.astype(np.float32))
    assert 1 - varied["amount_share"] > 1e3 * (1 - varied["scale_share"])


def test_a_small_shift_of_a_mask_counts_however_long_the_rows_are(about):
    shifted = np.where(np.tril(np.ones((64, 64)), 1) > 0, 0.0, -1e9).astype(np.float32)
    assert about("add", VALUES + shifted)["masked_different"] > 0


def test_an_underflow_is_no_mask(about):
    weights = np.abs(VALUES) + 1e-30
    assert about("softmax", np.where(weights < 1e-7, 0.0, weights).astype(np.float32))["masked_different"] == 0


def test_small_weights_that_are_flushed_are_no_mask_where_rows_then_do_not_add_up_to_one(about):
    weights = (np.exp(VALUES) / np.exp(VALUES).sum(-1, keepdims=True)).astype(np.float32)
    few = np.quantile(weights, 0.1)  # together less than a tenth of each row
    assert about("softmax", weights)["different_values"] > 64
    flushed = np.where(weights < few, 0.0, weights).astype(np.float32)
    assert about("softmax", flushed, right=weights)["masked_different"] == 0
    assert about("softmax", flushed / flushed.sum(-1, keepdims=True), right=weights)["masked_different"] > 0


def test_an_aten_operator_has_the_evidence_of_the_function_that_it_computes(hand_made):
    sides = []
    for epsilon in (1e-5, 1e-1):
        dump = hand_made()
        before = dump.operator("a", "aten.add", value=VALUES * 2)
        given = VALUES * 2
        made = (given - given.mean(1, keepdims=True)) / np.sqrt(given.var(1, keepdims=True) + epsilon)
        dump.operator("b", "aten.native_layer_norm", before, value=made, arguments={"1": "[64]", "4": "1e-05"})
        sides.append(dump)
    call = sides[0].made[1]
    who = Suspect(call.outputs[0].text, call.name, "b", call.operator, 1, 3.0, "because")
    (observed,) = observe(*sides, [who])
    found = suspect.gather(observed, Judged(who.record, "fail"), same_dtype=True)
    assert (found["operator"], found["family"]) == ("layer_norm", "normalisation")
    assert found["epsilon_target"] == pytest.approx(1e-1, rel=0.01)
    assert found["epsilon_share"] > 0.99
