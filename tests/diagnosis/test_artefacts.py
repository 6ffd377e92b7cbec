"""Rows of padding and residuals that are added elsewhere: told from faults, with reasons of their own."""

import numpy as np
import pytest
from dump_builder import DumpBuilder, reseal

import precflow
from precflow.dumps.digest import content_id

RNG = np.random.default_rng(9)
REAL = np.array([[1, 1, 1, 1], [1, 1, 0, 0]], np.int64)
HIDDEN = RNG.standard_normal((2, 4, 6)).astype(np.float32)
SCORES = RNG.standard_normal((2, 3, 4, 4)).astype(np.float32)


def compare(*sides):
    return precflow.compare(*sides, evaluate=False)


def write_padded(folder, *, change=None, masked=True):
    """Write a model that is given a mask, with other numbers at some places."""
    hidden, scores = HIDDEN.copy(), SCORES.copy()
    if change:
        change(hidden, scores)
    dump = DumpBuilder(folder)
    dump.call("embed", "", [HIDDEN], {"input_ids": np.arange(8).reshape(2, 4), "attention_mask": REAL})
    dump.call("attention", "matmul", [scores], [HIDDEN])
    dump.call("layer", "", [hidden], [HIDDEN])
    dump.call("packed", "", [hidden.reshape(8, 6)], [hidden])
    dump.write()
    if masked:
        entry = {"content": content_id(REAL), "dtype": "int64", "shape": [2, 4]}
        reseal(folder, inputs={"digest": "a" * 32, "entries": {"step0.attention_mask": entry}})
    return folder


def in_padding(hidden, scores):
    hidden[1, 2:] = 7
    scores[1, :, 2:] += 1
    scores[1, :, :, 2:] += 1


def in_a_token(hidden, scores):
    in_padding(hidden, scores)
    hidden[1, 1, 0] += 0.5


def test_rows_of_padding_are_no_place_where_an_error_starts(tmp_path):
    result = compare(write_padded(tmp_path / "a"), write_padded(tmp_path / "b", change=in_padding))
    assert (result.verdict, result.start) == ("inconclusive", "")
    assert "3 records: only rows of padding differ, where step0.attention_mask is 0" in result.reasons
    assert [finding.rule for finding in result.findings] == ["PF415"]


def test_a_token_that_differs_beside_padding_is_a_fault(tmp_path):
    result = compare(write_padded(tmp_path / "a"), write_padded(tmp_path / "b", change=in_a_token))
    assert (result.verdict, result.start) == ("misaligned", "layer")


def test_without_a_mask_nobody_knows_of_padding(tmp_path):
    sides = [write_padded(tmp_path / name, change=change, masked=False) for name, change in (("a", None), ("b", in_padding))]
    assert compare(*sides).verdict == "misaligned"


def write_block(folder, *, inside, dropped=False):
    """Write a block whose residual is added in the module inside, or around it, or (a fault) nowhere."""
    made = (HIDDEN * np.float32(0.3)) ** 2
    dump = DumpBuilder(folder)
    dump.call("blocks.0.mlp.up", "", [made * 2], [HIDDEN])
    dump.call("blocks.0.mlp", "", [HIDDEN + made if inside else made], [HIDDEN])
    dump.call("blocks.0", "", [made if dropped else HIDDEN + made], [HIDDEN])
    return dump.write()


@pytest.mark.parametrize("inside", [True, False])
def test_a_residual_that_is_added_elsewhere_is_no_fault(tmp_path, inside):
    result = compare(write_block(tmp_path / "a", inside=inside), write_block(tmp_path / "b", inside=not inside))
    assert (result.verdict, result.start) == ("inconclusive", "")
    sides = ("reference", "target") if inside else ("target", "reference")
    told = f"the {sides[0]} adds input 0 of blocks.0.mlp inside of it, and the {sides[1]} outside"
    assert f"1 record: {told}" in result.reasons
    assert [(finding.rule, finding.title) for finding in result.findings] == [("PF416", told)]


def test_a_residual_that_is_missing_is_a_fault(tmp_path):
    sides = [write_block(tmp_path / "a", inside=True), write_block(tmp_path / "b", inside=False, dropped=True)]
    result = compare(*sides)
    assert (result.verdict, result.start) == ("misaligned", "blocks.0.mlp")
