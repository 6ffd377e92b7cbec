"""Where in a tensor the error is: few rows, the borders, later positions, other samples than the first.

Most functions ask how many places carry nearly all of the error's energy. Rounding, on any chip, is spread over nearly all
places; a tile that is missing, a row that is padded or a sample that is mixed up is not.
"""

from __future__ import annotations

import math

import numpy as np

from precflow.comparison.fused.value_classes import Floats
from precflow.dumps.dtypes import FloatFacts

_NEARLY_ALL = 0.99  # of the error's energy
_FEW = 0.3  # share of the indices of an axis from which on it is no border any more
_HALF = 0.5  # the same where every value there is known to be zero, or that of an input
_ENOUGH = 16  # elements that have the value of an input: fewer may have it by chance
_APART = 100.0  # times the energy of any index behind a border that the weakest one of the border has
_SEVERAL = 4  # elements at an end, or rows of other samples, that one fault at a single place does not make wrong
_MANY = 0.1  # share of the rows of a sample, or the elements of a slice, from which on it is wrong, and not a place in it
_MOST_CUT = 0.9  # share of the elements that may be at the value at which they are cut off
_PRODUCT_ROUNDINGS = 64.0  # that a right product of matrices may be off by, relative to its result
_NORMAL = 2.0  # times the smallest normal number: what is larger is not zero because subnormal numbers are flushed
_OTHER_ZEROS = 0.05  # share of larger ones among zeros that come from flushing
_LITTLE = 1e-4  # of the energy of another sample: the first one agrees


def find_few(error: Floats, axis: int) -> list[int]:
    """Return the indices along one axis that carry 99 % of the error's energy, most of it first.

    >>> find_few(np.array([[0.0, 2.0, 0.0], [0.0, 1.0, 0.0]]), 1)
    [1]
    """
    energy = _sum_squares(error, axis)
    if not np.isfinite(energy).all() or energy.sum() == 0.0:
        return []
    order = np.argsort(-energy, kind="stable")
    needed = int(np.searchsorted(np.cumsum(energy[order]), _NEARLY_ALL * energy.sum())) + 1
    return [int(index) for index in order[:needed]]


def _sum_squares(values: Floats, axis: int) -> Floats:
    """Return the sum of squares at each index along an axis."""
    energy: Floats = np.sum(np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1) ** 2, axis=1)
    return energy


def measure_few_share(error: Floats) -> float | None:
    """Return the smallest share of the elements that carries 99 % of the error's energy; ``None`` without an error.

    >>> measure_few_share(np.array([0.0, 0.0, 3.0, 0.0]))
    0.25
    """
    indices = find_few(error.reshape(-1), 0)
    return len(indices) / error.size if indices else None


def describe_border(error: Floats, *, is_known: bool = False) -> str:
    """Say at which end of an axis the error is, ``""`` if it is not only there.

    An end that was cut off is wrong in many places: a single wrong element that happens to stand there is no border.

    Args:
        error: Target minus what is right.
        is_known: What stands there has been told, such as zeros: then up to half of an axis is a border.

    >>> error = np.zeros((8, 16)); error[:, 13:] = 1.0; describe_border(error)
    'the last 3 of 16 along axis 1'
    """
    wrong = len(find_few(error.reshape(-1), 0))
    for axis in reversed(range(error.ndim)):
        size, few = error.shape[axis], sorted(find_few(error, axis))
        most = (_HALF if is_known else _FEW) * size
        if (
            not few
            or len(few) > most
            or max(wrong, _count_wrong(error, axis, few)) < max(_SEVERAL, _MANY * len(few) * error.size / size)
        ):
            continue
        energy = _sum_squares(error, axis)
        for end, along in (("last", energy), ("first", energy[::-1])):
            if 0 < (count := _count_last(along)) <= most:
                return f"the {end} {count} of {size} along axis {axis}"
        inner = [index for index in few if len(few) <= index < size - len(few)]
        if not inner and few[0] == 0 and few[-1] == size - 1:
            return f"both ends of axis {axis}, {len(few)} of {size}"
    return ""


def _count_wrong(error: Floats, axis: int, indices: list[int]) -> int:
    """Count the wrong elements at some indices of an axis, however little of the energy a small one has: each counts."""
    energy = np.take(error, indices, axis) ** 2
    return int(np.count_nonzero(energy > _LITTLE * energy.max()))


def _count_last(energy: Floats) -> int:
    """Return how many of the last indices have the error, 0 if others have it too.

    The weakest of them stands out from the strongest before them, however little of the whole error it has; or they have nearly
    all of it.
    """
    size = len(energy)
    weakest = np.minimum.accumulate(energy[::-1])[: size - 1]  # of the last 1, 2, 3...
    strongest = np.maximum.accumulate(energy)[::-1][1:]  # of those before them
    before = np.cumsum(energy)[::-1][1:]
    apart = (weakest > _APART * strongest) & (before <= (1.0 - _NEARLY_ALL) * energy.sum())
    if apart.any():
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            return int(np.argmax(np.where(apart, weakest / strongest, 0.0))) + 1
    few = find_few(energy[:, None] ** 0.5, 0)
    return len(few) if min(few, default=0) == size - len(few) else 0


