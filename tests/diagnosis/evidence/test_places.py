"""Where an error is, planted on top of the rounding of another chip, in float32 and bfloat16."""

import numpy as np
import pytest

from precflow.diagnosis.evidence import places
from precflow.dumps.dtypes import NUMPY_DTYPES, float_facts

RANDOM = np.random.default_rng(11)
VALUES = RANDOM.standard_normal((4, 32, 64))


@pytest.fixture(params=[2.0**-24, 2.0**-9], ids=["float32", "bfloat16"])
def noisy(request):
    """The values as another chip would give them: a relative error of one rounding everywhere."""
    return VALUES * (1 + request.param * RANDOM.uniform(-1, 1, VALUES.shape))


def test_rounding_is_spread_over_nearly_all_elements_and_is_at_no_border(noisy):
    error = noisy - VALUES
    assert places.measure_few_share(error) > 0.5
    assert places.describe_border(error) == ""
    assert places.is_first_sample_right(VALUES, noisy) is False
    assert places.measure_zero_share(VALUES, noisy) == 0.0
    assert places.measure_sign_share(VALUES, noisy) == 0.0
    clamp = places.measure_clamp_share(VALUES, noisy)
    assert clamp is None or clamp[1] < 0.01
    growth, order = places.measure_growth(VALUES, noisy)
    assert growth < 2
    assert abs(order) < 0.8


def test_one_row(noisy):
    noisy[2, 7] *= 1.5
    assert places.measure_few_share(noisy - VALUES) < 0.1
    assert places.find_few((noisy - VALUES).reshape(-1, 64), 0) == [2 * 32 + 7]


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (np.s_[..., 61:], "the last 3 of 64 along axis 2"),
        (np.s_[:, :2], "the first 2 of 32 along axis 1"),
        (np.s_[..., [0, 63]], "both ends of axis 2, 2 of 64"),
        (np.s_[..., 30:34], ""),
    ],
)
def test_borders(noisy, where, text):
    noisy[where] += 0.5
    assert places.describe_border(noisy - VALUES) == text


def test_a_border_is_all_of_it_however_little_of_the_error_its_weakest_part_has():
    """Rows of a gradient differ in size by orders of magnitude, and so do the errors of dimensions that are not rotated."""
    sizes = np.geomspace(1e-4, 1.0, 10)[:, None]
    error = np.concatenate([np.full((90, 16), 1e-9), sizes * np.ones((10, 16))])
    assert places.describe_border(error) == "the last 10 of 100 along axis 0"
    assert places.describe_border(error[::-1]) == "the first 10 of 100 along axis 0"
    wider = np.concatenate([error, np.ones((30, 16))])
    assert places.describe_border(wider) == ""
    assert places.describe_border(wider, is_known=True) == "the last 40 of 130 along axis 0"


def test_a_part_that_is_left_as_it_came():
    cosines = np.cos(np.arange(32)[:, None] * np.geomspace(1.0, 1e-4, 32).repeat(2)[None])
    target = VALUES * cosines
    target[..., 52:] = VALUES[..., 52:]
    noise = 1.0 + 2.0**-24 * RANDOM.uniform(-1, 1, VALUES.shape)
    noise[..., 52:] = 1.0
    assert places.describe_unchanged(VALUES * cosines, target * noise, VALUES) == "the last 12 of 64 along axis 2"
    # Everything as it came is another thing, and so is a part that is wrong in another way.
    assert places.describe_unchanged(VALUES * cosines, VALUES, VALUES) == ""
    assert places.describe_unchanged(VALUES * cosines, np.where(np.arange(64) < 52, target, 0.0), VALUES) == ""
    assert places.describe_unchanged(VALUES * cosines, target, VALUES[..., :5]) == ""


def test_a_tail_that_is_not_computed_is_zero(noisy):
    noisy[..., 60:] = 0.0
    assert places.measure_zero_share(VALUES, noisy) > 0.99
    assert places.describe_border(noisy - VALUES) == "the last 4 of 64 along axis 2"


def test_an_error_that_grows_with_the_position(noisy):
    noisy += VALUES * 0.2 * np.arange(32)[:, None] / 32 * RANDOM.standard_normal(VALUES.shape)
    growth, order = places.measure_growth(VALUES, noisy)
    assert growth > 4
    assert order > 0.9
    assert places.measure_growth(VALUES[:, :4], noisy[:, :4]) is None


def test_only_the_first_sample_is_right():
    assert places.is_first_sample_right(VALUES, VALUES[[0, 3, 2, 1]]) is False  # the third one is right too
    assert places.is_first_sample_right(VALUES, np.concatenate([VALUES[:1], VALUES[[2, 3, 1]]])) is True
    assert places.is_first_sample_right(VALUES[:1], VALUES[:1]) is None


def test_a_first_sample_with_a_smaller_error_is_not_right():
    angles = np.outer([3.0, 711.0], np.geomspace(1e-3, 1.0, 64)).reshape(2, 8, 8)
    target = np.cos(1.001 * angles)
    assert places.is_first_sample_right(np.cos(angles), target, 2.0**-24) is False
    right = np.stack([np.cos(angles)[0] * (1 + 2.0**-23), target[1]])
    assert places.is_first_sample_right(np.cos(angles), right, 2.0**-24) is True


