"""What no recorded call did: inputs that a module's own code made, and tensors that changed after their maker returned them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from precflow.agent.capture.recorder import Recorder
from precflow.agent.dump.writer import Writer
from precflow.comparison.compare import compare
from precflow.diagnosis.localize import localize
from precflow.diagnosis.unrecorded import TensorChange, find_change, index_calls
from precflow.dumps.formats import read_dump
from precflow.judgement.verdicts import Judged


@pytest.fixture
def attention(hand_made):
    """Return a function that makes one side, modules alone: scores reach ``attn.out`` out of nowhere, with these contents."""

    def make(scores="scores", given="sum"):
        dump = hand_made()
        norm = dump.module("norm", {"content": "ids"}, shape=(2, 4))
        query = dump.module("attn.query", norm, shape=(2, 6))
        out = dump.module("attn.out", {"content": scores, "shape": (2, 8)}, shape=(2, 8))
        dump.module("attn", norm, content=out.outputs[0].content, shape=(2, 8))
        dump.module("mlp.fc", {"content": given}, shape=(2, 10))
        dump.module("mlp", {"content": given}, shape=(2, 10))
        dump.module("", {"content": "ids"}, shape=(2, 10))
        assert query.outputs[0].shape != (2, 8)  # no edge can be guessed
        return dump

    return make


ALL_AFTER = dict.fromkeys(["attn.out", "attn", "mlp.fc", "mlp", "(model)"], "fail")


def located(sides, statuses, judge_calls, status="fail"):
    """Return the region, and which inputs were looked at; every one that is has this status."""
    asked = []

    def look(left, right):
        asked.append((left.text, right.content))
        return Judged(left.text, status, ratio=7.0)

    return localize(*sides, *judge_calls(sides[0], statuses), look), asked


def test_the_module_whose_code_made_a_wrong_input_introduces_the_error(attention, judge_calls):
    region, asked = located((attention(), attention(scores="others")), ALL_AFTER, judge_calls)
    (suspect,) = [one for one in region.suspects if one.module.startswith("attn")]
    assert region.start == suspect.name == "attn"
    assert suspect.why.startswith("what it computes itself was not recorded, and input 0 of attn.out does not agree")
    assert region.roles["attn.out/forward.output.0"] == "inherits"
    assert region.roles["attn/forward.output.0"] == "introduces"
    assert asked == [("attn.out/forward.input.0", "others")]  # read once, and nothing that has equal bits


def test_a_call_whose_input_is_within_its_limits_introduces_the_error(attention, judge_calls):
    region, _ = located((attention(), attention(scores="others")), ALL_AFTER, judge_calls, status="pass")
    assert region.start == "attn.out"
    assert region.suspects[0].why.startswith("its inputs agree")


def test_an_input_that_cannot_be_judged_is_said(attention, judge_calls):
    region, _ = located((attention(), attention(scores="others")), ALL_AFTER, judge_calls, status="undecided")
    assert region.start == "attn.out"
    assert region.suspects[0].why.startswith("its input 0, which nothing recorded made, cannot be compared")


@pytest.mark.parametrize("failing", ["norm", "attn.query"])
def test_a_module_that_was_given_the_error_is_not_blamed(attention, judge_calls, failing):
    statuses = {failing: "fail", **ALL_AFTER}
    region, _ = located((attention(), attention(scores="others")), statuses, judge_calls)
    assert region.start == failing
    assert not {"attn", "attn.out"} & {suspect.name for suspect in region.suspects}


def test_a_module_that_was_given_the_input_itself_did_not_make_it(attention, judge_calls):
    statuses = dict.fromkeys(["mlp.fc", "mlp", "(model)"], "fail")
    region, _ = located((attention(), attention(given="others")), statuses, judge_calls)
    assert region.start == "(model)"
    assert "input 0 of mlp.fc does not agree" in region.suspects[0].why


def test_where_no_module_is_around_the_call_stays_and_is_told_truly(hand_made, judge_calls):
    sides = []
    for content in ("one", "two"):
        sides.append(hand_made())
        sides[-1].module("alone", {"content": content, "shape": (5, 6)})
    region, _ = located(sides, {"alone": "fail"}, judge_calls)
    assert region.start == "alone"
    assert "agree, " not in region.suspects[0].why.replace("does not agree, ", "")


def test_equal_bits_on_the_reference_make_no_maker_where_the_target_has_others(hand_made, judge_calls):
    sides = []
    for content in ("one", "two"):
        sides.append(hand_made())
        sides[-1].module("block.attn", {"content": "ids"}, content="one")
        sides[-1].module("block.norm", {"content": content})
        sides[-1].module("block", {"content": "ids"})
    region, _ = located(sides, {"block.norm": "fail", "block": "fail"}, judge_calls)
    assert region.start == "block"
    assert "input 0 of block.norm does not agree" in region.suspects[0].why


def test_nothing_is_looked_at_where_nothing_fails(attention, judge_calls):
    region, asked = located((attention(), attention(scores="others", given="more")), {}, judge_calls)
    assert (region.start, asked) == ("", [])


def test_inputs_of_what_could_not_be_compared_may_agree(hand_made, judge_calls):
    dump = hand_made()
    first = dump.operator("a", "linear")
    second = dump.operator("b", "relu", first)
    dump.operator("c", "add", second)
    statuses = {"a / linear": "undecided", "b / relu": "undecided", "c / add": "fail"}
    suspect = localize(dump, dump, *judge_calls(dump, statuses)).suspects[0]
    assert "b / relu before it could not be compared" in suspect.why  # the nearest one


def found(dump, record):
    return find_change(record, index_calls(dump.made))


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
    assert TensorChange(record, "a", site).text == text


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


@pytest.mark.parametrize(("factors", "start"), [((1.0, 1.5), "part / mul (rank 1)"), ((1.0, 1.0), "(model) / tanh")])
def test_a_collective_brings_the_error_of_another_rank(hand_made, judge_calls, factors, start):
    sides = []
    for factor in factors:
        dump = hand_made()
        for rank in (0, 1):
            part = dump.operator("part", "mul", content=f"part {rank} {factor if rank else 1.0}", rank=rank)
            summed = {"source": (part.order, "0"), "content": f"sum {factor} {len(sides)}"}
            dump.operator("", "tanh", summed, content=f"tanh {factor} {len(sides)}", rank=rank)
        sides.append(dump)
    measures, judged = judge_calls(sides[0], {"(model) / tanh": "fail", "(model) / tanh (rank 1)": "fail"})
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
        return read_dump(tmp_path / f"{factor}", allow_unsealed=True)

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


def test_a_module_that_changes_what_it_is_given_before_its_first_call_introduces_the_error(hand_made, judge_calls):
    """Other tools record no cast: the operator's input is the module's on the reference, and on the target it is not."""
    sides = []
    for inner in ("given", "rounded"):
        dump = hand_made()
        product = dump.operator("stem", "conv2d", {"content": "given" if not sides else inner}, shape=(2, 9))
        dump.module("stem", {"content": "given"}, content=product.outputs[0].content, shape=(2, 9))
        sides.append(dump)
    region, _ = located(sides, dict.fromkeys(["stem / conv2d", "stem"], "fail"), judge_calls)
    assert [suspect.name for suspect in region.suspects] == ["stem"]


@pytest.mark.parametrize(("dtype", "suspects"), [("float32", ["blocks"]), ("int64", ["blocks", "head"])])
def test_what_code_around_all_modules_made_behind_a_failing_call_inherits(hand_made, judge_calls, dtype, suspects):
    """Without a record of the model as a whole: what it flattens between two modules comes from the first; labels do not."""
    sides = []
    for flat in ("one", "other"):
        dump = hand_made()
        dump.module("blocks", {"content": "x"}, shape=(2, 3, 1))
        dump.module("head", {"content": flat, "dtype": dtype}, shape=(2, 5))
        sides.append(dump)
    region, _ = located(sides, dict.fromkeys(["blocks", "head"], "fail"), judge_calls)
    assert [suspect.name for suspect in region.suspects] == suspects


@pytest.mark.parametrize(("arriving", "index"), [("other", "block"), ("same", "block.out")])
def test_a_module_whose_own_gradient_differs_as_it_arrives_has_not_computed_it(hand_made, judge_calls, arriving, index):
    """One head of several transposes its scores: what the loss left is wrong already, or what the head made of it is."""
    sides = []
    for own, given in (("scores", "same"), ("others", arriving)):
        dump = hand_made()
        dump.module("block.out", {"content": own, "shape": (4, 9)}, phase="backward", shape=(4, 5))
        dump.module("block", {"content": given, "shape": (36,)}, phase="backward", shape=(4, 3))
        sides.append(dump)
    region, _ = located(sides, dict.fromkeys(["block.out (backward)", "block (backward)"], "fail"), judge_calls)
    suspect = region.suspects[0]
    assert (suspect.name, suspect.arrives) == ("block (backward)", f"{index}/backward.input.0")
    assert ("what it computes itself" in suspect.why) == (arriving == "same")
