"""Near ties: what noise explains and what it does not, on planted choices."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precflow.judgement.near_ties import ChoiceInput, examine, find_dimension, is_known, is_rounding, is_selection

SCORES = np.array([[0.3101, 0.2473, 0.1952, 0.2474], [0.9, 0.05, 0.03, 0.02]], np.float32)
NEARER = np.array([[0.3101, 0.2474, 0.1952, 0.2473], [0.9, 0.05, 0.03, 0.02]], np.float32)


def inputs(reference, target, dtype="float32", floor=0.0):
    return {"0": ChoiceInput(np.asarray(reference), np.asarray(target), dtype, floor)}


def pick(scores, count=2):
    return np.argsort(-scores, axis=-1, kind="stable")[..., :count]


def test_values_that_changed_places_within_their_difference_are_a_near_tie():
    flips = examine("topk", {"1": "2", "dim": "-1"}, inputs(SCORES, NEARER), pick(SCORES), pick(NEARER))
    assert (flips.near, flips.differing, flips.total) == (True, 1, 4)
    scale = np.sqrt(np.mean(np.square(SCORES.astype(np.float64))))
    assert flips.margin == pytest.approx(1e-4 / scale, rel=1e-2)
    assert flips.noise == pytest.approx(2e-4 / scale, rel=1e-2)
    assert "1 of 4 choices differs: the values chosen are" in flips.text


def test_a_choice_that_no_difference_explains_is_a_fault():
    wrong = pick(SCORES).copy()
    wrong[0, 1] = 2  # far behind
    flips = examine("topk", {"dim": "-1"}, inputs(SCORES, NEARER), pick(SCORES), wrong)
    assert not flips.near
    assert "beyond their noise" in flips.text


def test_every_index_off_by_one_is_a_fault():
    shifted = (pick(SCORES) + 1) % 4
    assert not examine("topk", {}, inputs(SCORES, NEARER), pick(SCORES), shifted).near
    assert examine("topk", {}, inputs(SCORES, SCORES), pick(SCORES), pick(SCORES) + 4) is None, "no such index"


def test_the_same_index_twice_is_a_fault():
    twice = pick(SCORES).copy()
    twice[1] = 0
    assert examine("topk", {}, inputs(SCORES, NEARER), pick(SCORES), twice) is None


def test_exact_ties_may_be_chosen_freely_and_equal_bits_otherwise_not():
    tied = np.array([[1.0, 1.0, 0.5]], np.float32)
    one, other = np.array([0]), np.array([1])
    assert examine("argmax", {"dim": "-1"}, inputs(tied, tied), one, other).near
    apart = np.array([[1.0, 0.9999, 0.5]], np.float32)
    assert not examine("argmax", {"dim": "-1"}, inputs(apart, apart), one, other).near
    assert examine("argmax", {"dim": "-1"}, inputs(apart, apart, floor=1e-3), one, other).near, "within the noise floor"


def test_a_difference_that_stands_out_is_no_noise():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(200, 8)).astype(np.float32)
    noisy = (scores * (1 + 1e-6 * rng.normal(size=scores.shape))).astype(np.float32)
    noisy[7, np.argmin(scores[7])] = scores[7].max() + 1  # one wrong score, which the whole tensor's error may hide
    flips = examine("argmax", {"dim": "1"}, inputs(scores, noisy), scores.argmax(1), noisy.argmax(1))
    assert (flips.near, flips.differing) == (False, 1)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    operator=st.sampled_from(["argmax", "argmin", "topk", "sort", "kthvalue"]),
    size=st.integers(2, 40),
)
def test_correct_operators_on_noisy_scores_only_show_near_ties(seed, operator, size):
    rng = np.random.default_rng(seed)
    scores = (rng.integers(0, 6, size=(30, size)) + 1e-6 * rng.normal(size=(30, size))).astype(np.float32)  # many near ties
    noisy = (scores + 1e-6 * rng.uniform(-1, 1, size=scores.shape)).astype(np.float32)
    choose = {
        "argmax": lambda x: x.argmax(-1),
        "argmin": lambda x: x.argmin(-1),
        "topk": lambda x: np.argsort(-x, axis=-1)[:, : max(1, size // 2)],
        "sort": lambda x: np.argsort(x, axis=-1),
        "kthvalue": lambda x: np.argsort(x, axis=-1)[:, size // 2],
    }[operator]
    arguments = {"dim": "-1"}
    assert examine(operator, arguments, inputs(scores, noisy), choose(scores), choose(noisy)).near


def test_the_dimension_is_that_of_the_call():
    one = pick(SCORES.T.copy().T, 1)[:, 0]
    by_column = examine("argmax", {"1": "0"}, inputs(SCORES.T, NEARER.T), one, one)
    assert (by_column.near, by_column.differing) == (True, 0)
    flat = examine("argmax", {}, inputs(SCORES, NEARER), np.array(4), np.array(4))
    assert (flat.near, flat.total) == (True, 1)
    assert (flat.differing, flat.margin, flat.noise) == (0, 0.0, 0.0)
    kept = examine("max", {"dim": "1", "keepdim": "True"}, inputs(SCORES, NEARER), one[:, None], one[:, None])
    assert kept.total == 2


def test_a_comparison_flips_at_its_threshold_only():
    values, moved = np.array([0.1, 0.5, 0.9], np.float32), np.array([0.1, 0.5 + 1e-6, 0.9], np.float32)
    near = examine("gt", {"1": "0.5"}, inputs(values, moved), values > 0.5, moved > 0.5)
    assert (near.near, near.differing) == (True, 1)
    assert not examine("gt", {"1": "0.5"}, inputs(values, moved), values > 0.5, ~(moved > 0.5)).near
    same = inputs(values, values)
    assert not examine("ge", {"1": "0.5"}, same, values >= 0.5, values > 0.5).near, "equal bits have one right outcome"


def test_a_comparison_of_two_tensors_takes_the_noise_of_both():
    values, limit = np.array([[0.1, 0.5], [0.4, 0.7]], np.float32), np.array([[0.5], [0.4]], np.float32)
    given = {"0": ChoiceInput(values, values, "float32"), "other": ChoiceInput(limit, limit + np.float32(1e-6), "float32")}
    flips = examine("lt", {}, given, values < limit, values < limit + np.float32(1e-6))
    assert (flips.near, flips.differing) == (True, 2)


def test_rounding_flips_at_halves_only():
    values, moved = np.array([0.2, 0.4999999, 3.0], np.float32), np.array([0.2, 0.5000001, 3.0], np.float32)
    near = examine("round", {}, inputs(values, moved), np.round(values), np.round(moved))
    assert (near.near, near.differing) == (True, 1)
    wrong = examine("round", {}, inputs(values, moved), np.round(values), np.round(values) + 1)
    assert not wrong.near
    assert wrong.text == "3 of 3 choices differ, and the values chosen between do not explain it"
    assert examine("round", {"decimals": "2"}, inputs(values, moved), np.round(values), np.round(moved)) is None


def test_what_a_cast_makes_of_infinity_is_no_choice():
    values, moved = np.array([2.0, -np.inf], np.float32), np.array([1.9999999, -np.inf], np.float32)
    least = np.iinfo(np.int64).min
    flips = examine("long", {}, inputs(values, moved), np.array([2, least]), np.array([1, least]))
    assert (flips.near, flips.differing) == (True, 1)


def test_low_precision_may_differ_by_a_step_at_few_places():
    scores = np.ones((64, 8), ml_dtypes.bfloat16)
    scores[:, 0], moved = 2.0, None
    scores[5, 1] = 2.0
    moved = scores.copy()
    moved[5, 1] = ml_dtypes.bfloat16(2.015625)  # one step above
    flips = examine("argmax", {"dim": "-1"}, inputs(scores, moved, "bfloat16"), scores.argmax(-1), moved.argmax(-1))
    assert (flips.near, flips.differing) == (True, 1)


def test_what_is_not_known_to_choose():
    assert examine("linear", {}, inputs(SCORES, NEARER), pick(SCORES), pick(NEARER)) is None
    assert not is_known("histc")
    assert is_known("aten.topk")
    assert is_known("gt_")
    assert is_selection("argsort")
    assert not is_selection("gt")
    assert is_rounding("floor_")


def test_nan_on_one_side_is_no_near_tie():
    broken = NEARER.copy()
    broken[0, 1] = np.nan
    flips = examine("argmax", {"dim": "-1"}, inputs(SCORES, broken), np.array([0, 0]), np.array([1, 0]))
    assert not flips.near


def test_equal_infinities_are_no_difference():
    masked, moved = SCORES.copy(), NEARER.copy()
    masked[:, 2] = moved[:, 2] = -np.inf
    assert examine("topk", {"dim": "-1"}, inputs(masked, moved), pick(masked), pick(moved)).near


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        ("max", {"1": "0"}),
        ("min", {"1": "0"}),
        ("argmax", {"1": "0"}),
        ("argmin", {"1": "0"}),
        ("median", {"1": "0"}),
        ("nanmedian", {"1": "0"}),
        ("mode", {"1": "0"}),
        ("cummax", {"1": "0"}),
        ("cummin", {"1": "0"}),
        ("sort", {"1": "0"}),
        ("argsort", {"1": "0"}),
        ("topk", {"1": "2", "2": "0"}),
        ("kthvalue", {"1": "2", "2": "0"}),
    ],
)
def test_a_dimension_that_was_passed_by_position_is_found(operator, arguments):
    assert find_dimension(operator, arguments) == 0
    assert find_dimension(operator, {**arguments, "dim": "-2"}) == -2


def test_without_a_dimension_an_operator_chooses_along_its_last_one_or_among_all_elements():
    assert {find_dimension(operator, {}) for operator in ("max", "min", "argmax", "argmin", "median", "nanmedian")} == {None}
    assert {find_dimension(operator, {}) for operator in ("topk", "sort", "argsort", "mode", "kthvalue")} == {-1}
    assert find_dimension("msort", {}) == 0
