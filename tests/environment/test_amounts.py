"""Whether both sides ran as much, whatever part of it was recorded."""

import pytest

from precflow.dumps.header import Header, RanInAll
from precflow.environment.amounts import find_other_amounts, find_other_mode

ALONE = "of models that one side alone has"


def header(*ran, last=4, **script):
    return Header(capture={"step": [0, last]}, script={"file": "train.py", **script}, ran=ran)


def ran(steps=5, calls=None, *, whole=True, micro_batches=5):
    return RanInAll(whole, steps, micro_batches, {"": steps} if calls is None else calls)


@pytest.mark.parametrize(
    ("reference", "target", "texts"),
    [
        (ran(), ran(), []),
        (ran(), ran(7), ["the reference made 5 steps and the target 7"]),
        (ran(1, {"": 5}), ran(1, {"": 7}), ["the reference made 5 calls of its model and the target 7"]),
        (ran(), ran(micro_batches=6), ["the reference made 5 micro batches and the target 6"]),
        (ran(), ran(micro_batches=0), []),
        (
            ran(calls={"": 5, "ema": 1}),
            ran(),
            ["the reference made 1 call of models that one side alone has (ema) and the target 0"],
        ),
        (ran(calls={"critic": 5}), ran(calls={"judge": 5}), []),
        # A side that was ended had at least as much to do.
        (ran(100), ran(5, whole=False), []),
        (ran(), ran(7, {"": 8}), ["the reference made 5 steps and the target 7; 5 calls of its model and the target 8"]),
        (ran(5), ran(5, {"": 6}, whole=False), ["the reference made 5 calls of its model and the target 6"]),
        (ran(5, whole=False), ran(5, {"": 6}, whole=False), ["the reference made 5 calls of its model and the target 6"]),
    ],
)
def test_what_one_side_made_more_of(reference, target, texts):
    assert find_other_amounts(header(reference), header(target)) == texts


def test_the_first_step_with_other_micro_batches_is_named():
    once, twice = {"steps": 4, "micro_batches": [[0, 2]]}, {"steps": 5, "micro_batches": [[0, 2], [2, 1], [3, 2]]}
    sides = header(ran(4, {"": 8}), **once), header(ran(5, {"": 8}), **twice)
    assert find_other_amounts(*sides) == [
        "step 2 has 2 micro batches on the reference, 1 on the target; the reference made 4 steps and the target 5"
    ]
    as_many = {"steps": 4, "micro_batches": [[0, 2], [2, 1], [3, 3]]}
    assert find_other_amounts(header(ran(4), **once), header(ran(4), **as_many)) == [
        "step 2 has 2 micro batches on the reference, 1 on the target"
    ]


def test_only_what_can_be_compared_is():
    short, long = ran(5, whole=False), ran(9, whole=False)
    assert find_other_amounts(header(short), header(long, last=8)) == [], "ended after another step that was recorded"
    assert find_other_amounts(header(ran()), header(ran(7), ran(7))) == [], "another number of ranks"
    assert find_other_amounts(header(ran()), header()) == [], "an older agent"
    assert find_other_amounts(header(ran(), skipped=[1]), header(ran(4))) == [], "a skipped step is told as that"
    assert find_other_amounts(header(ran()), Header(ran=(ran(7),))) == [], "a script beside a loop"
    (text,) = find_other_amounts(header(ran(), ran()), header(ran(), ran(6)))
    assert text.startswith("on rank 1, the reference made 5 steps and the target 6")


def test_the_first_step_that_one_side_alone_trains_in_evaluation_mode():
    plain, left = {"steps": 4, "in_evaluation": [[0, 0]]}, {"steps": 4, "in_evaluation": [[0, 0], [2, 2]]}
    assert find_other_mode(plain, plain) == find_other_mode(left, left) == ""
    assert find_other_mode(plain, left) == "the target trains in evaluation mode from step 2 on: 2 calls of its model more"
    assert find_other_mode(left, plain).startswith("the reference trains")
    assert find_other_mode({"steps": 2, "in_evaluation": [[0, 0]]}, left) == "", "it ended before"
    assert find_other_mode({"steps": 4}, left) == "", "an older agent"
