"""Errors of both sides against a golden run, record by record."""

import math

import numpy as np
import pytest
from dump_builder import DumpBuilder

from precflow.diagnosis.golden import evaluate_records, list_rows
from precflow.diagnosis.operator_standards import hold_all
from precflow.dumps.formats import read_dump
from precflow.judgement import standards

RIGHT = np.linspace(0.5, 2.0, 40).reshape(4, 10)
ASKED = {"float32": {"within": {}, "small": {"cann_dual": [2.0**-14, 2.0**-30]}}}


def write(path, values, dtype, *, movement=False, name="fc"):
    dump = DumpBuilder(path)
    dump.call(name, "view" if movement else "linear", [np.asarray(values, dtype)], movement=movement)
    return read_dump(dump.write())


@pytest.fixture
def runs(tmp_path):
    """Return a function that writes reference and target, each off by a factor, beside a golden run in float64."""

    def make(reference, target, **golden):
        sides = [write(tmp_path / str(number), RIGHT * factor, np.float32) for number, factor in enumerate((reference, target))]
        return (*sides, write(tmp_path / "golden", golden.get("values", RIGHT), golden.get("dtype", np.float64)))

    return make


def rows_of(runs):
    evaluated = [one for _, one in evaluate_records(*runs, ASKED)]
    return evaluated, list_rows(evaluated, {})


def test_both_errors_are_those_against_the_golden(runs):
    _, (row,) = rows_of(runs(1.001, 1.004))
    assert row.reference == pytest.approx(0.001, rel=1e-3)
    assert row.target == pytest.approx(0.004, rel=1e-3)
    assert row.ratio == pytest.approx(4, rel=1e-3)


def test_what_a_dual_benchmark_asks_for_is_measured(runs):
    (one,), _ = rows_of(runs(1.001, 1.004))
    small = {side: one.sides[side].errors["small"]["cann_dual"] for side in ("reference", "target")}
    expected = np.mean(np.abs(np.float32(RIGHT * 1.004) - RIGHT) / (np.abs(RIGHT) + 1e-7))
    assert small["target"]["mere"] == pytest.approx(expected, rel=1e-6)
    assert small["target"]["mere"] / small["reference"]["mere"] == pytest.approx(4, rel=1e-3)


def test_two_exact_sides_have_ratio_one_and_one_exact_side_has_none(runs):
    exact = np.asarray(RIGHT, np.float32)
    assert rows_of(runs(1.0, 1.0, values=exact))[1][0].ratio == 1.0
    assert math.isinf(rows_of(runs(1.0, 1.5, values=exact))[1][0].ratio)


def test_a_golden_that_is_no_more_precise_is_none(runs):
    (one,), rows = rows_of(runs(1.0, 1.0, dtype=np.float16))
    assert "less precise than float32" in one.why
    assert rows == []


def test_another_shape_or_name_and_movement_are_left_out(runs, tmp_path):
    reference, target, _ = runs(1.0, 1.0)
    assert rows_of((reference, target, write(tmp_path / "other", RIGHT, np.float64, name="other")))[0] == []
    (one,), _ = rows_of((reference, target, write(tmp_path / "shape", RIGHT[:2], np.float64)))
    assert "expected [4, 10]" in one.why
    moved = [write(tmp_path / f"moved{number}", RIGHT, np.float32, movement=True) for number in range(3)]
    assert rows_of(moved)[0] == []


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", [np.s_[0, 0], np.s_[:]])
def test_nan_of_the_target_alone_is_never_exact_and_fails_a_dual_benchmark(runs, tmp_path, bad, where):
    reference, _, golden = runs(1.001, 1.001)
    values = RIGHT * 1.001
    values[where] = bad
    evaluated, rows = rows_of((reference, write(tmp_path / "bad", values, np.float32), golden))
    assert evaluated[0].sides["target"].misplaced == np.count_nonzero(~np.isfinite(values))
    assert evaluated[0].sides["reference"].misplaced == 0
    if not np.isfinite(values).any():
        assert rows == []  # no error is made up where nothing can be compared
    (held,) = hold_all(standards.load("cann_dual"), evaluated, {evaluated[0].call: "linear"}).outputs
    assert (held.outcome, held.metric) == ("failed", "misplaced")


def test_a_number_beyond_the_type_is_as_infinite_as_the_golden(tmp_path):
    big = np.full((2, 2), 1e5)
    sides = [write(tmp_path / str(number), np.full((2, 2), np.inf), np.float16) for number in range(2)]
    (one,), rows = rows_of((*sides, write(tmp_path / "golden", big, np.float64)))
    assert [side.misplaced for side in one.sides.values()] == [0, 0]
    assert rows == []
