"""Whatever moves or multiplies an input is found and named; nothing is said of inputs without such a change."""

import re

import ml_dtypes
import numpy as np
import pytest
from amounts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from precflow import language
from precflow.diagnosis.evidence.input_changes import KINDS, LARGEST, find_input_change

FLOATS = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
DTYPES = [*FLOATS, np.dtype(np.uint8), np.dtype(np.int64)]
MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(1, 3, 1, 1)
STD = np.array([0.229, 0.224, 0.225], np.float32).reshape(1, 3, 1, 1)
CATALOGUE = language.load("zh")
SEEDS = st.integers(0, 2**16)


def draw(seed, shape, dtype):
    """Return random values of a type: whole ones from 0 to 255, others around 0."""
    values = np.random.default_rng(seed).random(shape)
    return (values * 256 if dtype.kind in "iu" else values * 4 - 2).astype(dtype)


def normalise(pictures):
    return (pictures - MEAN) / STD


def name(reference, target):
    """Return the change in words; each of them has its Chinese."""
    change = find_input_change(reference, target)
    if change is None:
        return ""
    assert change.kinds
    assert {*change.kinds} <= {*KINDS}
    assert {*re.findall("[a-z]{2,}", CATALOGUE.translate(change.text))} <= {"token"}
    return change.text


@given(SEEDS, st.sampled_from(DTYPES), st.sampled_from([3, 4]), st.booleans(), st.data())
def test_channels_in_another_order_are_named(seed, dtype, count, is_last, data):
    order = data.draw(st.permutations(range(count)).filter(lambda order: order != sorted(order)))
    shape = (2, 9, 11, count) if is_last else (2, count, 9, 11)
    pictures = draw(seed, shape, dtype)
    target = pictures.take(order, 3 if is_last else 1)
    assert name(pictures, target) == f"channels in the order {', '.join(map(str, order))}"
    assert name(pictures[0], target[0]) == f"channels in the order {', '.join(map(str, order))}"


@given(SEEDS, st.sampled_from(DTYPES), st.sets(st.sampled_from([0, 2, 3]), min_size=1, max_size=2))
def test_a_flip_is_named_by_its_axes(seed, dtype, axes):
    pictures = draw(seed, (2, 3, 9, 11), dtype)
    word = "axis" if len(axes) == 1 else "axes"
    assert name(pictures, np.flip(pictures, tuple(axes))) == f"flipped along {word} {' and '.join(map(str, sorted(axes)))}"


@given(SEEDS, st.sampled_from(FLOATS), st.floats(-300, 300), st.floats(-5, 5), st.booleans(), st.booleans())
def test_one_factor_and_one_amount_are_found(seed, dtype, factor, amount, is_sound, is_only_factor):
    values = draw(seed, (2, 700) if is_sound else (2, 3, 9, 11), dtype)
    wide = values.astype(np.float64) * factor + (0 if is_only_factor else amount)
    target = wide.astype(dtype)
    far = np.abs(wide - values.astype(np.float64)).mean()
    scale = np.abs(wide).mean() + np.abs(values.astype(np.float64)).mean()
    if not (np.isfinite(target).all() and abs(factor) > 0.01 and far > 0.3 * scale and abs(amount) < 3 * abs(factor)):
        return
    text = name(values, target)
    if is_only_factor:
        found, expected = text.removeprefix("each value multiplied by "), factor
    else:
        found, expected = text.partition("multiplied by ")[2].partition(",")[0] or "1", factor
    assert float(found) == pytest.approx(expected, rel=0.01)
    assert ";" not in text


