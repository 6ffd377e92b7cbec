"""The values of arguments that are tried: read from a call, and never its own."""

import pytest
import torch
from torch.nn import functional

from precflow.agent.hypotheses.of_call.other_value import _TABLE, list_others
from precflow.agent.replay.calls import RecordedCall, SideTensors, StoredTensor

IMAGE = torch.arange(64.0).reshape(1, 1, 8, 8)


def call_of(operator, arguments, *shapes, level="api", **named):
    """Return a call whose tensors have these shapes, by position and by name."""
    given = {**{str(place): shape for place, shape in enumerate(shapes)}, **named}
    inputs = tuple(StoredTensor(path, "float32", shape, None, 0, 0) for path, shape in given.items())
    sides = dict.fromkeys(("reference", "target"), SideTensors(inputs, ()))
    return RecordedCall(operator, level, operator, "", "forward", arguments, sides)


def values_of(call):
    return [(other.argument, other.recorded, other.value) for other in list_others(call)]


def test_an_argument_is_found_by_name_and_by_place_and_has_its_default_where_it_was_not_given():
    for arguments in ({"alpha": "0.5"}, {"1": "0.5"}):
        assert ("alpha", "0.5", "1.0") in values_of(call_of("elu", arguments, (4,)))
    assert ("alpha", "1.0", "0.5") in values_of(call_of("elu", {}, (4,)))
    assert ("alpha", "1.0", "0.5") in values_of(call_of("elu_", {}, (4,)))


def test_a_changed_call_differs_in_that_argument_alone():
    call = call_of("softplus", {"1": "2.0", "2": "20.0"}, (4,))
    others = {(other.argument, other.value): other.call.arguments for other in list_others(call)}
    assert others["beta", "1.0"] == {"1": "1.0", "2": "20.0"}
    assert others["threshold", "5.0"] == {"1": "2.0", "2": "5.0"}


def test_a_value_that_is_given_by_name_alone_is_left_out_for_none():
    call = call_of("div", {"1": "2", "rounding_mode": "'floor'"}, (4,))
    assert [other.call.arguments for other in list_others(call) if other.value == "None"] == [{"1": "2"}]


@pytest.mark.parametrize(
    ("recorded", "shape", "expected"),
    [("-1", (3, 4, 5), ["0", "1"]), ("1", (3, 4), ["0"]), ("[0]", (3, 4), ["[1]"]), ("(0, 1)", (3, 4), []), ("None", (3,), [])],
)
def test_axes_are_the_others_of_the_first_tensor(recorded, shape, expected):
    assert [value for name, _, value in values_of(call_of("sum", {"dim": recorded}, shape)) if name == "dim"] == expected


def test_reductions_are_words_in_functions_and_numbers_in_operators():
    assert ("reduction", "'sum'", "'mean'") in values_of(call_of("mse_loss", {"reduction": "'sum'"}, (4,), (4,)))
    assert values_of(call_of("mse_loss", {}, (4,), (4,), level="operator")) == [("reduction", "1", "2")]


@pytest.mark.parametrize(
    ("padding", "mode"), [({"4": "(1, 1)"}, "reflect"), ({"padding": "1"}, "circular"), ({"4": "'same'"}, "replicate")]
)
def test_a_convolution_is_given_a_padded_input_where_its_function_knows_no_mode(padding, mode):
    call = call_of("conv2d", padding, (1, 1, 8, 8), (2, 1, 3, 3))
    (other,) = [one for one in list_others(call) if one.value == repr(mode)]
    assert other.call.arguments == {next(iter(padding)): "[0, 0]"}
    padded = other.change({"0": IMAGE, "1": torch.ones(2, 1, 3, 3)})["0"]
    assert torch.equal(padded, functional.pad(IMAGE, (1, 1, 1, 1), mode=mode))


def test_a_convolution_without_padding_has_none_to_vary():
    assert not [one for one in list_others(call_of("conv2d", {}, (1, 1, 8, 8), (2, 1, 3, 3))) if "padding" in one.argument]
    assert values_of(call_of("convolution", {"padding": "[1]", "transposed": "True"}, (1, 1, 8), (1, 2, 3))) == []


def test_a_running_sum_without_the_element_itself_is_that_of_later_elements():
    call = call_of("cumsum", {"1": "0"}, (3,))
    (other,) = [one for one in list_others(call) if one.argument == "exclusive"]
    assert other.change({"0": torch.tensor([1.0, 2.0, 4.0])})["0"].tolist() == [0.0, 1.0, 2.0]


def test_a_tensor_that_has_no_effect_is_left_out():
    call = call_of("cross_entropy", {"reduction": "'mean'"}, (4, 3), (4,), weight=(3,))
    (other,) = [one for one in list_others(call) if one.argument == "weight"]
    assert other.call.arguments["weight"] == "None"
    assert set(other.change({"0": IMAGE, "1": IMAGE, "weight": IMAGE})) == {"0", "1"}
    assert not [
        one for one in list_others(call_of("cross_entropy", {"weight": "None"}, (4, 3), (4,))) if one.argument == "weight"
    ]


def test_arguments_that_cannot_be_read_or_are_tensors_are_left_alone():
    assert values_of(call_of("elu", {"alpha": "<object>"}, (4,))) == []
    assert ("min", "a tensor", "None") not in values_of(call_of("clamp", {}, (4,), min=(4,)))
    assert values_of(call_of("leaky_relu", {}, (4,), negative_slope=())) == []


def test_functions_that_are_not_in_the_table_and_forms_with_rules_of_their_own_are_not_tried():
    for operator in ("relu", "gelu", "layer_norm", "group_norm", "rms_norm", "linear", "matmul"):
        assert list_others(call_of(operator, {}, (4, 4), (4, 4))) == []


def test_no_row_of_the_table_stops_at_a_call_that_it_does_not_expect():
    for operator in _TABLE:
        for call in (call_of(operator, {}), call_of(operator, {"1": "None", "2": "'text'", "dim": "7"}, (2, 3), (2,), (2, 3))):
            assert all(other.value != other.recorded for other in list_others(call))
