import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from precflow.agent.contract import OUTSIDE
from precflow.agent.failures import AgentError
from precflow.agent.selection import NOT_RECORDED, Choice, DetailRule, Selection, check_scope, literal_pattern

MODEL = torch.nn.ModuleDict(
    {"encoder": torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()), "head": torch.nn.Linear(2, 2)}
)
CALLS = [
    (level, module, class_name, operator, phase, step, rank)
    for level, operator in (("module", ""), ("api", "linear"), ("api", "softmax"), ("operator", "mm"))
    for module, class_name in (("", "Model"), ("layers.0", "Block"), ("layers.10.attn", "Attention"), (OUTSIDE, ""))
    for phase in ("forward", "backward")
    for step in (0, 3)
    for rank in (0, 1)
]
PATTERNS = st.lists(st.sampled_from(["*", "layers.*", "layers.0", "*attn", "(model)", "(outside)"]), max_size=2).map(tuple)
RULES = st.builds(
    DetailRule,
    match=PATTERNS,
    class_name=st.lists(st.sampled_from(["*", "Block", "Att*"]), max_size=1).map(tuple),
    operator=st.lists(st.sampled_from(["*", "linear", "soft*", ""]), max_size=2).map(tuple),
    level=st.lists(st.sampled_from(["module", "api"]), max_size=2).map(tuple),
    phase=st.lists(st.sampled_from(["forward", "backward"]), max_size=1).map(tuple),
    step=st.lists(st.sampled_from([0, 3]), max_size=2).map(tuple),
    rank=st.lists(st.sampled_from([0, 1]), max_size=1).map(tuple),
    detail=st.sampled_from(["", "none", "digest", "statistics", "sketch", "tensors"]),
    slices=st.just(""),
    sample=st.sampled_from([1.0, 0.01]),
)


def by_hand(scope_patterns, general, rules, call):
    """Say the same in the slowest and plainest way."""
    from fnmatch import fnmatchcase

    level, module, class_name, operator, phase, step, rank = call
    shown = {"": "(model)"}.get(module, module)

    def any_of(patterns, text):
        return not patterns or any(fnmatchcase(text, pattern) for pattern in patterns)

    if not scope_patterns or not any_of(scope_patterns, shown):
        return NOT_RECORDED
    for rule in rules:
        texts = ((rule.match, shown), (rule.class_name, class_name), (rule.operator, operator))
        values = ((rule.level, level), (rule.phase, phase), (rule.step, step), (rule.rank, rank))
        if all(any_of(*pair) for pair in texts) and all(not only or value in only for only, value in values):
            detail = rule.detail or general
            in_part = rule.sample < 1 and detail != "digest"
            return NOT_RECORDED if detail == "none" else Choice(detail, rule if in_part else None)
    return Choice(general, None)


@settings(max_examples=150)
@given(PATTERNS, st.lists(RULES, max_size=4), st.randoms(use_true_random=False))
def test_the_first_rule_that_matches_decides_in_whatever_order_it_is_asked(patterns, rules, random_numbers):
    scope = Selection(patterns, detail="sketch", rules=rules)
    asked = [*CALLS, *CALLS]
    random_numbers.shuffle(asked)
    assert all(scope.choose(*call) == by_hand(patterns, "sketch", rules, call) for call in asked)


@settings(max_examples=150)
@given(PATTERNS, st.lists(RULES, max_size=4))
def test_what_stays_closed_holds_no_record(patterns, rules):
    scope = Selection(patterns, detail="tensors", rules=rules)
    for call in CALLS:
        level, module, class_name, _, _, step, rank = call
        if not scope.may_record(module, class_name, step, rank):
            assert scope.detail_of(*call) == "none", (level, module)


def test_a_module_that_no_rule_lets_in_is_not_looked_into():
    rules = [DetailRule(match=("layers.0",), operator=("linear",), detail="tensors"), DetailRule(detail="none")]
    scope = Selection(rules=rules, detail="sketch")
    assert scope.may_record("layers.0", "Block", 0, 0)
    assert not scope.may_record("layers.1", "Block", 0, 0)
    assert scope.detail_of("api", "layers.0", "Block", "linear", "forward", 0, 0) == "tensors"
    assert scope.detail_of("api", "layers.0", "Block", "softmax", "forward", 0, 0) == "none"


def test_levels_phases_steps_and_ranks_of_the_section_bound_every_rule():
    scope = Selection(level=["module"], phase=["forward"], step=[0, 2], rank=[1], rules=[DetailRule(detail="tensors")])
    recorded = {call for call in CALLS if scope.detail_of(*call) != "none"}
    assert recorded == {call for call in CALLS if (call[0], *call[4:]) == ("module", "forward", 0, 1)}
    assert not scope.may_record("layers.0", "Block", 1, 1)
    assert not scope.may_record("layers.0", "Block", 0, 0)


