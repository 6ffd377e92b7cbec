"""Rows of padding and residuals that are added elsewhere: told from faults, with reasons of their own."""

import ml_dtypes
import numpy as np
import pytest
import torch
from dump_builder import DumpBuilder, reseal

import precflow
from precflow.diagnosis.padding import hides_padding
from precflow.dumps.digest import content_id
from precflow.dumps.formats import read_dump
from precflow.stages.two_dumps import compare_dumps

RNG = np.random.default_rng(9)
REAL = np.array([[1, 1, 1, 1], [1, 1, 0, 0]], np.int64)
HIDDEN = RNG.standard_normal((2, 4, 6)).astype(np.float32)
SCORES = RNG.standard_normal((2, 3, 4, 4)).astype(np.float32)


def compare(*sides):
    return precflow.compare(*sides, evaluate=False)


def write_padded(folder, *, change=None, masked=True, name="step0.attention_mask", also=lambda dump: None):
    """Write a model that is given a mask, with other numbers at some places."""
    hidden, scores = HIDDEN.copy(), SCORES.copy()
    if change:
        change(hidden, scores)
    dump = DumpBuilder(folder)
    dump.call("embed", "", [HIDDEN], {"input_ids": np.arange(8).reshape(2, 4), "attention_mask": REAL})
    dump.call("attention", "matmul", [scores], [HIDDEN])
    dump.call("layer", "", [hidden], [HIDDEN])
    dump.call("packed", "", [hidden.reshape(8, 6)], [hidden])
    also(dump)
    dump.write()
    if masked:
        entry = {"content": content_id(REAL), "dtype": "int64", "shape": [2, 4]}
        reseal(folder, inputs={"digest": "a" * 32, "entries": {name: entry}})
    return folder


def in_padding(hidden, scores):
    hidden[1, 2:] = 7
    scores[1, :, 2:] += 1
    scores[1, :, :, 2:] += 1


def in_a_token(hidden, scores):
    in_padding(hidden, scores)
    hidden[1, 1, 0] += 0.5


@pytest.mark.parametrize("name", ["step0.attention_mask", "attention_mask"])  # of a script, and of a workload
def test_where_rows_of_padding_alone_differ_the_real_tokens_are_judged(tmp_path, name):
    changes = {"a": None, "b": in_padding}
    dumps = [read_dump(write_padded(tmp_path / side, change=change, name=name)) for side, change in changes.items()]
    model = compare_dumps(*dumps, command="")
    assert (model.verdict.verdict, model.findings) == ("aligned", ())
    assert f"3 records: only rows of padding differ, where {name} is 0" in model.verdict.warnings


def test_what_reads_the_padding_is_where_an_error_starts(tmp_path):
    def write(folder, change=None):
        hidden, scores = HIDDEN.copy(), SCORES.copy()
        if change:
            change(hidden, scores)
        return write_padded(folder, change=change, also=lambda dump: dump.call("pooled", "mean", [hidden.mean(1)], [hidden]))

    result = compare(write(tmp_path / "a"), write(tmp_path / "b", in_padding))
    assert (result.verdict, result.start.partition(" ")[0]) == ("misaligned", "pooled")
    assert "PF415" in [finding.rule for finding in result.findings]


@pytest.mark.parametrize(("change", "verdict"), [(in_padding, "inconclusive"), (in_a_token, "misaligned")])
def test_of_a_sketch_the_norms_of_rows_tell_where_it_differs(tmp_path, change, verdict):
    class Told(torch.nn.Module):
        def forward(self, ids, attention_mask):
            hidden, scores = np.tile(HIDDEN, 100), SCORES.copy()  # too large to be kept whole
            if self.change:
                self.change(hidden, scores)
            return torch.tensor(hidden)

    for side in ("a", "b"):
        model = Told()
        model.change = change if side == "b" else None
        with precflow.capture(model, tmp_path / side, detail="sketch") as recording:
            model(torch.arange(8).reshape(2, 4), attention_mask=torch.tensor(REAL))
            recording.step()
    result = compare(tmp_path / "a", tmp_path / "b")
    assert result.verdict == verdict
    assert ("PF415" in [finding.rule for finding in result.findings]) is (verdict == "inconclusive")


def test_a_token_that_differs_beside_padding_is_a_fault(tmp_path):
    result = compare(write_padded(tmp_path / "a"), write_padded(tmp_path / "b", change=in_a_token))
    assert (result.verdict, result.start) == ("misaligned", "layer")
    assert {finding.rule: finding.certainty for finding in result.findings}["PF415"] == "possible"  # it does not explain this


def test_nan_in_padding_is_a_fault(tmp_path):
    """A weight of 0 does not hide it: the next attention has NaN in every real token of the prompt."""

    def nan_in_padding(hidden, _):
        hidden[1, 2:] = np.nan

    result = compare(write_padded(tmp_path / "a"), write_padded(tmp_path / "b", change=nan_in_padding))
    assert (result.verdict, result.start) == ("misaligned", "layer")
    assert "PF415" not in {finding.rule for finding in result.findings}


def write_attention(folder, low, *, probabilities=False):
    """Write the scores of an attention whose padding is masked by adding a number, or what a softmax makes of them."""
    keys = REAL[:, None, None, :] == 1
    scores = np.where(keys, SCORES, SCORES + np.float32(low)).astype(np.float32)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    made = powers / powers.sum(-1, keepdims=True) if probabilities else scores
    dump = DumpBuilder(folder)
    dump.call("embed", "", [HIDDEN], {"input_ids": np.arange(8).reshape(2, 4), "attention_mask": REAL})
    dump.call("attention", "softmax" if probabilities else "add", [made], [HIDDEN])
    dump.write()
    entry = {"content": content_id(REAL), "dtype": "int64", "shape": [2, 4]}
    reseal(folder, inputs={"digest": "a" * 32, "entries": {"step0.attention_mask": entry}})
    return folder


@pytest.mark.parametrize("probabilities", [False, True])
@pytest.mark.parametrize("weak", [-10.0, 0.0])
def test_a_mask_that_hides_too_little_is_a_fault_on_either_side(tmp_path, weak, probabilities):
    """Of -10 real tokens read a weight of 5e-5, which 16 bits do not show in what they make of it."""
    sides = [write_attention(tmp_path / str(low), low, probabilities=probabilities) for low in (-1e9, weak)]
    for pair in (sides, sides[::-1]):
        result = compare(*pair)
        assert (result.verdict, result.start.partition(" ")[0]) == ("misaligned", "attention")
        assert "PF415" not in {finding.rule for finding in result.findings}


def test_another_constant_that_hides_as_well_is_none(tmp_path):
    sides = [write_attention(tmp_path / str(low), low) for low in (-1e9, -1e4)]
    assert compare(*sides).verdict != "misaligned"


@pytest.mark.parametrize(
    ("scores", "hides"),
    [
        ([[5.0, 1.0, -90.0]], True),
        ([[5.0, 1.0, -50.0]], False),
        ([[0.75, 0.25, 0.0]], True),
        ([[0.75, 0.25, 1e-7]], False),
        ([[5.0, -np.inf, -np.inf]], True),
        ([[5.0, 1.0, np.nan]], False),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_what_hides_padding(scores, hides, dtype):
    real = np.array([[True, True, False]])
    rows = np.array([scores[0], scores[0], [9.0, 9.0, 9.0]])  # a row of padding may attend to anything
    assert hides_padding(rows.reshape(1, 1, 3, 3).astype(dtype), real) is hides


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
