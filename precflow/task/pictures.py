"""Pictures: how far two are apart, and both side by side with their difference, as PNG."""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from precflow.config.schema import TaskMetric
from precflow.config.sections.task_metrics_section import count_axes
from precflow.task.outputs import NotComputableError

Picture = npt.NDArray[np.float64]  # [height, width, channels]
WINDOW = 7  # pixels a side
LARGEST_SIDE = 192  # pixels of a picture in a report
_BLACK_AND_WHITE = 1


@dataclass(frozen=True)
class Shown:
    """Two pictures and their difference, each a PNG in base64.

    Attributes:
        sample: Its number, from 0.
        size: Height and width as they were computed; what is shown may be smaller.
        reference: The reference's.
        target: The target's.
        difference: The absolute difference, black where there is none.
        times: How many times as large the difference is drawn as it is.
        largest: Largest difference of a value.
    """

    sample: int
    size: tuple[int, int]
    reference: str
    target: str
    difference: str
    times: float
    largest: float


def split_pictures(values: npt.NDArray[np.float64], metric: TaskMetric) -> npt.NDArray[np.float64]:
    """Return pictures as ``[samples, height, width, channels]``, whatever the layout of a batch is.

    Raises:
        NotComputableError: It has another number of axes than its layout.
    """
    axes = count_axes(metric)
    if values.ndim != len(axes):
        raise NotComputableError(f"it has shape {list(values.shape)}, and layout {metric.layout} names {len(axes)} axes")
    for letter in "NC":
        if letter not in axes:
            values, axes = values[..., None], {**axes, letter: values.ndim}
    return values.transpose([axes[letter] for letter in "NHWC"])


def mean_square(reference: Picture, target: Picture) -> float:
    """Return the mean squared difference.

    PSNR is ``10 log10(width of the range squared / mean)``; of several pictures, the mean is over all of them, so that one
    that is wrong counts, and pictures that are equal make nothing infinite.
    """
    return float(np.mean(np.square(reference - target)))


def structural_similarity(reference: Picture, target: Picture, width: float) -> float:
    """Return SSIM, 1 for equal pictures: the mean over all windows of 7 by 7 pixels that lie within the picture, and channels.

    Wang, Bovik, Sheikh and Simoncelli, "Image quality assessment: from error visibility to structural similarity", 2004,
    equation 13, with K1 = 0.01 and K2 = 0.03; uniform windows and sample variances, as scikit-image has them by default.

    Args:
        reference: ``[height, width, channels]``.
        target: Of the same shape.
        width: Largest value that a picture can have, less the smallest.

    Raises:
        NotComputableError: It is smaller than a window.
    """
    if min(reference.shape[:2]) < WINDOW:
        size = " x ".join(map(str, reference.shape[:2]))
        raise NotComputableError(f"a picture has {size} pixels, and SSIM looks through windows of {WINDOW} x {WINDOW}")
    count = WINDOW**2
    # Around the mean, or the squares of a bright picture would hide its small variances.
    x, y = reference - reference.mean(), target - reference.mean()
    mean_x, mean_y = _average(x), _average(y)
    scale = count / (count - 1)
    variance_x, variance_y = scale * (_average(x * x) - mean_x**2), scale * (_average(y * y) - mean_y**2)
    covariance = scale * (_average(x * y) - mean_x * mean_y)
    mean_x, mean_y = mean_x + reference.mean(), mean_y + reference.mean()
    c1, c2 = (0.01 * width) ** 2, (0.03 * width) ** 2
    similar = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    return float(np.mean(similar / ((mean_x**2 + mean_y**2 + c1) * (variance_x + variance_y + c2))))


def _average(values: Picture) -> Picture:
    """Return the mean of each window, by sums along one axis after the other."""
    for axis in (0, 1):
        sums = np.cumsum(values, axis=axis)
        sums = np.concatenate([np.zeros_like(np.take(sums, [0], axis)), sums], axis=axis)
        length = sums.shape[axis]
        values = (np.take(sums, range(WINDOW, length), axis) - np.take(sums, range(length - WINDOW), axis)) / WINDOW
    return values


def show(reference: Picture, target: Picture, bounds: tuple[float, float], sample: int) -> Shown:
    """Return two pictures with their difference, small enough for a report.

    Args:
        reference: ``[height, width, channels]``; of other than one or three channels, the first three or the first is shown.
        target: Of the same shape.
        bounds: The values that are black and white.
        sample: Number of the sample.
    """
    low, high = bounds
    apart = np.abs(reference - target)
    largest = float(apart.max(initial=0.0))
    times = 2.0 ** np.floor(np.log2((high - low) / largest)) if largest else 1.0
    parts = [(reference - low) / (high - low), (target - low) / (high - low), apart * times / (high - low)]
    here, there, difference = (base64.b64encode(encode_png(to_bytes(part))).decode() for part in parts)
    return Shown(sample, (reference.shape[0], reference.shape[1]), here, there, difference, float(times), largest)


def to_bytes(values: Picture) -> npt.NDArray[np.uint8]:
    """Return values from 0 to 1 as bytes of a picture of at most ``LARGEST_SIDE``; each pixel is the mean of what it shows."""
    channels = 3 if values.shape[2] >= 3 else _BLACK_AND_WHITE
    values = values[:, :, :channels]
    step = -(-max(values.shape[:2]) // LARGEST_SIDE)
    if step > 1:
        for axis in (0, 1):
            starts = np.arange(0, values.shape[axis], step)
            counts = np.diff([*starts, values.shape[axis]]).reshape([-1 if axis == place else 1 for place in range(3)])
            values = np.add.reduceat(values, starts, axis=axis) / counts
    return np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)


def encode_png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Return a PNG (ISO/IEC 15948) of 8 bits a channel.

    Args:
        pixels: ``[height, width, channels]``, one channel for grey or three for colours.
    """
    height, width, channels = pixels.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)  # 0: a line is not filtered
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
