"""What makes a comparison meaningless."""

from dataclasses import replace

import pytest

from precflow.dumps.header import ContentEntries, ContentEntry, Header, ObserverCheck, RepeatCheck
from precflow.environment.reproduction import describe_copy, find_blockers, find_different, find_disturbance

BOTH = ("weights", "inputs")
UNSURE = ", or does not repeat itself (determinism.repeat=true shows it)"


def holdings(digest, **contents):
    return ContentEntries(digest, {name: ContentEntry(content, "float32", (2,)) for name, content in contents.items()})


def header(weights=None, inputs=None, seed=1234, recipe="demo"):
    plain = holdings("same", a="1")
    return Header(recipe=recipe, determinism={"seed": seed}, weights=weights or plain, inputs=inputs or plain)


def test_equal_starts_block_nothing():
    assert find_blockers(header(), header(), BOTH) == []


@pytest.mark.parametrize(("recorded", "blocks"), [([0, 1], False), ([0, 2], True)])
def test_a_step_with_other_micro_batches_blocks_only_where_it_was_reached(recorded, blocks):
    sides = [
        replace(header(), script={"steps": 4, "micro_batches": runs}, capture={"step": recorded})
        for runs in ([[0, 2]], [[0, 2], [2, 1]])
    ]
    assert bool(find_blockers(*sides, BOTH)) is blocks


@pytest.mark.parametrize(("target", "blocks"), [([[0, 2]], False), ([[0, 4], [1, 2]], True)])
def test_gradients_that_are_cleared_between_micro_batches_are_no_dropped_step(target, blocks):
    """A hand-written scaler that drops a step clears them too: the next iteration then belongs to the same step."""
    sides = [
        replace(header(), script={"steps": 4, "micro_batches": runs, "merged": merged}, capture={"step": [0, 1]})
        for runs, merged in (([[0, 2]], []), (target, [0, 1]))
    ]
    found = find_blockers(*sides, BOTH)
    assert ["gradients were dropped" in text for text in found] == [True] * blocks


def test_weights_that_differ_are_named():
    found = find_blockers(header(weights=holdings("x", a="1", b="2")), header(weights=holdings("y", a="1", b="3")), BOTH)
    assert found == ["the weights differ in 1 of 2: b"]


def test_a_rank_that_starts_with_other_weights_is_named():
    """A header lists of further ranks only what differs from rank 0."""
    same, other = holdings("x", a="1", b="2"), holdings("y", **{"a": "1", "b": "2", "rank1.b": "3"})
    for here, there in ((same, other), (other, same)):
        (text,) = find_blockers(header(weights=here), header(weights=there), BOTH)
        assert text == "the weights differ in 1 of 3: rank1.b"


def test_weights_under_other_names_do_not_differ_in_more_than_there_are():
    here, there = holdings("x", a="1", b="2", old="3"), holdings("y", a="1", b="4", new="3")
    (text,) = find_blockers(header(weights=here), header(weights=there), BOTH)
    alone = "2 weights are on one side only (old, new): section `pairing` pairs what has another name"
    assert text == f"the weights differ in 1 of 2: b; {alone}"
    (text,) = find_blockers(header(inputs=holdings("x", a="1")), header(inputs=holdings("y", a="1", mask="2")), BOTH)
    assert text == "one of the inputs is on one side only (mask)"


def test_at_most_five_names_and_the_count():
    here, there = ({f"w{number}": f"{side}{number}" for number in range(8)} for side in "ab")
    (text,) = find_blockers(header(weights=holdings("x", **here)), header(weights=holdings("y", **there)), BOTH)
    assert text == "the weights differ in 8 of 8: w0, w1, w2, w3, w4 and 3 more"


def test_entries_of_one_side_only_differ():
    assert find_different(holdings("x", a="1", b="2"), holdings("y", a="1", c="3")) == ["b", "c"]


def test_digests_decide_where_no_entry_tells():
    assert find_blockers(header(inputs=ContentEntries("x")), header(inputs=ContentEntries("y")), BOTH) == ["the inputs differ"]


def test_only_what_the_recipe_names_is_compared():
    assert find_blockers(header(weights=holdings("x", a="1")), header(weights=holdings("y", a="2")), ("inputs",)) == []


def test_what_was_not_recorded_is_no_agreement():
    (text,) = find_blockers(header(), header(weights=ContentEntries()), BOTH)
    assert text == "the weights of the target are not recorded, so it is unknown whether they are the same"


def test_seeds_and_recipes_that_differ():
    found = find_blockers(header(), header(seed=1, recipe="other"), BOTH)
    assert found == [
        "the dumps are of different recipes: demo on the reference, other on the target",
        "the seeds differ: 1234 on the reference, 1 on the target",
    ]


def test_a_copy_is_no_second_dump():
    one, other = Header(side="reference", id="ab"), Header(side="target", id="cd")
    assert describe_copy(one, one).startswith("the dump of the target is the reference's own (id ab)")
    assert not describe_copy(one, other)
    assert not describe_copy(Header(), Header()), "nobody knows of dumps that were never sealed"


@pytest.mark.parametrize(
    ("different", "repeated", "text"),
    [
        ((), RepeatCheck(), ""),
        (
            ("loss", "weight a"),
            RepeatCheck(checked=True),
            "the target capturing changes what it computes: loss, weight a after step 3",
        ),
        (
            ("loss",),
            RepeatCheck(),
            f"the target capturing changes what it computes{UNSURE}: loss after step 3",
        ),
        (("loss",), RepeatCheck(checked=True, different=("fc/forward.output.0",)), ""),
    ],
)
def test_what_watching_changed_is_told_from_what_never_repeats(different, repeated, text):
    seen = Header(observer=ObserverCheck(checked=True, step=3, different=different), repeat=repeated)
    assert find_disturbance("target", seen) == text


def test_a_check_that_was_asked_for_and_not_made_is_said():
    assert find_disturbance("target", Header(determinism={"observer": "unchecked"})) == ""
    assert "was not run without capture" in find_disturbance("target", Header(determinism={"observer": "checked"}))


def test_parts_of_ranks_that_were_not_kept_are_not_called_other_batches():
    (text,) = find_blockers(header(), header(inputs=holdings("", a="1")), BOTH)
    assert (
        text == "the ranks were given parts of the inputs that were not kept, and cannot be joined: capture=tensors keeps them"
    )
