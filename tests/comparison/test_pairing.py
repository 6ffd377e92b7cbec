"""Pairing by identity."""

import pytest

from precflow.agent.contract import Identity
from precflow.comparison.pairing import pair
from precflow.dumps.records import Record


def record(module, operator="linear", ordinal=0, order=0, **parts):
    identity = Identity(module, 0, operator, ordinal, "forward", "output", "0", 0, 0)._replace(**parts)
    return Record.of(identity, order, "float32", (2,), "c", stored=True, source=None, weight="")


def names(pairs):
    return [tuple(side.text if side else None for side in (joined.reference, joined.target)) for joined in pairs]


def test_order_does_not_matter_and_nothing_is_lost():
    reference = [record("a"), record("b"), record("c")]
    target = [record("d"), record("c"), record("a")]
    text = {name: record(name).text for name in "abcd"}
    assert names(pair(reference, target)) == [
        (text["a"], text["a"]),
        (text["b"], None),
        (text["c"], text["c"]),
        (None, text["d"]),
    ]


def test_an_extra_call_costs_one_record_not_a_shift():
    reference = [record("a", ordinal=number) for number in range(3)]
    target = [record("a", "clone"), *reference]
    assert [joined.reference is None for joined in pair(reference, target)] == [False, False, False, True]


@pytest.mark.parametrize(
    "parts",
    [
        {"call": 1},
        {"operator": "bmm"},
        {"ordinal": 1},
        {"phase": "backward"},
        {"role": "input"},
        {"index": "1"},
        {"step": 1},
        {"rank": 1},
    ],
)
def test_every_part_of_an_identity_counts(parts):
    assert len(pair([record("a")], [record("a", **parts)])) == 2


def test_equal_identities_are_joined_in_their_order():
    reference, target = [record("a", order=1), record("a", order=2)], [record("a", order=7)]
    joined = pair(reference, target)
    assert [item.target is not None for item in joined] == [True, False]
    joined = pair(target, reference)
    assert [(item.reference is not None, item.target.order) for item in joined] == [(True, 1), (False, 2)]


def test_renames_join_what_a_library_renamed():
    reference = [record("text_model.encoder.layers.0"), record("text_model"), record("head")]
    target = [record("encoder.layers.0"), record(""), record("head")]
    assert all(item.reference and item.target for item in pair(reference, target, {"text_model.": ""}))
    assert sum(item.target is None for item in pair(reference, target)) == 2


def test_the_longest_prefix_is_taken():
    renames = {"model.": "", "model.language.": "llm."}
    joined = pair([record("model.language.a"), record("model.b")], [record("llm.a"), record("b")], renames)
    assert all(item.target for item in joined)


def test_nothing_against_nothing():
    assert pair([], []) == []
