"""A tensor that is not what its maker returned is named with both places."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from precflow.agent.capture.recorder import Recorder
from precflow.agent.dump.writer import Writer
from precflow.comparison.compare import compare
from precflow.diagnosis.localize import localize
from precflow.diagnosis.unrecorded import Change, change, outputs_of
from precflow.dumps.reader import Dump
from precflow.judgement.verdicts import Judged


def found(dump, record):
    return change(record, outputs_of(dump.made))


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({"content": "a"}, False),
        ({"content": "b"}, True),
        ({"content": ""}, False),
        ({"content": "b", "weight": "bias"}, False),
        ({"content": "b", "dtype": "float16"}, False),
        ({"content": "b", "shape": (3, 2)}, False),
        ({"content": "b", "source": (7, "0")}, False),
        ({"content": "b", "source": None}, False),
    ],
)
def test_what_arrives_is_held_against_what_was_returned(hand_made, given, changed):
    dump = hand_made()
    dump.operator("a", "linear", content="a")
    taker = dump.operator("b", "tanh", {"source": (0, "0"), **given})
    assert (found(dump, taker.inputs[0]) is not None) is changed


def test_marks_tell_where_there_are_no_contents(hand_made):
    dump = hand_made()
    dump.operator("a", "linear", content="", mark="m")
    same, other, unlike = (
        dump.operator("b", "tanh", {"source": (0, "0"), **given})
        for given in ({"content": "", "mark": "m"}, {"content": "", "mark": "n"}, {"content": "x"})
    )
    assert found(dump, same.inputs[0]) is None
    assert found(dump, other.inputs[0]) is not None
    assert found(dump, unlike.inputs[0]) is None


@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 3), (2, 3, 2)])
def test_a_transposed_view_may_be_meant(hand_made, shape):
    dump = hand_made()
    dump.operator("a", "linear", content="a", shape=shape)
    taker = dump.operator("b", "tanh", {"source": (0, "0"), "content": "b", "shape": shape})
    assert found(dump, taker.inputs[0]) is None


@pytest.mark.parametrize(
    ("site", "text"),
    [
        ("m.py:3 in forward <- main.py:9 in <module>", "input 0 after a returned it (m.py:3 in forward)"),
        ("", "input 0 after a returned it"),
    ],
)
def test_the_innermost_line_is_named(hand_made, site, text):
    record = hand_made().operator("b", "tanh", {"content": "b"}).inputs[0]
    assert Change(record, "a", site).text == text


def reduced(hand_made, factor):
    """Return a side on which something writes to what ``narrow`` returned, before ``tanh`` takes it."""
    dump = hand_made()
    narrow = dump.operator("narrow", "linear", content="part")
    tanh = dump.operator("", "tanh", {"source": (narrow.order, "0"), "content": f"sum {factor}"}, content=f"tanh {factor}")
    dump.module("", content=f"tanh {factor}", source=(tanh.order, "0"))
    return dump


def test_a_suspect_behind_a_change_says_so_and_names_both_lines(hand_made, judge_calls):
    one, other = reduced(hand_made, 1), reduced(hand_made, 2)
    measures, judged = judge_calls(one, {"(model) / tanh": "fail", "(model)": "fail"})
    (suspect,) = localize(one, other, measures, judged).suspects
    assert suspect.changed == "input 0 after narrow / linear returned it (model.py:0 in forward)"
    assert suspect.why == (
        "something that is not recorded changed its input 0 after narrow / linear returned it (model.py:0 in forward), so that "
        "the error may come from there"
    )
    assert suspect.site == "model.py:1 in forward"


def test_a_change_that_both_sides_agree_on_is_no_matter(hand_made, judge_calls):
    dump = reduced(hand_made, 1)
    measures, judged = judge_calls(dump, {"(model) / tanh": "fail"})
    (suspect,) = localize(dump, dump, measures, judged).suspects
    assert suspect.changed == ""
    assert suspect.why.startswith("its inputs are equal bit for bit")


def test_a_change_on_the_target_alone_is_found(hand_made, judge_calls):
    one, other = hand_made(), reduced(hand_made, 2)
    one.operator("", "tanh", one.operator("narrow", "linear", content="part"), content="tanh 1")
    measures, judged = judge_calls(one, {"(model) / tanh": "fail"})
    assert "narrow / linear" in localize(one, other, measures, judged).suspects[0].changed


@pytest.mark.parametrize(("factors", "start"), [((1.0, 1.5), "part / mul"), ((1.0, 1.0), "(model) / tanh")])
def test_a_collective_brings_the_error_of_another_rank(hand_made, judge_calls, factors, start):
    sides = []
    for factor in factors:
        dump = hand_made()
        for rank in (0, 1):
            part = dump.operator("part", "mul", content=f"part {rank} {factor if rank else 1.0}", rank=rank)
            summed = {"source": (part.order, "0"), "content": f"sum {factor} {len(sides)}"}
            dump.operator("", "tanh", summed, content=f"tanh {factor} {len(sides)}", rank=rank)
        sides.append(dump)
    measures, judged = judge_calls(sides[0], {"(model) / tanh": "fail"})
    (mul,) = [call.outputs[0].text for call in sides[0].made if call.rank and call.operator == "mul"]
    wrong = {mul} if factors[1] > 1 else set()
    judged = [replace(one, status="fail", ratio=5.0) if one.record in wrong else one for one in judged]
    region = localize(*sides, measures, judged)
    assert region.start == start
    assert [bool(suspect.changed) for suspect in region.suspects] == ([False, True] if wrong else [True, True])


def test_what_a_module_returns_may_have_changed_too(hand_made, judge_calls):
    sides = []
    for content in ("sum 1", "sum 2"):
        dump = hand_made()
        linear = dump.operator("a", "linear", content="part")
        dump.module("a", content=content, source=(linear.order, "0"))
        sides.append(dump)
    measures, judged = judge_calls(sides[0], {"a": "fail"})
    (suspect,) = localize(*sides, measures, judged).suspects
    assert suspect.changed.startswith("output 0 after a / linear returned it")


class Reduced(nn.Module):
    """Writes to what its layer returns as a collective does: torch does not count it."""

    def __init__(self, factor):
        super().__init__()
        torch.manual_seed(0)
        self.narrow, self.factor = nn.Linear(8, 4), factor

    def forward(self, hidden):
        part = self.narrow(hidden)
        np.multiply(part.numpy(), self.factor, out=part.numpy())
        return torch.tanh(part)


@pytest.fixture
def recorded(tmp_path):
    """Return a function that records such a model under ``inference_mode``, where every tensor is read anew."""

    def record(factor):
        writer = Writer(str(tmp_path / f"{factor}"))
        recorder, model = Recorder(writer), Reduced(factor)
        with torch.inference_mode(), recorder.watch(model):
            model(torch.linspace(-1, 1, 16).reshape(2, 8))
        writer.finish()
        return Dump.open(tmp_path / f"{factor}", allow_unsealed=True)

    (tmp_path / "1.0").mkdir()
    (tmp_path / "1.5").mkdir()
    return record


def test_a_write_that_torch_does_not_count_is_found_in_dumps_of_the_agent(recorded):
    one, other = recorded(1.0), recorded(1.5)
    measures = compare(one, other)
    judged = [Judged(measure.record, "pass" if measure.equal else "fail", ratio=5.0) for measure in measures]
    region = localize(one, other, measures, judged)
    assert region.start == "(model) / tanh"
    assert region.suspects[0].changed.startswith("input 0 after narrow / linear returned it (")
    assert "in forward" in region.suspects[0].changed
