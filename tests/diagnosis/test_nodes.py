"""Keys of calls sort in order of completion, which the graph relies on."""

import msgspec
import pytest

from precflow.diagnosis.localize import localize
from precflow.diagnosis.nodes import Edge, key_of, list_read_inputs
from precflow.judgement.verdicts import Judged


def test_a_key_is_rank_step_and_order(hand_made):
    call = msgspec.structs.replace(hand_made().operator("a", "linear"), rank=1, step=2, order=3)
    assert key_of(call) == (1, 2, 3)


def test_keys_sort_in_order_of_completion_within_a_step_and_steps_within_a_rank(hand_made):
    dump = hand_made()
    first, second = dump.operator("a", "linear"), dump.operator("b", "add")
    later = msgspec.structs.replace(first, step=1)
    elsewhere = msgspec.structs.replace(first, rank=1)
    assert sorted([elsewhere, later, second, first], key=key_of) == [first, second, later, elsewhere]


def test_an_edge_is_taken_for_recorded_unless_it_says_otherwise(hand_made):
    call = hand_made().operator("a", "linear", {"content": "x"})
    assert not Edge(call.inputs[0], None).guessed


@pytest.mark.parametrize(
    ("operator", "arguments", "read"),
    [
        ("baddbmm", {"beta": "0", "alpha": "0.125"}, ["1", "2"]),
        ("aten.addmm", {"beta": "0.0"}, ["1", "2"]),
        ("baddbmm_", {"beta": "0"}, ["1", "2"]),
        ("baddbmm", {"beta": "0.5"}, ["0", "1", "2"]),
        ("baddbmm", {}, ["0", "1", "2"]),
        ("lerp", {"beta": "0"}, ["0", "1", "2"]),
    ],
)
def test_what_is_multiplied_by_zero_is_not_read(hand_made, operator, arguments, read):
    call = hand_made().operator("attn", operator, *({"content": name} for name in "abc"), arguments=arguments)
    assert [record.index for record in list_read_inputs(call)] == read


def test_memory_that_a_product_does_not_read_explains_nothing(hand_made, judge_calls):
    sides = []
    for memory in ("one", "two"):
        sides.append(hand_made())
        given = [{"content": memory}, {"content": "query"}, {"content": "key"}]
        sides[-1].operator("attn", "baddbmm", *given, arguments={"beta": "0"})
    found = localize(*sides, *judge_calls(sides[0], {"attn / baddbmm": "fail"}), lambda left, _: Judged(left.text, "fail"))
    assert found.suspects[0].why == "its inputs are equal bit for bit, its output is not"
