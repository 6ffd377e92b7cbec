"""Arguments that differ, with and without a good reason."""

import pytest

from precflow.diagnosis.evidence.suspect import differing, number


@pytest.fixture
def call(hand_made):
    return lambda **arguments: hand_made().operator("a", "op", arguments=arguments)


def test_a_changed_number_is_named_with_both_values(call):
    assert differing(call(eps="1e-05"), call(eps="0.001"), same_dtype=True) == ["eps: 1e-05 / 0.001"]


def test_an_argument_of_one_side_is_absent_on_the_other(call):
    assert differing(call(), call(is_causal="True"), same_dtype=True) == ["is_causal: (absent) / True"]


def test_devices_differ_on_purpose(call):
    assert differing(call(device="device(type='cuda', index=0)"), call(device="'npu:0'"), same_dtype=True) == []


def test_dtypes_and_fill_constants_differ_only_where_the_runs_do(call):
    reference, target = call(dtype="torch.float32", value="-3.4e+38"), call(dtype="torch.float16", value="-65504.0")
    assert differing(reference, target, same_dtype=False) == []
    assert len(differing(reference, target, same_dtype=True)) == 2


def test_a_number_by_name_by_position_or_by_default():
    assert number({"eps": "0.5"}, "eps", 4, 1.0) == 0.5
    assert number({"4": "0.25"}, "eps", 4, 1.0) == 0.25
    assert number({}, "eps", 4, 1.0) == 1.0
    assert number({"eps": "None"}, "eps", 4, 1.0) == 1.0
