"""What a second pass looks into, on graphs made by hand."""

import msgspec
import pytest

from precflow.agent.contract import DETAIL_FACTS
from precflow.agent.selection import DetailRule, Selection
from precflow.diagnosis.localize import localize
from precflow.diagnosis.second_pass import SecondPass, choose_calls

TENSOR = 2 * 3 * 4  # bytes of a hand-made record


@pytest.fixture
def chain(hand_made):
    """Four layers of a linear and an activation, each a module, behind an embedding."""
    dump = hand_made()
    stream = dump.operator("embed", "embedding", {"content": "ids"}, {"weight": "embed.weight"})
    for number in range(4):
        name = f"layers.{number}"
        linear = dump.operator(f"{name}.fc", "linear", stream, {"weight": f"{name}.weight"})
        turned = dump.operator(f"{name}.fc", "transpose", linear, movement=True)
        stream = dump.operator(name, "gelu", turned)
        dump.module(name, stream)
    return dump


def chosen(dump, judge_calls, statuses, *, target=None, **options):
    measures, judged = judge_calls(dump, statuses, equal=[call.name for call in dump.made if call.movement])
    region = localize(dump, dump, measures, judged)
    return choose_calls(dump, target or dump, judged=judged, region=region, **options)


def taken(found, dump):
    """Return the names of the calls that the rules let through, as an agent would answer."""
    scope = Selection(detail="none", rules=[DetailRule.from_plain({**rule, "detail": "tensors"}) for rule in found.rules])
    asked = [
        (call, (call.level, call.module, call.class_name, call.operator, call.phase, call.step, call.rank))
        for call in dump.made
    ]
    return [call.name for call, who in asked if scope.detail_of(*who) != "none"]


def test_nothing_suspect_needs_no_second_pass(chain, judge_calls):
    found = chosen(chain, judge_calls, {})
    assert not found.needed
    assert found.why == "no second pass: nothing is suspect or undecided"


def test_around_the_first_divergence_and_everything_that_fails(chain, judge_calls):
    names = [call.name for call in chain.made]
    failing = names[names.index("layers.2 / gelu") :]
    found = chosen(chain, judge_calls, {name: "fail" for name in failing if "transpose" not in name})
    assert taken(found, chain) == ["layers.2 / gelu", "layers.2", "layers.3.fc / linear", "layers.3 / gelu", "layers.3"]
    assert (found.failing, found.undecided, found.calls) == (5, 0, 5)
    assert found.why == "5 calls to look into (5 failing records)"


def test_around_movement_that_went_wrong_the_tensors_before_and_behind_it_are_kept(chain, judge_calls):
    measures, judged = judge_calls(chain, {"layers.2 / gelu": "fail"})
    region = localize(chain, chain, measures, judged)
    assert region.start == "layers.2.fc / transpose"
    assert taken(choose_calls(chain, chain, judged=judged, region=region), chain) == ["layers.2.fc / linear", "layers.2 / gelu"]


def test_movement_that_gives_other_bits_for_equal_ones_is_looked_into_though_nothing_fails(chain, judge_calls, hand_made):
    def change(call):
        if call.name != "layers.2.fc / transpose":
            return call
        return msgspec.structs.replace(
            call, outputs=tuple(msgspec.structs.replace(record, content="moved") for record in call.outputs)
        )

    target = hand_made(made=[change(call) for call in chain.made])
    found = chosen(chain, judge_calls, {}, target=target)
    assert taken(found, chain) == ["layers.2.fc / linear", "layers.2 / gelu"]
    assert found.why == "2 calls to look into (1 movement of equal bits that differs)"


def test_movement_of_other_values_needs_no_second_pass(chain, judge_calls, hand_made):
    def change(call):
        records = (
            tuple(msgspec.structs.replace(record, content=f"{record.content}'") for record in side)
            for side in (call.inputs, call.outputs)
        )
        inputs, outputs = records
        return msgspec.structs.replace(call, inputs=inputs, outputs=outputs)

    assert not chosen(chain, judge_calls, {}, target=hand_made(made=[change(call) for call in chain.made])).needed


def test_the_operator_before_a_suspect_is_looked_into_and_pure_movement_never(chain, judge_calls):
    found = chosen(chain, judge_calls, {"layers.1.fc / linear": "fail"})
    assert taken(found, chain) == ["layers.0 / gelu", "layers.1.fc / linear"]