def describe_unchanged(expected: Floats, target: Floats, given: Floats) -> str:
    """Say at which end of an axis the target has an input as it came, and the right values elsewhere; ``""`` if it does not.

    A kernel that is told another size leaves the rest alone, such as the last dimensions of a rotary embedding.

    Args:
        expected: What is right.
        target: What the target has, of the same shape.
        given: An input of the target, which is repeated along axes of length one.

    >>> given = np.arange(1.0, 65.0).reshape(8, 8); target = 2 * given; target[:, 6:] = given[:, 6:]
    >>> describe_unchanged(2 * given, target, given)
    'the last 2 of 8 along axis 1'
    """
    with np.errstate(invalid="ignore"):  # of two infinities: NaN, and nothing is said
        energy = (target - expected) ** 2
    try:
        unchanged = np.broadcast_to(given, target.shape) == target
    except ValueError:  # an input of another shape
        return ""
    if not energy.any() or float(np.sum(energy[unchanged])) < _NEARLY_ALL * float(np.sum(energy)):
        return ""
    for axis in reversed(range(target.ndim)):
        others = tuple(other for other in range(target.ndim) if other != axis)
        same = unchanged.all(axis=others)
        size = len(same)
        for end, along in (("last", same[::-1]), ("first", same)):
            count = int(np.argmin(along)) if not along.all() else 0
            kept = slice(size - count, None) if end == "last" else slice(None, count)
            # One value that happens to be the same is no sign; all wrong ones have to be there.
            part = np.moveaxis(energy, axis, 0)[kept]
            if count > 0 and part.size >= _ENOUGH and float(part.sum()) >= _NEARLY_ALL * float(energy.sum()):
                return f"the {end} {count} of {size} along axis {axis}"
    return ""


def measure_growth(reference: Floats, target: Floats) -> tuple[float, float] | None:
    """Return how the relative error grows with the position: last quarter over first quarter, and its rank correlation.

    The position is the last axis but one: tokens of ``(batch, tokens, features)``.

    Returns:
        ``None`` with fewer than eight positions or without an error in the first quarter.
    """
    if reference.ndim < 2 or reference.shape[-2] < 8:
        return None
    energy, size = _sum_squares(target - reference, -2), _sum_squares(reference, -2)
    if not np.isfinite(energy).all() or not size.all():
        return None
    relative = np.sqrt(energy / size)
    quarter = len(relative) // 4
    start, end = float(np.mean(relative[:quarter])), float(np.mean(relative[-quarter:]))
    if start == 0.0:
        return None
    ranks = np.argsort(np.argsort(relative)).astype(float)
    return end / start, float(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1])


def is_first_sample_right(reference: Floats, target: Floats, unit: float = math.inf) -> bool | None:
    """Tell whether the first sample agrees and the others do not; ``None`` without several samples.

    A position or mask of another sample is wrong for many rows: a single wrong element in the second sample is another thing.
    And an error that is only smaller in the first sample, such as that of small arguments, is wrong in it too.

    Args:
        reference: What is right, ``(samples, ...)``.
        target: What the target gave.
        unit: One rounding of its type, relative, if the rest of the first sample has to be rounding.

    >>> is_first_sample_right(np.ones((2, 4, 4)), np.stack([np.ones((4, 4)), np.zeros((4, 4))]))
    True
    """
    if reference.ndim < 2 or reference.shape[0] < 2:
        return None
    samples = (target - reference).reshape(len(reference), -1, reference.shape[-1] if reference.ndim > 2 else 1)
    rows = np.sum(samples**2, axis=2)
    if not np.isfinite(rows).all() or not rows.any():
        return None
    energy, wrong = rows.sum(axis=1), rows > _LITTLE * rows.max()
    is_several = np.count_nonzero(wrong) >= _SEVERAL
    most = _PRODUCT_ROUNDINGS * unit * float(np.linalg.norm(reference[0]))
    if energy[0] > most * most:
        return False
    return bool(is_several and energy[0] < _LITTLE * energy[1:].min() and wrong[1:].mean(axis=1).min() >= _MANY)


def measure_zero_share(reference: Floats, target: Floats) -> float | None:
    """Return the share of the error's energy at places where the target is exactly zero and the reference is not.

    >>> measure_zero_share(np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.0, 3.0]))
    1.0
    """
    error = (target - reference) ** 2
    total = float(np.sum(error))
    return float(np.sum(error[(target == 0.0) & (reference != 0.0)])) / total if 0.0 < total < np.inf else None


