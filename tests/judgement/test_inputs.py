"""An input is judged as an output is: from tensors, from sketches, and open where neither was kept."""

from dataclasses import replace

import evidence
import numpy as np
import pytest

from precflow.config.schema import Tolerance, ToleranceRule
from precflow.errors import DumpError
from precflow.judgement.floors import Floor
from precflow.judgement.inputs import make_input_judge, measure_input

X = np.random.default_rng(3).standard_normal((40, 60)).astype(np.float32)


def status(one, other, details=("tensors", "tensors"), tolerance=None, dtypes=("float32", "float32")):
    left, right = evidence.Dump(one, details[0], "c1"), evidence.Dump(other, details[1], "c2")
    judged = make_input_judge(left, right, tolerance or Tolerance(), reference_dtype=dtypes[0], target_dtype=dtypes[1])
    return judged(left.record, right.record)


@pytest.mark.parametrize("details", [("tensors", "tensors"), ("sketch", "sketch"), ("tensors", "sketch")])
@pytest.mark.parametrize(("error", "expected"), [(1e-7, "pass"), (1e-2, "fail")])
def test_an_input_is_held_to_the_limits_of_outputs(details, error, expected):
    found = status(X, X + np.float32(error) * X[::-1], details)
    assert (found.status, found.metric) == (expected, "relative_l2")
    assert found.limit == 2.0**-16


def test_what_was_kept_may_leave_it_open():
    assert status(X, X[::-1].copy(), ("digest", "digest")).status == "undecided"


def test_the_types_of_the_runs_and_the_rules_of_the_recipe_count():
    assert status(X, X * np.float32(1.001), dtypes=("float16", "float32")).limit == 2.0**-8
    wide = replace(Tolerance(), rules=(ToleranceRule(match="a", relative_l2=0.05),))
    assert (status(X, X * np.float32(1.01), tolerance=wide).status, status(X, X * np.float32(1.01)).status) == ("pass", "fail")


def test_shapes_nonfinite_values_and_whole_numbers():
    assert status(X, X[:3]).status == "shape"
    broken = X.copy()
    broken[0, 0] = np.nan
    assert status(X, broken).status == "nonfinite"
    assert status(np.arange(3), np.arange(3) + 1).status == "not_judged"


def test_a_tensor_that_cannot_be_read_is_unreadable():
    class Torn:
        fills = ()

        def tensor(self, record):
            raise DumpError(f"{record.text} is torn")

    left, right = (evidence.Dump(X, "tensors", content).record for content in ("c1", "c2"))
    found = measure_input(left, right, Torn(), Torn())
    assert (found.join, found.reason, found.name) == ("unreadable", "a/linear.0/forward.output.0 is torn", "a / linear")


@pytest.mark.parametrize(("floor", "expected"), [(None, "pass"), (1e-7, "fail"), (1e-5, "pass")])
def test_an_input_is_held_to_the_noise_floor_of_the_output_that_it_is(floor, expected):
    left, right = evidence.Dump(X, "tensors", "c1"), evidence.Dump(X + np.float32(1e-6) * X[::-1], "tensors", "c2")
    known = None if floor is None else Floor("made by another call", {"relative_l2": floor})
    calibrated = Tolerance(standards=("calibrated",))
    judge = make_input_judge(
        left, right, calibrated, reference_dtype="float32", target_dtype="float32", find_floor=lambda _: known
    )
    found = judge(left.record, right.record)
    assert (found.status, found.floor) == (expected, floor)
