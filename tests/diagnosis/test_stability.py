"""What calls make of rounding: growth over what arrives, past transposes, for the innermost calls alone."""

import numpy as np
import pytest
from dump_builder import DumpBuilder

from precflow.diagnosis.stability import measure_stability
from precflow.dumps.formats import read_dump
from precflow.judgement.floors import Floor

X = np.ones((2, 8), np.float32)


@pytest.fixture
def dump(tmp_path):
    """A linear, its transpose, a softmax that reads this, and the modules around them."""
    made = DumpBuilder(tmp_path / "dump", side="reference")
    made.call("block.fc", "linear", [X], [X])
    made.call("block", "transpose", [X], [X], movement=True)
    made.call("block", "softmax", [X], [X])
    made.call("block.drop", "", [X], [X])
    made.call("block", "", [X], [X])
    made.call("", "", [X], [X])
    for number, line in enumerate(made.lines[0, 0][1:]):
        line["inputs"][0]["source"] = [number, "0"]
    different = ["block/softmax.0/forward.output.0"]
    made.header_changes["repeat"] = {"checked": True, "records": 6, "by": ["bits"], "different": different}
    return read_dump(made.write())


def floors(**values):
    names = {"linear": "block.fc/linear.0", "softmax": "block/softmax.0", "drop": "block.drop", "model": "(model)"}
    texts = {f"{names.get(name, name)}/forward.output.0": value for name, value in values.items()}
    return {text: Floor(text, {"relative_l2": value}, {"relative_l2": "chunks"}) for text, value in texts.items()}


def test_growth_is_over_what_arrives_also_through_a_transpose(dump):
    found = measure_stability(dump, floors(linear=1e-6, softmax=8e-6, drop=8e-6, block=8e-6, model=8e-6))
    by_name = {each.operator: each for each in found.growths}
    assert by_name["softmax"].arrives == 1e-6
    assert by_name["softmax"].growth == pytest.approx(8)
    assert found.rank()[0].operator == "linear"  # over one rounding of float32, since nothing arrives
    assert by_name["linear"].growth == pytest.approx(1e-6 * 2**24)


def test_modules_that_hold_others_are_left_out_and_leaves_are_not(dump):
    found = measure_stability(dump, floors(linear=1e-6, softmax=8e-6, drop=8e-6, block=8e-6, model=8e-6))
    assert [each.name for each in found.growths] == ["block.fc / linear", "block / softmax", "block.drop"]


def test_what_a_second_run_did_not_give_again_is_told(dump):
    found = measure_stability(dump, floors(linear=1e-6, softmax=8e-6))
    assert found.repeat_checked
    assert [each.repeatable for each in found.growths] == [True, False]
    assert found.unrepeatable == ("block/softmax.0/forward.output.0",)


def test_calls_without_a_floor_are_left_out(dump):
    assert measure_stability(dump, {}).growths == ()
    assert measure_stability(dump, floors(softmax=2.0**-23)).growths[0].growth == pytest.approx(2)


def test_operators_are_taken_together(dump):
    (first, second) = measure_stability(dump, floors(linear=1e-6, softmax=8e-6)).by_operator()
    assert (first.operator, first.calls, first.middle == first.largest) == ("linear", 1, True)
    assert second.operator == "softmax"
