"""PSNR, SSIM and PNG, against SciPy and Pillow."""

import base64
import io

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from precflow.config.schema import TaskMetric
from precflow.task import pictures
from precflow.task.outputs import NotComputableError

RANDOM = np.random.default_rng(0)
PICTURE = RANDOM.random((24, 31, 3))


def ssim_by_scipy(x, y, width):
    """Windows by SciPy, variances as Wang's paper writes them; channel by channel."""
    means = []
    for channel in range(x.shape[2]):
        a, b = x[..., channel], y[..., channel]
        mean_a, mean_b = (ndimage.uniform_filter(each, 7) for each in (a, b))
        scale = 49 / 48
        var_a, var_b = (scale * (ndimage.uniform_filter(each**2, 7) - mean**2) for each, mean in ((a, mean_a), (b, mean_b)))
        both = scale * (ndimage.uniform_filter(a * b, 7) - mean_a * mean_b)
        c1, c2 = (0.01 * width) ** 2, (0.03 * width) ** 2
        ratio = (2 * mean_a * mean_b + c1) * (2 * both + c2) / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))
        means.append(ratio[3:-3, 3:-3].mean())
    return np.mean(means)


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.5])
@pytest.mark.parametrize("width", [1.0, 255.0])
def test_ssim_is_that_of_scipys_windows(noise, width):
    x = PICTURE * width
    y = x + noise * width * RANDOM.standard_normal(x.shape)
    assert pictures.structural_similarity(x, y, width) == pytest.approx(ssim_by_scipy(x, y, width), abs=1e-9)


def test_ssim_of_a_bright_flat_picture_keeps_its_digits():
    x = 1e6 + 1e-3 * RANDOM.standard_normal((16, 16, 1))
    assert pictures.structural_similarity(x, x, 1.0) == pytest.approx(1.0, abs=1e-9)
    y = 1e6 + 1e-1 * RANDOM.standard_normal((16, 16, 1))
    assert pictures.structural_similarity(x, y, 1.0) < 0.5


def test_ssim_needs_a_window():
    with pytest.raises(NotComputableError, match=r"6 x 9 pixels, and SSIM looks through windows of 7 x 7"):
        pictures.structural_similarity(np.zeros((6, 9, 1)), np.zeros((6, 9, 1)), 1.0)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "CHWN", "WHCN"])
def test_any_layout_is_read_as_the_same_pictures(layout):
    batch = RANDOM.random((2, 5, 6, 3))
    given = batch.transpose(["NHWC".index(letter) for letter in layout])
    assert np.array_equal(pictures.split_pictures(given, TaskMetric(layout=layout)), batch)


def test_a_layout_without_samples_or_channels_is_one_grey_picture():
    assert pictures.split_pictures(np.zeros((5, 6)), TaskMetric(layout="HW")).shape == (1, 5, 6, 1)
    with pytest.raises(NotComputableError, match=r"shape \[2, 5, 6\], and layout NCHW names 4 axes"):
        pictures.split_pictures(np.zeros((2, 5, 6)), TaskMetric())


@pytest.mark.parametrize("channels", [1, 3])
def test_pillow_reads_our_png(channels):
    pixels = RANDOM.integers(0, 256, (9, 14, channels), np.uint8)
    read = Image.open(io.BytesIO(pictures.encode_png(pixels)))
    assert read.mode == ("RGB" if channels == 3 else "L")
    assert np.array_equal(np.asarray(read).reshape(pixels.shape), pixels)


def test_a_large_picture_is_shown_small_and_means_what_it_covers():
    large = np.zeros((400, 250, 4))
    large[:3, :3, 0] = 1  # the first pixel of nine that are shown as one
    shown = pictures.to_bytes(large)
    assert max(shown.shape[:2]) <= pictures.LARGEST_SIDE
    assert shown.shape[2] == 3
    assert shown[0, 0].tolist() == [255, 0, 0]
    assert shown[1:].max() == 0


def test_the_difference_is_drawn_larger_by_a_power_of_two_and_never_cut():
    target = PICTURE.copy()
    target[2, 3, 1] += 0.011
    one = pictures.show(PICTURE, target, (0.0, 1.0), 4)
    assert (one.sample, one.size, one.times) == (4, (24, 31), 64.0)
    assert one.largest == pytest.approx(0.011)
    difference = np.asarray(Image.open(io.BytesIO(base64.b64decode(one.difference))))
    assert difference[2, 3].tolist() == [0, round(0.011 * 64 * 255), 0]
    assert np.count_nonzero(difference) == 1


def test_equal_pictures_have_a_black_difference():
    one = pictures.show(PICTURE, PICTURE, (0.0, 1.0), 0)
    assert (one.times, one.largest) == (1.0, 0.0)