@given(SEEDS, st.sampled_from(FLOATS), st.permutations(range(3)), st.sampled_from(["", "std", "both"]))
def test_another_normalisation_is_found_behind_another_order(seed, dtype, order, lacks):
    """Other channels before the same normalisation: both an order, and a factor and an amount a channel."""
    raw = np.random.default_rng(seed).random((4, 3, 12, 12)).astype(np.float32)
    other = raw.take(order, 1)
    prepared = {"": normalise(other), "std": other - MEAN, "both": other}[lacks]
    text = name(normalise(raw).astype(dtype), prepared.astype(dtype))
    is_moved = order != [0, 1, 2]
    assert (f"channels in the order {', '.join(map(str, order))}" in text) == is_moved
    if lacks == "std" and not is_moved:
        assert text.startswith("channels multiplied by ")
        assert list(map(float, text.split("by ")[1].split(", "))) == pytest.approx([0.229, 0.224, 0.225], abs=5e-4)
    elif lacks == "both" and not is_moved and dtype != FLOATS[2]:
        assert text == "channels multiplied by 0.229, 0.224, 0.225, then 0.485, 0.456, 0.406 added"
    else:
        assert (" added" in text) == (is_moved or lacks == "both")


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_range_is_found_between_whole_numbers_and_fractions(dtype):
    pixels = draw(1, (2, 3, 16, 16), np.dtype(np.uint8))
    assert name(pixels, (pixels / 255).astype(dtype)) == "each value multiplied by 0.003922"
    text = name((pixels / 255).astype(np.float32), pixels)
    assert text == "each value multiplied by 255"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda x: x.transpose(0, 2, 3, 1), "channels last in place of first"),
        (lambda x: x.transpose(0, 2, 3, 1)[..., ::-1], "channels last in place of first; channels in the order 2, 1, 0"),
        (lambda x: x.swapaxes(2, 3), "axes 2 and 3 exchanged"),
        (lambda x: x.reshape(4, 24, 8), "the same values in the same order, as 4 x 24 x 8 in place of 4 x 3 x 8 x 8"),
        (
            lambda x: x.transpose(0, 2, 3, 1).reshape(x.shape),
            "values of the axes in the order 0, 2, 3, 1, in the shape without it",
        ),
        (lambda x: x[[2, 0, 3, 1]], "samples in the order 2, 0, 3, 1"),
    ],
)
def test_values_at_other_places_are_named(dtype, make, text):
    pictures = draw(3, (4, 3, 8, 8), dtype)
    assert name(pictures, np.ascontiguousarray(make(pictures))) == text


def test_channels_first_and_samples_in_another_order_are_named():
    pictures = draw(3, (12, 8, 8, 3), FLOATS[0])
    assert name(pictures, pictures.transpose(0, 3, 1, 2)) == "channels first in place of last"
    order = np.random.default_rng(0).permutation(12)
    assert name(pictures, pictures[order]) == f"samples in the order {', '.join(map(str, order[:8]))}, ..."


@given(SEEDS, st.sampled_from(DTYPES), st.sampled_from([-2, -1, 1, 2]), st.sampled_from([2, 3]))
def test_a_crop_that_starts_elsewhere_is_named(seed, dtype, by, axis):
    whole = draw(seed, (2, 3, 20, 22), dtype)
    first = [2, 2]
    moved = list(first)
    moved[axis - 2] -= by
    crop, other = (whole[:, :, top : top + 16, left : left + 16] for top, left in (first, moved))
    assert name(crop, other) == f"shifted by {by} along axis {axis}, the rest equal"


def make_rows(seed, lengths, side, size=12, padding=0):
    tokens = np.random.default_rng(seed).integers(5, 5000, (len(lengths), size))
    rows = np.full((len(lengths), size), padding)
    for row, text, length in zip(rows, tokens, lengths, strict=True):
        row[size - length if side == "left" else 0 :][:length] = text[:length]
    return rows


@given(SEEDS, st.lists(st.integers(6, 11), min_size=1, max_size=5), st.sampled_from([0, 1, 151643]))
def test_padding_on_the_other_side_and_of_another_length_is_named(seed, lengths, padding):
    right, left = (make_rows(seed, lengths, side, padding=padding) for side in ("right", "left"))
    assert name(right, left) == f"padded on the left in place of the right, with {padding}"
    assert name(left, right) == f"padded on the right in place of the left, with {padding}"
    longer = np.pad(right, ((0, 0), (0, 4)), constant_values=padding)
    assert name(right, longer) == f"padded to 16 in place of 12, with {padding}"


@given(SEEDS, st.sampled_from([np.int64, np.int32]))
def test_one_token_more_and_tokens_that_are_shifted_are_named(seed, dtype):
    tokens = np.random.default_rng(seed).integers(5, 5000, (2, 9)).astype(dtype)
    begun = np.pad(tokens, ((0, 0), (1, 0)), constant_values=1)
    assert name(tokens, begun) == "one token more at the start, 1"
    assert name(begun, tokens) == "one token less at the start, 1"
    assert name(tokens, np.pad(tokens, ((0, 0), (0, 1)), constant_values=2)) == "one token more at the end, 2"
    assert name(tokens, begun[:, :-1]) == "shifted by 1 along axis 1, the rest equal"
    assert name(tokens, tokens + 1) == "each value with 1 added"


@given(
    SEEDS, st.sampled_from(DTYPES), st.sampled_from(DTYPES), st.sampled_from([(4, 3, 8, 8), (3, 8, 8), (2, 40), (64,), (3, 4)])
)
def test_nothing_is_said_of_independent_values(seed, one, two, shape):
    assert name(draw(seed, shape, one), draw(seed + 1, shape, two)) == ""


