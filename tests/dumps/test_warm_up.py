"""Calls that warm up: told from faults that make zeros, with a reason of their own."""

import zlib

import numpy as np
import pytest
from dump_builder import reseal

import precflow
from precflow.dumps.digest import content_id
from precflow.dumps.formats import read_dump
from precflow.dumps.warm_up import find_warm_ups, is_zero_content

RNG = np.random.default_rng(6)
VALUES = RNG.standard_normal((3, 3, 2, 4)).astype(np.float32)
MASK = np.tril(np.ones((4, 4), np.float32))


@pytest.fixture
def make(build):
    """Return a function that writes a run of three steps with three layers and a mask, of which some outputs are 0."""

    def write(name, zero=(), factors=None, *, masked=True):
        dump = build(name)
        for step in range(3):
            if masked:
                dump.call("mask", "", [MASK], step=step)
            for layer in range(3):
                factor = (factors or {}).get((step, layer), 1)
                is_empty = step in zero or (step, layer) in zero
                values = np.zeros_like(VALUES[0, 0]) if is_empty else VALUES[step, layer] * np.float32(factor)
                dump.call(f"layers.{layer}", "", [values], step=step)
        return dump.write()

    return write


def compare(*sides):
    return precflow.compare(*sides, evaluate=False)


@pytest.mark.parametrize("swap", [False, True])
def test_a_call_that_one_side_warms_up_in_is_no_place_where_an_error_starts(make, swap):
    sides = [make("a"), make("b", zero=[0])]
    result = compare(*reversed(sides)) if swap else compare(*sides)
    assert (result.verdict, result.start) == ("inconclusive", "")
    side = "reference" if swap else "target"
    told = f"step 0 warms up on the {side}: all 3 outputs are 0, and not in step 1"
    assert result.reasons[0] == told
    assert [(finding.rule, finding.title) for finding in result.findings] == [("PF414", told)]
    assert {row.reason for row in result.records if row.status == "artefact"} == {told}


def test_a_fault_behind_a_warm_up_is_found_where_it_is(make):
    result = compare(make("a"), make("b", zero=[0], factors={(1, 1): 1.5}))
    assert (result.verdict, result.start) == ("misaligned", "layers.1 (step 1)")
    assert any("warms up" in reason for reason in result.reasons)


@pytest.mark.parametrize(
    "zero",
    [
        [0, 1, 2],  # in every step
        [2],  # and not later
        [(0, 1)],  # one output alone
        [(0, 1), (0, 2)],  # there are others
    ],
    ids=str,
)
def test_zeros_that_do_not_end_or_are_not_everywhere_are_a_fault(make, zero):
    result = compare(make("a"), make("b", zero=zero))
    assert result.verdict == "misaligned"
    assert result.start.startswith("layers.")
    assert not any("warms up" in reason for reason in result.reasons)


def test_zeros_on_both_sides_prove_nothing(make):
    told = "step 0 warms up on both sides: all 3 outputs are 0, which proves nothing"
    sides = [make(name, zero=[0], masked=False) for name in "ab"]
    assert [found.text for found in find_warm_ups(*(read_dump(side).calls() for side in sides))] == [told]
    assert compare(*sides).verdict == "aligned"  # by the other steps
    result = compare(*(make(name, zero=[0, 1, 2], masked=False) for name in "cd"))
    assert (result.verdict, result.reasons[0]) == ("inconclusive", told)


@pytest.mark.parametrize("zero", [True, False])
def test_a_model_that_is_given_zeros_alone_warms_up(build, zero):
    sides = []
    for name in "ab":
        dump = build(name)
        ids = np.arange(1, 5) * (0 if name == "b" and zero else 1) + (name == "b" and not zero)
        dump.call("layers.0", "", [VALUES[0, 0]], [ids])
        sides.append(dump.write())
        entry = {"content": content_id(ids), "dtype": "int64", "shape": [4]}
        reseal(sides[-1], inputs={"digest": name * 32, "entries": {"step0.ids": entry}})
    result = compare(*sides)
    assert (result.verdict, result.start) == ("inconclusive", "")
    assert [finding.rule for finding in result.findings] == ["PF414" if zero else "PF402"]
    assert ("step 0 warms up on the target: its model is given zeros alone" in " ".join(result.reasons)) == zero


def test_zeros_are_known_by_whatever_was_kept():
    zeros = np.zeros((2, 3), np.float16)
    known = [
        content_id(zeros),
        f"crc32:{zlib.crc32(zeros.tobytes()):08x} float16[2,3]",
        "range:0.0,0.0 float16[2,3]",
        content_id(zeros + 1),
        "crc32:00000000 float16[2,3]",
        "range:0.0,1.0 float16[2,3]",
        "xor:0000000000000000 float16[2,3]",  # many tensors have the same
    ]
    assert [is_zero_content(content, "float16", (2, 3)) for content in known] == [True] * 3 + [False] * 4
