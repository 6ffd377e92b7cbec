"""Keys of calls sort in order of completion, which the graph relies on."""

import msgspec

from precflow.diagnosis.nodes import Edge, key_of


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