def test_steps_are_not_mixed_up_by_what_is_remembered():
    scope = Selection(detail="digest", rules=[DetailRule(step=(3,), detail="tensors")])
    details = [scope.detail_of("module", "a", "A", "", "forward", step, 0) for step in (0, 3, 0, 3, 4)]
    assert details == ["digest", "tensors", "digest", "tensors", "digest"]


def test_an_empty_operator_name_is_the_module_itself():
    scope = Selection(detail="digest", rules=[DetailRule(operator=("",), detail="tensors")])
    assert scope.detail_of("module", "a", "A", "", "forward", 0, 0) == "tensors"
    assert scope.detail_of("api", "a", "A", "add", "forward", 0, 0) == "digest"


def test_rules_that_decided_about_nothing_are_named():
    scope = Selection(rules=[DetailRule(match=("a",)), DetailRule(match=("b",)), DetailRule(match=("a",), detail="none")])
    scope.detail_of("module", "a", "A", "", "forward", 0, 0)
    assert scope.unmatched == [1, 2]


def test_details_are_those_of_the_calls_that_came():
    scope = Selection(
        detail="digest", rules=[DetailRule(match=("a",), detail="statistics"), DetailRule(match=("b",), detail="none")]
    )
    assert scope.details == set()
    scope.detail_of("module", "b", "A", "", "forward", 0, 0)
    assert scope.details == set()
    scope.detail_of("module", "a", "A", "", "forward", 0, 0)
    assert scope.details == {"statistics"}


def test_a_rule_is_read_as_recipes_and_requests_write_it():
    plain = {"match": ["a"], "class": ["B"], "operator": [], "step": [0, 1], "detail": "none", "because": "too large"}
    rule = DetailRule.from_plain(plain)
    assert rule == DetailRule(match=("a",), class_name=("B",), step=(0, 1), detail="none")
    assert rule.to_plain() == {"match": ("a",), "class": ("B",), "step": (0, 1), "detail": "none"}


@pytest.mark.parametrize("name", ["layers[0]", "a*b", "what?", "plain.name", "a]b"])
def test_a_literal_pattern_matches_its_name_alone(name):
    scope = Selection(detail="none", rules=[DetailRule(match=(literal_pattern(name),), detail="digest")])
    assert scope.detail_of("module", name, "", "", "forward", 0, 0) == "digest"
    assert scope.detail_of("module", f"{name}x", "", "", "forward", 0, 0) == "none"


def test_thousands_of_rules_are_asked_in_bounded_time():
    rules = [DetailRule(match=(f"layers.{number}",), operator=("linear",), detail="tensors") for number in range(2000)]
    scope = Selection(rules=[*rules, DetailRule(detail="none")])
    numbers = random.Random(0).sample(range(4000), 500)
    found = [scope.detail_of("api", f"layers.{number}", "L", "linear", "forward", 0, 0) for number in numbers]
    assert found == ["tensors" if number < 2000 else "none" for number in numbers]


@pytest.mark.parametrize("patterns", [["*"], ["encoder.*"], ["encoder", "head"], ["(model)"], ["(outside)"]])
def test_a_scope_with_modules_passes(patterns):
    assert check_scope(patterns, MODEL) is None


def test_an_empty_scope_offers_near_names():
    with pytest.raises(AgentError, match=r"\['encodr\.\*'\] matches no module of ModuleDict \(5 modules\)") as caught:
        check_scope(["encodr.*"], MODEL)
    assert "encoder" in caught.value.next_step


def test_a_scope_like_nothing_offers_the_outermost_names():
    with pytest.raises(AgentError) as caught:
        check_scope(["@@@"], MODEL)
    assert caught.value.next_step.endswith("(model), encoder, head")


def test_one_misspelt_pattern_among_others_is_not_missed_in_silence():
    with pytest.raises(AgentError, match=r"\['haed'\] matches no module") as caught:
        check_scope(["encoder.*", "haed"], MODEL)
    assert "head" in caught.value.next_step


def test_a_rule_about_no_module_or_class_is_named_by_its_number():
    rules = [DetailRule(match=("head",)), DetailRule(class_name=("Liner",))]
    with pytest.raises(AgentError, match=r"capture\.rules\[1\]\.class=\['Liner'\] matches no class of ModuleDict") as caught:
        check_scope(["*"], MODEL, rules)
    assert caught.value.next_step == "classes are named like this: Linear"


def test_every_call_of_the_table_is_distinct():
    assert all(one != other for one, other in itertools.combinations(CALLS, 2))
