"""The self-test finds a kernel that is wrong, and nothing in one that is right."""

import numpy as np
import pytest
from msgspec.structs import replace

from precflow.comparison.compiled import selftest
from precflow.comparison.compiled.selftest import SIZE, by_numpy, pair_of, problem_of
from precflow.comparison.fused.kernel import pair_facts
from precflow.comparison.fused.scaled_float import Scaled

FACTS = pair_facts("float32", "float16")


def right(reference, target, first, length):
    del first
    return by_numpy(reference, target, FACTS, length)


def test_numpy_s_own_pass_has_no_problem():
    assert problem_of(right, FACTS) == ""


@pytest.mark.parametrize(
    "wrong",
    [
        {"sentinel": 1},
        {"ulp_max": 10**6},
        {"difference_square": Scaled.of(1.0)},
        {"product": Scaled.of(1.0)},
        {"within_one_thousandth": 0},
    ],
)
def test_a_wrong_field_is_named(wrong):
    (name,) = wrong
    assert problem_of(lambda *asked: replace(right(*asked), **wrong), FACTS).startswith("its self-test differs in")
    assert name in problem_of(lambda *asked: replace(right(*asked), **wrong), FACTS)


def test_a_sum_may_differ_by_the_order_of_additions():
    def other(*asked):
        found = right(*asked)
        return replace(found, difference_sum=Scaled.of(float(found.difference_sum) * (1 + 1e-14)))

    assert problem_of(other, FACTS) == ""


def test_what_is_tried_has_every_class_of_value_and_comes_to_several_blocks():
    reference, target = pair_of(FACTS, special=0.1, signed=True)
    assert (reference.dtype.name, target.dtype.name, reference.size) == ("float32", "float16", SIZE)
    found = by_numpy(reference, target, FACTS, SIZE)
    assert min(found.sentinel, found.nonfinite, found.small, found.ordinary) > 0
    assert min(found.sentinel_mismatch, found.nonfinite_mismatch, found.small_mismatch) > 0


def test_ordinary_pairs_are_tried_too_and_without_a_sign():
    reference, target = pair_of(FACTS, special=0.0, signed=False)
    assert (reference >= 0).all()
    assert np.isfinite(target.astype(np.float32)).all()


def test_a_kernel_that_forgets_where_rows_are_is_found(monkeypatch):
    monkeypatch.setattr(selftest, "by_numpy", lambda reference, target, facts, _: by_numpy(reference, target, facts, 100))
    assert "rows" in problem_of(right, FACTS)