def test_what_a_sketch_could_not_decide_is_looked_into(chain, judge_calls):
    found = chosen(chain, judge_calls, {"layers.0 / gelu": "undecided", "layers.3": "undecided"})
    assert taken(found, chain) == ["layers.0 / gelu", "layers.3"]
    assert found.why == "2 calls to look into (2 undecided records)"


def test_the_budget_takes_the_most_suspect_and_counts_the_rest(chain, judge_calls):
    statuses = {"layers.3.fc / linear": "undecided", "layers.1 / gelu": "fail", "layers.2 / gelu": "fail"}
    one_call = 2 * TENSOR + 2 * DETAIL_FACTS["tensors"].line_bytes
    found = chosen(chain, judge_calls, statuses, budget=one_call)
    assert taken(found, chain) == ["layers.1 / gelu"]
    assert found.left_out > 0
    assert f"{found.left_out} calls left out by capture.budget" in found.why
    assert max(found.bytes.values()) <= one_call


def test_a_budget_for_nothing_says_so(chain, judge_calls):
    found = chosen(chain, judge_calls, {"layers.1 / gelu": "undecided"}, budget=10)
    assert not found.needed
    assert found.why == "no second pass: 1 undecided record, 1 call left out by capture.budget"


@pytest.mark.parametrize("budget", [0, 5_000, 20_000, 10**9])
def test_the_estimate_never_exceeds_the_budget(chain, judge_calls, budget):
    statuses = {call.name: "fail" for call in chain.made if not call.movement}
    found = chosen(chain, judge_calls, statuses, budget=budget)
    assert not budget or max(found.bytes.values()) <= budget
    assert found.needed or budget == 5_000


def test_a_content_that_several_calls_share_is_counted_once(chain, judge_calls):
    found = chosen(chain, judge_calls, {"layers.3 / gelu": "fail", "layers.3": "fail"})
    contents = {
        record.content
        for call in chain.made
        if call.name in taken(found, chain)
        for record in (*call.inputs, *call.outputs)
        if not record.weight
    }
    records = sum(len(call.inputs) + len(call.outputs) for call in chain.made if call.name in taken(found, chain))
    assert found.bytes["reference"] == len(contents) * TENSOR + records * DETAIL_FACTS["tensors"].line_bytes


def test_what_only_one_side_ran_cannot_be_compared_and_is_not_chosen(chain, judge_calls, hand_made):
    target = hand_made(made=[call for call in chain.made if call.name != "layers.1 / gelu"])
    found = chosen(chain, judge_calls, {"layers.1 / gelu": "undecided"}, target=target)
    assert not found.needed
    assert "every tensor of them is kept already" in found.why


def test_what_is_kept_already_is_not_recorded_again(hand_made, judge_calls):
    dump = hand_made()
    dump.operator("a", "add", {"value": [[1.0]]}, value=[[2.0]])
    assert not chosen(dump, judge_calls, {"a / add": "fail"}).needed


def test_parts_of_tensors_that_the_recipe_keeps_stay_parts(chain, judge_calls):
    rules = [DetailRule(operator=("gelu",), sample=0.01), DetailRule(match=("layers.3.fc",), slices="[0]")]
    found = chosen(chain, judge_calls, {"layers.3.fc / linear": "undecided", "layers.3": "undecided"}, rules=rules)
    parts = {tuple(rule["match"]): (rule.get("slices"), rule.get("sample")) for rule in found.rules}
    assert parts == {("layers.3.fc",): ("[0]", 1.0), ("layers.3",): (None, None)}


def test_names_with_letters_of_patterns_are_taken_literally(hand_made, judge_calls):
    dump = hand_made()
    for name in ("blocks[0]", "blocks0", "a*"):
        dump.operator(name, "add", {"content": name})
    found = chosen(dump, judge_calls, {"blocks[0] / add": "undecided"})
    assert taken(found, dump) == ["blocks[0] / add"]


def test_modules_with_the_same_operators_share_a_rule(chain, judge_calls):
    statuses = {call.name: "undecided" for call in chain.made if not call.movement}
    found = chosen(chain, judge_calls, statuses)
    assert len(found.rules) == 4  # embedding, linear, gelu, and the modules themselves
    assert sorted(taken(found, chain)) == sorted(statuses)


def test_defaults_need_nothing():
    assert not SecondPass().needed