def count_flushed(reference: Floats, target: Floats, facts: FloatFacts) -> int:
    """Return how many elements are zero because they are too small for a normal number of their type; 0 if others are too.

    Hardware may flush such subnormal numbers to zero. Then the target has none at all, and nearly all of its zeros that are
    none on the reference are there. The numbers next to the smallest normal one may be rounded to it, and do not count.

    >>> half = FloatFacts("float16", digits=11, largest=65504.0, smallest_normal=2.0**-14, smallest=2.0**-24)
    >>> count_flushed(np.array([1.0, 3e-5, 2e-6, 4e-5]), np.array([1.0, 0.0, 0.0, 0.0]), half)
    3
    """
    size, made = np.abs(reference), np.abs(target)
    subnormal = (size >= facts.smallest) & (size < facts.smallest_normal * (1.0 - 2.0**-facts.digits))
    if np.any((made > 0.0) & (made < facts.smallest_normal)):
        return 0
    flushed = int(np.count_nonzero(subnormal & (made == 0.0)))
    lost = int(np.count_nonzero((size >= _NORMAL * facts.smallest_normal) & (made == 0.0)))
    return flushed if lost <= _OTHER_ZEROS * flushed else 0


def measure_zero_block(reference: Floats, target: Floats) -> float | None:
    """Return which share of the block around the zeros is zero; ``None`` without zeros in place of values.

    What a kernel did not write is zero as a whole. A maximum that starts at zero leaves the negative values out, and others
    stand between them.

    >>> measure_zero_block(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 2.0, 0.0, 0.0]))
    1.0
    >>> measure_zero_block(np.array([1.0, -2.0, 3.0, -4.0]), np.array([1.0, 0.0, 3.0, 0.0]))
    0.6666666666666666
    """
    lost = (target == 0.0) & (reference != 0.0)
    if not lost.any():
        return None
    block = tuple(slice(int(places.min()), int(places.max()) + 1) for places in np.nonzero(lost))
    return float(np.count_nonzero(lost[block]) / np.count_nonzero(reference[block]))


def measure_clamp_share(reference: Floats, target: Floats) -> tuple[float, float] | None:
    """Return the value at which the target is cut off, and the share of the error's energy there.

    >>> measure_clamp_share(np.array([1.0, 5.0, 6.0]), np.array([1.0, 4.0, 4.0]))
    (4.0, 1.0)
    """
    error = (target - reference) ** 2
    total = float(np.sum(error))
    if not 0.0 < total < np.inf:
        return None
    shares = []
    for end, is_beyond in ((target.max(), np.greater), (target.min(), np.less)):
        at_end = (target == end) & is_beyond(reference, end)
        # A largest value there always is, and where all have one value nothing was cut off.
        if 1 < np.count_nonzero(at_end) < _MOST_CUT * target.size:
            shares.append((float(end), float(np.sum(error[at_end])) / total))
    return max(shares, key=lambda share: share[1], default=None)


def measure_sign_share(reference: Floats, target: Floats) -> float | None:
    """Return the share of the error's energy at places where only the sign differs.

    >>> measure_sign_share(np.array([1.0, 2.0, 3.0]), np.array([1.0, -2.0, 3.0]))
    1.0
    """
    error = (target - reference) ** 2
    total = float(np.sum(error))
    flipped = np.abs(target + reference) < 0.02 * np.abs(reference)  # 16-bit types round by up to 0.4 %
    return float(np.sum(error[flipped])) / total if 0.0 < total < np.inf else None


def measure_norm_change(reference: Floats, target: Floats) -> float | None:
    """Return the change of the norms of rows relative to the error: near 0 for a rotation, up to 1 for a scale.

    >>> round(measure_norm_change(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])), 6)
    0.0
    """
    rows = reference.reshape(-1, reference.shape[-1]) if reference.ndim else reference.reshape(1, 1)
    others = target.reshape(rows.shape)
    error = float(np.linalg.norm(others - rows))
    if not 0.0 < error < np.inf:
        return None
    return float(np.linalg.norm(np.linalg.norm(others, axis=1) - np.linalg.norm(rows, axis=1))) / error


def measure_norm_spread(reference: Floats) -> float | None:
    """Return the standard deviation of the norms of rows, relative to their mean; ``None`` if all are zero.

    Norms that a normalisation has made alike stay whatever goes into it, so that they prove no rotation.

    >>> measure_norm_spread(np.array([[3.0, 4.0], [0.0, 5.0]]))
    0.0
    """
    rows = reference.reshape(-1, reference.shape[-1]) if reference.ndim else reference.reshape(1, 1)
    norms = np.linalg.norm(rows, axis=1)
    mean = float(norms.mean()) if norms.size else 0.0
    return float(norms.std()) / mean if 0.0 < mean < np.inf else None


def measure_uniform_share(weights: Floats) -> float:
    """Return the share of the rows whose elements are all the same, as an attention without scores has.

    >>> measure_uniform_share(np.array([[0.5, 0.5], [0.9, 0.1]]))
    0.5
    """
    rows = weights.reshape(-1, weights.shape[-1]) if weights.ndim else weights.reshape(1, 1)
    if rows.shape[-1] < 2:
        return 0.0
    spread = rows.max(axis=1) - rows.min(axis=1)
    size = np.abs(rows).mean(axis=1)
    return float(np.mean((spread <= 1e-2 * size) & (size > 0.0)))
