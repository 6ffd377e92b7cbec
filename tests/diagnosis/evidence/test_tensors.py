"""What is read of a call under suspicion, and what is not."""

import ml_dtypes
import numpy as np
import pytest
from msgspec import structs

from precflow.diagnosis.evidence import tensors
from precflow.diagnosis.evidence.tensors import observe, read_pair
from precflow.diagnosis.findings import Suspect
from precflow.errors import DumpError

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def sides(hand_made):
    """Two dumps with one linear each; the target's output is one larger."""
    made = []
    for shift in (0, 1):
        dump = hand_made()
        before = dump.operator("a", "add", value=VALUES)
        dump.operator("b", "linear", before, {"weight": "b.weight", "content": "w"}, value=VALUES + np.float32(shift))
        made.append(dump)
    return made


def suspect_of(call):
    return Suspect(call.outputs[0].text, call.name, call.module, call.operator, call.order, 2.0, "why")


def test_inputs_and_output_of_both_sides(sides):
    (observed,) = observe(*sides, [suspect_of(sides[0].made[1])])
    assert observed.inputs_equal
    assert np.array_equal(observed.output.target - observed.output.reference, np.ones((3, 4)))
    assert len(observed.inputs) == 1
    assert observed.target is sides[1].made[1]


def test_other_inputs_are_not_equal(sides, hand_made):
    other = hand_made()
    other.operator("b", "linear", {"content": "else"}, value=VALUES)
    (observed,) = observe(sides[0], other, [suspect_of(sides[0].made[1])])
    assert not observed.inputs_equal


@pytest.mark.parametrize(("weight", "equal"), [("", False), ("b.bias", True)])
def test_inputs_without_content_ids_are_equal_only_where_they_are_weights(hand_made, weight, equal):
    dumps = hand_made(), hand_made()
    for dump in dumps:
        dump.operator("b", "linear", {"content": "same"}, {"content": "", "weight": weight}, value=VALUES)
    (observed,) = observe(*dumps, [suspect_of(dumps[0].made[0])])
    assert observed.inputs_equal is equal
    later = (structs.replace(dump.made[0], step=1) for dump in dumps)  # an optimizer may have moved the weight by then
    for dump, call in zip(dumps, later, strict=True):
        dump.made[0] = call
    (observed,) = observe(*dumps, [suspect_of(dumps[0].made[0])])
    assert not observed.inputs_equal


def test_a_call_without_a_partner_has_no_output_pair(sides, hand_made):
    (observed,) = observe(sides[0], hand_made(), [suspect_of(sides[0].made[1])])
    assert observed.target is None
    assert observed.output is None
    assert observed.records[1] is None
    assert not observed.inputs_equal


def test_a_suspect_that_is_not_in_the_dump_is_left_out(sides, hand_made):
    assert observe(hand_made(), sides[1], [suspect_of(sides[0].made[1])]) == []


def test_another_shape_cannot_be_compared(sides, hand_made):
    other = hand_made()
    call = other.operator("b", "linear", value=VALUES.T.copy())
    assert read_pair(sides[0], other, sides[0].made[1].outputs[0], call.outputs[0]) is None


def test_integers_and_empty_tensors_are_left_out(hand_made):
    dump = hand_made()
    whole = dump.operator("a", "argmax", value=np.arange(3))
    empty = dump.operator("a", "cat", value=np.empty((0, 3), np.float32))
    assert read_pair(dump, dump, whole.outputs[0], whole.outputs[0]) is None
    assert read_pair(dump, dump, empty.outputs[0], empty.outputs[0]) is None


def test_a_damaged_tensor_is_left_out(sides, monkeypatch):
    def torn(record):
        raise DumpError("its shard is cut short")

    monkeypatch.setattr(sides[1], "tensor", torn)
    (observed,) = observe(*sides, [suspect_of(sides[0].made[1])])
    assert observed.output is None


def test_large_tensors_are_thinned_by_rows_on_both_sides_alike(hand_made, monkeypatch):
    monkeypatch.setattr(tensors, "ELEMENTS", 100)
    dump = hand_made()
    values = np.arange(1000, dtype=np.float32).reshape(100, 10)
    call = dump.operator("a", "linear", value=values)
    pair = read_pair(dump, dump, call.outputs[0], call.outputs[0])
    assert pair.reference.shape == (10, 10)
    assert np.array_equal(pair.reference, values[::10])


def test_fill_values_are_masked_and_not_ordinary(hand_made):
    dump = hand_made()
    reference = dump.operator("a", "add", value=np.array([[1.0, np.finfo(np.float32).min, -np.inf, 2.0]], np.float32))
    target = hand_made()
    other = target.operator("a", "add", value=np.array([[1.0, -65504, 3.0, np.nan]], np.float16))
    pair = read_pair(dump, target, reference.outputs[0], other.outputs[0])
    assert pair.ordinary.tolist() == [[True, False, False, False]]
    assert pair.filled_reference.tolist() == [[False, True, True, False]]
    assert pair.filled_target.tolist() == [[False, True, False, False]]


def test_bfloat16_and_single_numbers_are_read(hand_made):
    dump = hand_made()
    call = dump.operator("a", "mean", value=np.array(1.5, ml_dtypes.bfloat16))
    pair = read_pair(dump, dump, call.outputs[0], call.outputs[0])
    assert pair.reference.tolist() == [[1.5]]


def test_complex_numbers_are_pairs_of_numbers(hand_made):
    dump = hand_made()
    call = dump.operator("a", "mul", value=np.array([[1 + 2j, 3j]], np.complex64))
    pair = read_pair(dump, dump, call.outputs[0], call.outputs[0])
    assert pair.reference.tolist() == [[1.0, 2.0, 0.0, 3.0]]


def test_gradients_from_weights_alone_do_not_have_equal_inputs(hand_made):
    dumps = hand_made(), hand_made()
    weight = {"weight": "b.weight", "content": "w"}
    for dump in dumps:
        dump.operator("b", "linear", weight, value=VALUES)
        dump.operator("b", "linear", weight, value=VALUES, phase="backward")
    forward, backward = dumps[0].made
    observed = observe(*dumps, [suspect_of(forward), suspect_of(backward)])
    assert [one.inputs_equal for one in observed] == [True, False]


def test_inputs_that_differ_in_bits_or_shape(sides, hand_made):
    other = hand_made()
    before = other.operator("a", "add", value=VALUES[:2])
    other.operator("b", "linear", before, {"weight": "b.weight", "content": "w"}, value=VALUES)
    (observed,) = observe(sides[0], other, [suspect_of(sides[0].made[1])])
    assert observed.inputs_differ
    assert observed.input_shapes_equal is False
    (observed,) = observe(*sides, [suspect_of(sides[0].made[1])])
    assert not observed.inputs_differ
    assert observed.input_shapes_equal


def test_a_call_is_read_in_full_where_everything_of_it_is_stored(hand_made, monkeypatch):
    dumps = hand_made(), hand_made()
    weight = {"value": VALUES.T.copy(), "weight": "b.weight"}
    calls = [dump.operator("b", "linear", {"value": VALUES}, weight, value=VALUES) for dump in dumps]
    (observed,) = observe(*dumps, [suspect_of(calls[0])])
    assert [sorted(side.inputs) for side in observed.whole] == [["0", "1"], ["0", "1"]]
    assert observed.whole[1].output.shape == (3, 4)
    monkeypatch.setattr(tensors, "WHOLE", 10)
    (observed,) = observe(*dumps, [suspect_of(calls[0])])
    assert observed.whole is None
