"""Fills, NaN and infinities of two sides, compared by counts and checksums; the truth is ``values.classify``."""

from dataclasses import replace

import numpy as np
import pytest
from amounts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from precflow.comparison.estimated.exclusions import match_exclusions
from precflow.comparison.estimated.kept_evidence import KeptTensor, sum_tensor
from precflow.comparison.fused.value_classes import classify_pairs, classify_values, fills_of, widen
from precflow.dumps.dtypes import NUMPY_DTYPES, float_facts

LOW = float(np.finfo(np.float32).min)
VALUES = (0.0, 1.5, -2.0, np.nan, np.inf, -np.inf, LOW, -1e9, -65504.0, -65000.0, -64000.0, 3e38, 40000.0, -1e4, 65504.0)


def known(values, name="float32"):
    with np.errstate(over="ignore"):
        array = np.asarray(values, np.float64).astype(NUMPY_DTYPES[name])
    return sum_tensor(array, KeptTensor(name, array.shape)), array


def truth(one, other):
    left, right = (widen(array) for array in (one, other))
    fills = tuple(fills_of(float_facts(array.dtype.name)) for array in (one, other))
    return classify_pairs(
        left, right, fills, tuple(classify_values(side, kind).floor for side, kind in zip((left, right), fills, strict=True))
    )


def test_ordinary_numbers_agree():
    found = match_exclusions(known([1.0, 2.0])[0], known([1.5, -2.0])[0])
    assert (found.agree, found.unknown, found.infinity_for_sentinel) == (True, "", 0)


@pytest.mark.parametrize(
    ("one", "other", "nonfinite", "sentinel"),
    [
        ([np.nan, 1.0], [2.0, 1.0], 1, 0),
        ([np.inf, 1.0], [-np.inf, 1.0], 1, 0),
        ([LOW, LOW, 1.0], [LOW, 0.5, 1.0], 0, 1),
        ([LOW, 1.0], [1.0, LOW], 0, 1),
        ([np.nan, 1.0], [1.0, np.nan], 1, 0),
        ([-np.inf, 1.0], [1.0, 1.0], 1, 0),
    ],
)
def test_a_mismatch_is_told_from_counts_or_from_places(one, other, nonfinite, sentinel):
    found = match_exclusions(known(one)[0], known(other)[0])
    assert not found.agree
    assert (found.nonfinite_mismatch > 0, found.sentinel_mismatch > 0) == (nonfinite > 0, sentinel > 0)


def test_minus_infinity_masks_like_a_fill():
    found = match_exclusions(known([-np.inf, 1.0, -np.inf])[0], known([LOW, 1.0, LOW])[0])
    assert (found.agree, found.infinity_for_sentinel) == (True, 2)


def test_fills_of_two_types_agree():
    assert match_exclusions(known([LOW, 1.0])[0], known([-65504.0, 1.0], "float16")[0]).agree


def test_a_fill_may_stand_against_numbers_as_large():
    found = match_exclusions(known([-10000.0, 1.0, 2.0])[0], known([-9600.0, 1.0, -1250.0])[0])
    assert not found.agree
    assert "as large" in found.unknown
    assert found.sentinel_mismatch == 0


def test_fills_of_other_constants_are_told():
    found = match_exclusions(known([-1e9, 1.0, -1e9])[0], known([LOW, 1.0, LOW])[0])
    assert (found.agree, found.unknown, found.other_fill) == (False, "", 2)


def test_fills_of_several_constants_decide_nothing():
    found = match_exclusions(known([-1e9, 1.0, LOW])[0], known([-1e9, 1.0, LOW])[0])
    assert "several constants" in found.unknown


def test_scores_that_were_added_to_fills_bound_their_error():
    found = match_exclusions(known([-10003.0, 1.0, -9999.0])[0], known([-10002.0, 1.0, -10000.5])[0])
    assert (found.agree, found.fill_error, found.fill_size) == (True, 5.0, 9997.0)


def test_saturation_on_one_side_is_told_where_the_other_does_not_come_near():
    saturated = known([65504.0, 30000.0], "float16")[0]
    assert match_exclusions(saturated, known([60000.0, 30000.0], "float16")[0]).saturated_mismatch == 1
    assert "largest value of its type" in match_exclusions(saturated, known([30000.0, 65504.0], "float16")[0]).unknown


@pytest.mark.parametrize("constants", [None, (-1e9,)])
def test_fills_that_were_counted_by_another_definition_decide_nothing(constants):
    older = replace(known([LOW, 1.0])[0], fills=constants)
    assert "another definition" in match_exclusions(older, known([LOW, 1.0])[0]).unknown
    assert "the target counted" in match_exclusions(known([LOW, 1.0])[0], older).unknown
    large = replace(known([3e38, 1.0])[0], fills=constants)
    assert "another definition" in match_exclusions(large, known([3e38, 1.0])[0]).unknown
    plain = replace(known([2.0, 1.0])[0], fills=constants)
    assert match_exclusions(plain, known([2.0, 1.5])[0]).agree


def test_places_that_were_not_kept_decide_nothing():
    one, other = known([np.nan, 1.0])[0], known([np.nan, 1.0])[0]
    unplaced = type(one.statistics)(1.0, 1.0, 1.0, 1.0, 1, 0, 0, 0, 0, 0)
    found = match_exclusions(KeptTensor("float32", (2,), statistics=unplaced), other)
    assert "places were not kept" in found.unknown
    assert match_exclusions(one, other).agree
    assert match_exclusions(KeptTensor("float32", (2,)), other).unknown


@settings(max_examples=examples(750))
@given(
    pairs=st.lists(st.tuples(st.sampled_from(VALUES), st.sampled_from(VALUES)), min_size=1, max_size=6),
    same=st.lists(st.sampled_from(VALUES), max_size=6),
    types=st.tuples(*[st.sampled_from(["float32", "float16", "bfloat16", "float64"])] * 2),
)
def test_what_is_said_is_true_of_the_elements(pairs, same, types):
    (left, one), (right, other) = (
        known([pair[side] for pair in pairs] + same, name) for side, name in zip((0, 1), types, strict=True)
    )
    found, true = match_exclusions(left, right), truth(one, other)
    if found.agree:
        assert not true.nonfinite_mismatch + true.sentinel_mismatch + true.other_fill + true.saturated_mismatch
        assert true.sentinel + true.nonfinite == left.statistics.nonfinite + left.statistics.sentinel
        here, there = widen(one)[true.measured], widen(other)[true.measured]
        assert np.max(np.abs(here - there), initial=0.0) <= found.fill_error
        assert np.min(np.abs(here), initial=np.inf) >= found.fill_size
    assert found.nonfinite_mismatch <= true.nonfinite_mismatch
    assert found.sentinel_mismatch <= true.nonfinite_mismatch + true.sentinel_mismatch + true.other_fill
    assert found.other_fill <= true.other_fill
    assert found.saturated_mismatch <= true.saturated_mismatch
    certain = found.nonfinite_mismatch + found.sentinel_mismatch + found.other_fill + found.saturated_mismatch
    assert found.agree + bool(found.unknown) + bool(certain) == 1
