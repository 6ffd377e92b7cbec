"""Values at other places, on top of the rounding of another chip."""

import numpy as np
import pytest

from precflow.diagnosis.evidence.rearranged import find_rearrangement

RANDOM = np.random.default_rng(12)
VALUES = RANDOM.standard_normal((3, 8, 12))
PAIRS = VALUES.reshape(3, 8, 6, 2)


@pytest.fixture(params=[2.0**-24, 2.0**-9], ids=["float32", "bfloat16"])
def noise(request):
    return 1 + request.param * RANDOM.uniform(-1, 1, VALUES.shape)


@pytest.mark.parametrize(
    ("moved", "text"),
    [
        (VALUES.reshape(3, 8, 2, 6).swapaxes(-1, -2).reshape(VALUES.shape), "halves interleaved (pairs in place of halves)"),
        (PAIRS.swapaxes(-1, -2).reshape(VALUES.shape), "pairs taken apart (halves in place of pairs)"),
        (np.roll(VALUES, 6, -1), "halves exchanged"),
        (np.roll(VALUES, 2, 1), "moved by 2"),
        (np.roll(VALUES, -1, 1), "moved by -1"),
        (VALUES[..., ::-1], "reversed"),
        (VALUES[:, [0, 5, 2, 3, 4, 1, 6, 7]], "1 and 5 exchanged"),
        (VALUES.reshape(3, 8, 4, 3)[:, :, [0, 2, 1, 3]].reshape(VALUES.shape), "4 blocks in the order 0, 2, 1, 3"),
        (VALUES[:, RANDOM.permutation(8)], "in another order"),
    ],
)
def test_an_order_along_an_axis(moved, text, noise):
    found = find_rearrangement(VALUES, moved * noise)
    assert found.text.startswith(text)
    assert " along " in found.text
    assert found.share > 0.99


def test_values_that_only_moved_leave_nothing_but_rounding():
    """A mirrored kernel gives nearly the mirrored output where its input is smooth; that is no order of the right values."""
    smooth = np.cumsum(np.cumsum(VALUES, -1), -1)
    kernel = np.array([0.05, 0.2, 0.5, 0.25])
    right, wrong = (np.apply_along_axis(np.convolve, -1, smooth, one, "same") for one in (kernel, kernel[::-1]))
    nearly = right[:, ::-1] + 0.02 * (wrong - right)
    assert find_rearrangement(right, nearly).text == "reversed along axis -2"
    assert find_rearrangement(right, nearly).left > 1e-3
    assert find_rearrangement(right, nearly, 64 * 2.0**-24).text == ""
    assert find_rearrangement(right, right[:, ::-1], 64 * 2.0**-24).text == "reversed along axis -2"


def test_rows_of_different_samples(noise):
    rows = VALUES.reshape(24, 12).copy()
    rows[[3, 17]] = rows[[17, 3]]
    found = find_rearrangement(VALUES, rows.reshape(VALUES.shape) * noise)
    assert found.text == "3 and 17 exchanged along the rows of all samples"


def test_rows_of_equal_tokens_may_be_nearer_than_their_own(noise):
    values = VALUES.copy()
    values[:, 4], values[1, 7] = values[:, 2], values[0, 1]
    swapped = values.reshape(24, 12)[[23, *range(1, 23), 0]].reshape(VALUES.shape)
    assert find_rearrangement(values, swapped * noise).text == "0 and 23 exchanged along the rows of all samples"
    assert find_rearrangement(values, np.roll(values, 1, 1) * noise).text == "moved by 1 along axis -2"


def test_exchanged_axes(noise):
    assert find_rearrangement(VALUES, VALUES.swapaxes(0, 1).reshape(VALUES.shape) * noise).text == "axes 0 and 1 exchanged"


@pytest.mark.parametrize("wrong", [VALUES * 1.01, VALUES + 0.1, np.where(VALUES > 1, 1.0, VALUES), np.zeros_like(VALUES)])
def test_other_errors_and_rounding_are_no_rearrangement(wrong, noise):
    assert find_rearrangement(VALUES, wrong * noise).text == ""
    assert find_rearrangement(VALUES, VALUES * noise).text == ""


def test_nothing_is_said_without_an_error_or_with_nan():
    assert find_rearrangement(VALUES, VALUES) is None
    assert find_rearrangement(VALUES, VALUES * np.nan) is None