@settings(max_examples=examples(100))
@given(SEEDS, st.sampled_from(FLOATS), st.floats(0.05, 1.0))
def test_nothing_is_said_of_noise_even_behind_a_change(seed, dtype, size):
    pictures = draw(seed, (2, 3, 16, 16), dtype)
    noise = size * draw(seed + 1, pictures.shape, np.dtype(np.float64))
    for changed in (pictures, pictures[:, ::-1], pictures[..., ::-1] * 2):
        assert name(pictures, (changed.astype(np.float64) + noise).astype(dtype)) == ""


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("factor", [1.0, 2.1])
def test_nothing_is_said_of_noise_that_is_a_few_times_as_large_as_rounding(dtype, factor):
    pictures = draw(0, (2, 3, 32, 32), dtype)
    flipped = pictures[..., ::-1].astype(np.float64) * factor
    rounding = float(ml_dtypes.finfo(dtype).eps) / 2
    assert name(pictures, flipped.astype(dtype)).startswith("flipped along axis 3")
    noisy = flipped * (1 + 6 * rounding * draw(1, pictures.shape, np.dtype(np.float64)))
    assert name(pictures, noisy.astype(dtype)) == ""


@pytest.mark.parametrize("dtype", FLOATS)
def test_nothing_is_said_of_a_change_that_one_value_does_not_follow(dtype):
    """A sample of the elements does not see it."""
    pictures = draw(0, (4, 3, 64, 64), dtype)
    for changed in (pictures[:, ::-1], pictures[..., ::-1], pictures * np.asarray(3, dtype), pictures.transpose(0, 2, 3, 1)):
        target = np.array(changed)
        target[(1,) * 4] += np.asarray(1, dtype)
        assert name(pictures, target) == ""


def test_nothing_is_said_of_what_rounding_or_another_resize_explains():
    pictures = draw(0, (2, 3, 32, 32), FLOATS[0]).cumsum(-1) / 32  # smooth
    near = np.nextafter(pictures, np.float32(9))
    halfway = (pictures[..., 1:] + pictures[..., :-1]) / 2
    assert name(pictures, near) == ""
    assert name(pictures[..., 1:], halfway) == ""
    for dtype in FLOATS[1:]:
        assert name(pictures, pictures.astype(dtype)) == ""


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_is_said_of_constants_and_of_tensors_without_values(dtype):
    one, other = np.ones((2, 3, 8, 8), dtype), draw(0, (2, 3, 8, 8), dtype)
    for pair in ((one, one * 2), (one, other), (other, one)):
        assert name(*pair) == ""
    empty, single = np.zeros((0, 3), dtype), np.ones((), dtype)
    assert name(empty, empty) == name(single, single) == name(single, empty) == name(single, other) == ""


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nothing_is_said_of_values_that_are_not_finite(dtype, value):
    pictures = draw(0, (2, 3, 8, 8), dtype)
    pictures[0, 0, 0, 0] = value
    assert name(pictures, pictures[:, ::-1]) == ""


def test_nothing_is_said_of_masks_and_other_data_of_few_values():
    """A mask of ones and zeros fits many changes by chance, and two numbers any two others by a factor and an amount."""
    mask = np.random.default_rng(0).integers(0, 2, (2, 8))
    assert name(mask, mask[:, ::-1]) == ""
    additive = np.where(np.random.default_rng(0).random((1, 1, 32, 32)) < 0.5, 0, -1e4).astype(np.float32)
    assert name((additive == 0).astype(np.float32), additive) == ""


def test_what_is_too_large_is_not_looked_at():
    large = np.broadcast_to(np.arange(4.0), (LARGEST // 4 + 1, 4))
    assert name(large, large[:, ::-1]) == ""


def test_silence_and_large_single_values_do_not_make_a_factor_sure():
    sound = np.zeros((1, 4000), np.float32)
    sound[0, ::100] = draw(0, (40,), FLOATS[0])
    assert name(sound, sound * np.float32(0.3)) == "each value multiplied by 0.3"
    other = sound * np.float32(0.3)
    other[0, 0] = sound[0, 0] = 1e6
    other[0, 100::100] += 1e-3
    assert name(sound, other) == ""


def test_a_grey_picture_has_the_change_of_the_fewest_numbers():
    grey = np.repeat(np.random.default_rng(0).random((1, 1, 20, 20)).astype(np.float32), 3, 1)
    assert name(grey, normalise(grey)).startswith("channels multiplied by 4.367, 4.464, 4.444")
