"""The self-test finds a kernel that is wrong, and nothing in one that is right."""

import numpy as np
import pytest
from msgspec.structs import replace

from precflow.comparison.compiled import selftest
from precflow.comparison.compiled.selftest import SIZE, find_disagreements, find_problem, make_pair, summarize_by_numpy
from precflow.comparison.fused.kernel import pair_facts
from precflow.comparison.fused.row_norms import RowNorms
from precflow.comparison.fused.scaled_float import ScaledFloat
from precflow.comparison.fused.summary import Summary

FACTS = pair_facts("float32", "float16")


def right(reference, target, first, length):
    del first
    return summarize_by_numpy(reference, target, FACTS, length)


def test_numpy_s_own_pass_has_no_problem():
    assert find_problem(right, FACTS) == ""


@pytest.mark.parametrize(
    "wrong",
    [
        {"sentinel": 1},
        {"ulp_max": 10**6},
        {"difference_square": ScaledFloat.of(1.0)},
        {"product": ScaledFloat.of(1.0)},
        {"within_one_thousandth": 0},
    ],
)
def test_a_wrong_field_is_named(wrong):
    (name,) = wrong
    assert find_problem(lambda *asked: replace(right(*asked), **wrong), FACTS).startswith("its self-test differs in")
    assert name in find_problem(lambda *asked: replace(right(*asked), **wrong), FACTS)


def test_a_sum_may_differ_by_the_order_of_additions():
    def other(*asked):
        found = right(*asked)
        return replace(found, difference_sum=ScaledFloat.of(float(found.difference_sum) * (1 + 1e-14)))

    assert find_problem(other, FACTS) == ""


def test_what_is_tried_has_every_class_of_value_and_comes_to_several_blocks():
    reference, target = make_pair(FACTS, special=0.1, signed=True)
    assert (reference.dtype.name, target.dtype.name, reference.size) == ("float32", "float16", SIZE)
    found = summarize_by_numpy(reference, target, FACTS, SIZE)
    assert min(found.sentinel, found.nonfinite, found.small, found.ordinary) > 0
    assert min(found.sentinel_mismatch, found.nonfinite_mismatch, found.small_mismatch) > 0


def test_ordinary_pairs_are_tried_too_and_without_a_sign():
    reference, target = make_pair(FACTS, special=0.0, signed=False)
    assert (reference >= 0).all()
    assert np.isfinite(target.astype(np.float32)).all()


def test_a_kernel_that_forgets_where_rows_are_is_found(monkeypatch):
    monkeypatch.setattr(
        selftest, "summarize_by_numpy", lambda reference, target, facts, _: summarize_by_numpy(reference, target, facts, 100)
    )
    assert "rows" in find_problem(right, FACTS)


WHOLE = Summary(
    elements=3,
    reference_square=ScaledFloat.of(2.0),
    product=ScaledFloat.of(1e-30),
    divergence=ScaledFloat.of(1.0),
    rows=RowNorms(1, np.array([1.0, 0.0]), np.array([2.0, 3.0])),
)


def test_a_summary_agrees_with_itself_and_to_rounding():
    assert find_disagreements(WHOLE, WHOLE) == []
    assert find_disagreements(WHOLE, replace(WHOLE, reference_square=ScaledFloat.of(2.0 + 1e-13))) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("elements", 4),
        ("reference_square", ScaledFloat.of(2.0 + 1e-11)),
        ("relative_max", 1e-300),
        ("close", {"float32": 1}),
        ("divergence", ScaledFloat.of(1.0 + 1e-11)),
        ("rows", RowNorms(0, np.array([1.0, 0.0]), np.array([2.0, 3.0]))),
        ("rows", RowNorms(1, np.array([1.0, 1e-20]), np.array([2.0, 3.0]))),
        ("rows", RowNorms(1, np.array([1.0]), np.array([2.0]))),
    ],
)
def test_a_difference_is_named(name, value):
    assert find_disagreements(WHOLE, replace(WHOLE, **{name: value})) == [name]


def test_what_cancels_is_judged_by_what_it_cancels_from():
    assert find_disagreements(WHOLE, replace(WHOLE, product=ScaledFloat.of(1e-13))) == []
    assert find_disagreements(WHOLE, replace(WHOLE, product=ScaledFloat.of(1e-10))) == ["product"]


def test_a_divergence_of_negative_values_means_nothing():
    negative = replace(WHOLE, negative=True)
    assert find_disagreements(negative, replace(negative, divergence=ScaledFloat.of(7.0))) == []
