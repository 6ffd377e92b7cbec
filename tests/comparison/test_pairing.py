"""Pairing by identity."""

import msgspec
import numpy as np
import pytest

from precflow.agent.contract import Identity
from precflow.comparison.pairing import ABSENT, Pair, describe_pair, find_calls, has_exact_integers, pair_records
from precflow.dumps.formats import read_dump
from precflow.dumps.records import Call, Record


def record(module, operator="linear", ordinal=0, order=0, **parts):
    identity = Identity(module, 0, operator, ordinal, "forward", "output", "0", 0, 0)._replace(**parts)
    return Record.of(identity, order, "float32", (2,), "c", stored=True, source=None, weight="")


def names(pairs):
    return [tuple(side.text if side else None for side in (joined.reference, joined.target)) for joined in pairs]


def test_order_does_not_matter_and_nothing_is_lost():
    reference = [record("a"), record("b"), record("c")]
    target = [record("d"), record("c"), record("a")]
    text = {name: record(name).text for name in "abcd"}
    assert names(pair_records(reference, target)) == [
        (text["a"], text["a"]),
        (text["b"], None),
        (text["c"], text["c"]),
        (None, text["d"]),
    ]


def test_an_extra_call_costs_one_record_not_a_shift():
    reference = [record("a", ordinal=number) for number in range(3)]
    target = [record("a", "clone"), *reference]
    assert [joined.reference is None for joined in pair_records(reference, target)] == [False, False, False, True]


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
    assert len(pair_records([record("a")], [record("a", **parts)])) == 2


def test_equal_identities_are_joined_in_their_order():
    reference, target = [record("a", order=1), record("a", order=2)], [record("a", order=7)]
    joined = pair_records(reference, target)
    assert [item.target is not None for item in joined] == [True, False]
    joined = pair_records(target, reference)
    assert [(item.reference is not None, item.target.order) for item in joined] == [(True, 1), (False, 2)]


def test_nothing_against_nothing():
    assert pair_records([], []) == []


ONE, TWO = np.ones((2, 3), np.float32), np.full((2, 3), 2, np.float32)


@pytest.fixture
def measure(build):
    """Return a function that describes the outputs of two dumps of one call each; ``None`` is a side without it."""

    def made(reference, target):
        dumps = []
        for side, given in (("reference", reference), ("target", target)):
            array, options = given or (ONE, {})
            dumps.append(read_dump(build(side, side=side).call("a", "linear", [array], [ONE], **options).write()))
        records = [dump.calls()[0].outputs[0] for dump in dumps]
        both = [record if given else None for record, given in zip(records, (reference, target), strict=True)]
        return describe_pair(Pair(*both), find_calls(*dumps))

    return made


def call(array, **options):
    return array, options


def test_equal_content_ids_are_equal_bits(measure):
    found = measure(call(ONE), call(ONE))
    assert (found.join, found.equal, found.judged, found.metrics) == ("paired", True, True, {})
    assert (found.record, found.name, found.level) == ("a/linear.0/forward.output.0", "a / linear", "api")


def test_other_bits_are_not_equal(measure):
    found = measure(call(ONE), call(TWO))
    assert (found.join, found.equal) == ("paired", False)


def test_equal_numbers_of_another_type_are_not_equal_bits(measure):
    found = measure(call(ONE), call(ONE.astype(np.float16)))
    assert (found.reference_dtype, found.target_dtype, found.equal) == ("float32", "float16", False)


def test_another_shape_is_no_pair_to_be_measured(measure):
    found = measure(call(ONE), call(ONE.T.copy()))
    assert (found.join, found.reason) == ("shape", "[2, 3] on the reference, [3, 2] on the target")


@pytest.mark.parametrize("side", ["reference", "target"])
def test_who_is_alone_says_on_which_side(measure, side):
    alone = {"reference": None, "target": None, side: call(ONE)}
    found = measure(**alone)
    assert found.join == f"unpaired_{side}"
    assert found.reason.startswith(f"only the {side} has it: ")
    assert (found.reference_dtype, found.target_dtype) == (("float32", "") if side == "reference" else ("", "float32"))
    assert (found.site, found.target_site)[side == "target"] == "model.py:3 in forward <- run.py:1"


def test_movement_on_either_side_and_integers_are_not_judged(measure):
    assert not measure(call(ONE, movement=True), call(TWO)).judged
    assert not measure(call(ONE), call(TWO, movement=True)).judged
    assert not measure(call(ONE.astype(np.int64)), call(TWO.astype(np.int64))).judged
    assert measure(call(ONE.astype(np.int64)), call(TWO)).judged, "one side has floating point numbers"
    assert not measure(call(ONE, movement=True), None).judged


def test_integers_have_to_be_equal_unless_they_are_moved_or_one_side_has_numbers(measure):
    ids = call(ONE.astype(np.int64))
    assert measure(ids, call(TWO.astype(np.int64))).exact
    assert not measure(ids, call(TWO)).exact
    assert not measure(call(ONE.astype(np.int64), movement=True), ids).exact
    assert not measure(ids, None).exact, "masks and indices are made in other ways by another implementation"


@pytest.mark.parametrize(
    ("operator", "outputs", "exact"),
    [
        ("argmax", ["int64"], True),
        ("add", ["int64"], True),
        ("topk", ["float32", "int64"], True),
        ("aten.topk", ["float32", "int64"], True),
        ("", ["float32", "int64"], True),
        ("scaled_dot_product_flash_attention", ["float32", "uint64"], False),  # the state of its random generator
    ],
)
def test_integers_beside_floating_point_outputs_count_if_the_operator_chooses(operator, outputs, exact):
    records = tuple(record("a", operator, index=str(place)) for place in range(len(outputs)))
    records = tuple(msgspec.structs.replace(one, dtype=dtype) for one, dtype in zip(records, outputs, strict=True))
    facts = {"arguments": {}, "inputs": (), "outputs": records, "movement": False, "compiled": False}
    made = Call(0, "api", "a", "", 0, operator, 0, "forward", 0, 0, "", **facts)
    assert has_exact_integers(made) == exact


def test_arguments_that_differ_are_told_with_those_that_one_side_lacks(measure):
    found = measure(
        call(ONE, arguments={"eps": "1e-05", "bias": "True", "only": "1"}),
        call(TWO, arguments={"eps": "1e-06", "bias": "True", "other": "2"}),
    )
    assert found.arguments == {"eps": ("1e-05", "1e-06"), "only": ("1", ABSENT), "other": (ABSENT, "2")}


@pytest.mark.parametrize("twice", ["reference", "target"])
def test_records_that_share_a_name_on_a_side_are_joined_in_order_and_say_so(twice):
    single, several = [record("a")], [record("a"), record("a", order=1)]
    reference, target = (several, single) if twice == "reference" else (single, several)
    assert pair_records(reference, target)[0].in_order


def test_a_name_that_each_side_has_once_is_paired_by_name():
    assert not pair_records([record("a"), record("b")], [record("a"), record("b")])[0].in_order
