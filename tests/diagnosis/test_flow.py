"""What flows carry together."""

import pytest

from precflow.diagnosis.flow import CLEAN, FAILING, Flow, Tracer, merge_flows
from precflow.diagnosis.graph import build_graph
from precflow.judgement.verdicts import Judged


def test_nothing_carries_nothing():
    assert merge_flows([]) == merge_flows([CLEAN, CLEAN]) == CLEAN


def test_the_loudest_input_is_named():
    assert merge_flows([Flow(use=0.2, via="a"), Flow(use=0.9, via="b"), Flow(use=0.5, via="c")]) == Flow(use=0.9, via="b")


def test_a_failing_record_is_behind_itself():
    merged = merge_flows([Flow(use=0.3, via="a"), FAILING])
    assert merged.failing
    assert merged.behind
    assert (merged.use, merged.via) == (0.3, "a")


def test_of_names_the_first_is_kept():
    flows = [Flow(unknown="a", moved=((0, 0, 1), "x")), Flow(unknown="b", outside="input 0", moved=((0, 0, 2), "y"))]
    assert merge_flows(flows) == Flow(unknown="a", outside="input 0", moved=((0, 0, 1), "x"))


def test_inputs_are_equal_by_their_content_on_both_sides(hand_made):
    reference, target = hand_made(), hand_made()
    here = reference.operator("a", "linear", {"content": "same"}, {"content": "one"})
    target.operator("a", "linear", {"content": "same"}, {"content": "two"})
    tracer = Tracer(build_graph(reference.calls()), target.calls(), {}, {})
    assert [tracer.is_equal_input(record) for record in here.inputs] == [True, False]


def test_an_input_that_the_target_lacks_is_not_equal(hand_made):
    reference = hand_made()
    here = reference.operator("a", "linear", {"content": "same"})
    assert not Tracer(build_graph(reference.calls()), [], {}, {}).is_equal_input(here.inputs[0])


def test_a_share_of_a_limit_stays_between_0_and_1(hand_made):
    dump = hand_made()
    first = dump.operator("a", "linear")
    second = dump.operator("b", "add", first)
    nodes = build_graph(dump.calls())
    text = first.outputs[0].text
    tracer = Tracer(nodes, dump.calls(), {}, {text: Judged(record=text, status="pass", ratio=7.0)})
    before, after = nodes.values()
    tracer.remember_leaving(before, tracer.find_arriving(before), [one.text for one in before.call.outputs])
    assert tracer.find_arriving(after) == Flow(use=1.0, via="a / linear")
    assert after.call is second


@pytest.mark.parametrize("marks", [("", ""), ("same", "same")])
def test_inputs_without_content_ids_are_not_equal_whatever_their_marks_say(hand_made, marks):
    reference, target = hand_made(), hand_made()
    here = reference.operator("a", "linear", {"content": "", "mark": marks[0]}, {"content": "", "weight": "a.weight"})
    target.operator("a", "linear", {"content": "", "mark": marks[1]}, {"content": "", "weight": "a.weight"})
    tracer = Tracer(build_graph(reference.calls()), target.calls(), {}, {})
    assert [tracer.is_equal_input(record) for record in here.inputs] == [False, True], "weights are compared in the header"


def test_movement_of_what_nobody_knows_is_not_said_to_have_changed_it(hand_made, judge_calls):
    sides = hand_made(), hand_made()
    for dump in sides:
        dump.operator("b", "linear", dump.operator("a", "transpose", {"content": ""}, movement=True))
    measures, judged = judge_calls(sides[0], {})
    nodes = build_graph(sides[0].calls())
    by_record = {one.record: one for one in measures}, {one.record: one for one in judged}
    tracer = Tracer(nodes, sides[1].calls(), *by_record)
    before, after = nodes.values()
    tracer.remember_leaving(before, CLEAN, [one.text for one in before.call.outputs])
    assert tracer.find_role(before, before.call.outputs[0].text, CLEAN) == "agrees"
    assert tracer.find_arriving(after) == CLEAN