def test_a_cut_at_a_largest_value(noisy):
    value, share = places.measure_clamp_share(VALUES, np.minimum(noisy, 1.0))
    assert value == 1.0
    assert share > 0.99


def test_signs(noisy):
    noisy[..., :32] *= -1
    assert places.measure_sign_share(VALUES, noisy) > 0.99


def test_a_rotation_keeps_norms_and_a_scale_does_not(noisy):
    angle = np.linspace(0, 1, 32)[:, None]
    left, right = noisy[..., :32], noisy[..., 32:]
    rotated = np.concatenate([left * np.cos(angle) - right * np.sin(angle), right * np.cos(angle) + left * np.sin(angle)], -1)
    assert places.measure_norm_change(VALUES, rotated) < 0.02
    assert places.measure_norm_change(VALUES, noisy * 1.3) > 0.9


def test_norms_that_a_normalisation_made_alike_prove_no_rotation(noisy):
    rows = VALUES / np.linalg.norm(VALUES, axis=-1, keepdims=True)
    others = noisy / np.linalg.norm(noisy, axis=-1, keepdims=True)
    assert places.measure_norm_change(rows, others) < 1e-6
    assert places.measure_norm_spread(rows) < 1e-6
    assert places.measure_norm_spread(VALUES) > 0.05
    assert places.measure_norm_spread(0 * VALUES) is None


def test_uniform_rows():
    weights = np.exp(VALUES) / np.exp(VALUES).sum(-1, keepdims=True)
    assert places.measure_uniform_share(weights) == 0.0
    assert places.measure_uniform_share(np.full((3, 8), 0.125)) == 1.0
    assert places.measure_uniform_share(np.ones((3, 1))) == 0.0


def test_nothing_is_said_without_an_error():
    assert places.measure_few_share(np.zeros(3)) is None
    assert places.measure_zero_share(VALUES, VALUES) is None
    assert places.measure_clamp_share(VALUES, VALUES) is None
    assert places.measure_sign_share(VALUES, VALUES) is None
    assert places.measure_norm_change(VALUES, VALUES) is None
    assert places.is_first_sample_right(VALUES, VALUES) is None


def test_a_wrong_element_of_the_second_sample_is_no_wrong_sample():
    values = np.random.default_rng(3).standard_normal((2, 4, 24, 24))
    element, row, sample = values.copy(), values.copy(), values.copy()
    element[1, 2, 3, 4] += 1.0
    row[1, 2, 3] += 1.0
    sample[1] = values[1, :, ::-1]
    assert [places.is_first_sample_right(values, wrong) for wrong in (element, row, sample)] == [False, False, True]


def test_a_wrong_element_that_happens_to_stand_at_an_end_is_no_border():
    error = np.zeros((2, 4, 24, 24))
    error[1, 2, 3, 0] = 1.0
    assert not places.describe_border(error)
    error[..., 0] = np.random.default_rng(3).standard_normal((2, 4, 24))
    assert places.describe_border(error) == "the first 1 of 24 along axis 3"


def test_columns_that_two_rows_lack_are_a_border_however_small_one_of_their_values_is():
    error = 1e-7 * np.random.default_rng(0).standard_normal((2, 64))
    error[:, -2:] = [[0.9, 0.02], [-0.05, 0.7]]
    assert places.describe_border(error, is_known=True) == "the last 2 of 64 along axis 1"
    error[:, -2:] = [[0.9, 1e-7], [1e-7, 1e-7]]
    assert not places.describe_border(error, is_known=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_subnormal_numbers_that_are_flushed_are_counted(dtype):
    facts = float_facts(dtype)
    values = facts.smallest_normal * np.geomspace(1e-3 if dtype == "float16" else 1e-2, 1e3, 500) * RANDOM.choice([-1, 1], 500)
    rounded = values.astype(NUMPY_DTYPES[dtype]).astype(np.float64)
    flushed = np.where(np.abs(rounded) < facts.smallest_normal, 0.0, rounded)
    certain = np.abs(values) < facts.smallest_normal * (1 - 2.0**-facts.digits)
    assert places.count_flushed(values, flushed, facts) == np.count_nonzero(certain)
    assert places.count_flushed(values, rounded, facts) == 0
    assert places.count_flushed(values, np.zeros(500), facts) == 0  # all are zero
    one_left = np.where(np.arange(500) == 7, rounded, flushed)
    assert places.count_flushed(values, one_left, facts) == 0
    assert places.count_flushed(values, np.where(values < 0, 0.0, rounded), facts) == 0  # relu


def test_what_is_flushed_is_found_on_top_of_the_rounding_of_another_chip(noisy):
    facts = float_facts("float16")
    flushed = np.where(np.abs(noisy) * 1e-3 < facts.smallest_normal, 0.0, noisy * 1e-3)
    assert places.count_flushed(VALUES * 1e-3, flushed, facts) > 300
    assert places.count_flushed(VALUES, noisy, facts) == 0
    assert places.count_flushed(np.zeros(0), np.zeros(0), facts) == 0
