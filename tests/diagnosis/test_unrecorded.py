"""Inputs that no recorded call made: the module whose own code made one that does not agree is under suspicion."""

import pytest

from precflow.diagnosis.localize import localize
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
