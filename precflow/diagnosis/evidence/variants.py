"""Known ways to compute an operator differently, each tried on the target's own inputs.

An error whose size and direction fit a cause may still have another one. But if ``gelu`` in its tanh form gives the target's
output to the last bits, and the exact form does not, nothing is left to guess. Each variant is compared with plain float64 at
the same inputs::

    share = 1 - |target - variant|^2 / |target - float64|^2       1 explains everything, 0 or less nothing
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from precflow.diagnosis.evidence.expected import Inputs, compute_expected
from precflow.dumps.dtypes import Array

_FITS = 0.9  # share of the error that a variant has to explain
_FITS_WELL = 0.97  # from here on a variant fits, even if what it leaves is more than rounding
_ROUNDING = 2.0**-7  # what one leaves that fits less well, relative to itself: a few roundings of bfloat16
_SEVERAL = 16  # wrong elements; a variant may be right about fewer by chance, where only rounding differs
_FEW = 8  # elements of an output up to which one of many variants is near it by chance
_NEAR = 2.0**-17  # relative distance at which such an output is that of the variant
_OUTSIDE = 0.5  # share of the rows of a table that may lie beyond its end once they are shifted
_MOST_TERMS = 64  # of a sum that are left out at its end
_MOST_FITTED = 1024  # terms of a sum that are looked at one by one
_WHOLE = 0.1  # distance from a whole number at which a term is that many times in a sum
_AXES = 4  # of an operand, up to which every order of its memory is tried
_LARGE = 1 << 20  # elements of an operand from which on only its last two axes are exchanged
_MATRIX = 2  # axes
_FEWEST_TO_FIT = 8  # elements for each slope that is fitted
_EPSILONS = (1e-5, 1e-6)  # of norms, as models have them
_ROWS = 16  # from which on the factor and the offset of a column are told
_FAR_BETTER = 0.01  # what a norm leaves of the error, over what the same fit leaves without it
_SAMPLE = 4  # rows or columns of a product with which these orders are told apart
_SHIFTS = (1, -1, 2, -2, 3, -3, 4, -4)  # rows: positions counted from another start, or an offset for padding
_TYPES = (("bfloat16", np.dtype(ml_dtypes.bfloat16)), ("float16", np.dtype(np.float16)))

Variants = Iterator[tuple[str, Array | None]]
"""Names, some with a detail behind a colon, and what the operator gives when it is computed so."""


@dataclass(frozen=True)
class VariantFit:
    """The variant that explains a target best.

    Attributes:
        name: Such as ``gelu_tanh``; ``""`` if none fits.
        share: Share of the error's energy that the best one explains, 0 to 1.
        detail: What else is known of it, such as ``by 2``; ``""`` for nothing.
    """

    name: str
    share: float
    detail: str = ""


def fit_variant(
    operator: str, arguments: Mapping[str, str], inputs: Inputs, target: Array, dtype: np.dtype[Any] | None = None
) -> VariantFit | None:
    """Find the variant of an operator that gives the target's output; ``None`` if there are none, or nothing differs.

    In 16 bits, rounding the result is often a larger error than computing it in another form. It is the same in both forms, so
    there they are compared as rounded too: what is left is not explained.

    Args:
        operator: Canonical name.
        arguments: The reference's arguments that are not tensors.
        inputs: What the target was given, floating point as float64.
        target: What it returned, as float64.
        dtype: Type of 16 bits that the target rounded to; ``None`` for a wider one.
    """
    exact = compute_expected(operator, arguments, inputs)
    if exact is None or exact.shape != target.shape:
        return None
    usable = np.isfinite(exact) & np.isfinite(target)
    energy = float(np.sum((target[usable] - exact[usable]) ** 2))
    if energy == 0.0 or not np.isfinite(energy):
        return None
    best = VariantFit("", 0.0)
    call = _TargetCall(operator, arguments, inputs, target, exact)
    own = _FAMILIES.get(operator)
    shifted = _shift_positions(call) if operator in _LINEAR else ()
    for name, variant in itertools.chain(own(call) if own else (), shifted, _round_inputs(operator, arguments, inputs)):
        if variant is None or variant.shape != target.shape:
            continue
        if target.size <= _FEW and not np.allclose(variant, target, rtol=_NEAR, atol=0.0):
            continue
        share = _measure_share(target[usable], exact[usable], variant[usable])
        if dtype is not None:
            share = max(share, _measure_share(target[usable], *(round_to(one[usable], dtype) for one in (exact, variant))))
        if share > best.share:
            kind, _, detail = name.partition(": ")
            best = VariantFit(kind, share, detail)
    return best if best.share > _FITS else VariantFit("", best.share)


def _measure_share(target: Array, exact: Array, variant: Array) -> float:
    """Return which share of the error's energy a variant explains; 0 if so few elements are wrong that it may be by chance."""
    energy, rest = float(np.sum((target - exact) ** 2)), float(np.sum((target - variant) ** 2))
    if energy == 0.0 or not variant.any() or np.count_nonzero(target != exact) < min(_SEVERAL, target.size):
        return 0.0
    share = 1.0 - rest / energy
    # Next to values that are nearly zero, any error is explained by zeros.
    most = ((1.0 - _FITS) if share > _FITS_WELL else _ROUNDING**2) * float(np.sum(variant**2))
    return share if share <= _FITS or rest <= most else 0.0


def round_to(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return values of a narrower type as float64."""
    with np.errstate(over="ignore"):
        return values.astype(dtype).astype(np.float64)


@dataclass(frozen=True)
class _TargetCall:
    """What the target was given and returned, and float64 at the same inputs."""

    operator: str
    arguments: Mapping[str, str]
    inputs: Inputs
    target: Array
    exact: Array

    def tensor(self, position: int, name: str) -> Array | None:
        """Return a tensor by position or name."""
        return self.inputs.get(str(position), self.inputs.get(name))

    def text(self, position: int, name: str, default: str) -> str:
        """Return an argument that is no tensor by name or position."""
        return self.arguments.get(name, self.arguments.get(str(position), default))

    def compute_without(self, *names: str) -> Array | None:
        """Return float64 without some inputs."""
        return compute_expected(
            self.operator, self.arguments, {key: values for key, values in self.inputs.items() if key not in names}
        )

    def compute_with(self, **changes: Array) -> Array | None:
        """Return float64 with other inputs, by position: ``_0`` is the first."""
        changed = {key.removeprefix("_"): value for key, value in changes.items()}
        return compute_expected(self.operator, self.arguments, {**self.inputs, **changed})


def _vary_activation(call: _TargetCall) -> Variants:
    x = call.tensor(0, "input")
    if x is None:
        return
    if call.operator == "gelu":
        is_tanh = call.text(1, "approximate", "none").strip("'") == "tanh"
        other = "none" if is_tanh else "tanh"
        yield "gelu_erf" if is_tanh else "gelu_tanh", compute_expected("gelu", {"approximate": other}, {"0": x})
        yield "gelu_sigmoid", x / (1.0 + np.exp(-1.702 * x))
        return
    hard = np.clip(x / 6.0 + 0.5, 0.0, 1.0)  # hardsigmoid, and with x before it hardswish
    yield "straight_lines", x * hard if call.operator == "silu" else hard


def _vary_slope(call: _TargetCall) -> Variants:
    """Yield a ``prelu`` or ``leaky_relu`` whose negative side has other slopes: one for each weight, fitted by least squares.

    The other slopes are told where they are the negatives of the right ones, or those of other channels.
    """
    x = call.tensor(0, "input")
    if x is None or x.shape != call.target.shape or not np.isfinite(call.target).all():
        return
    if call.operator == "leaky_relu":
        weights = np.asarray([float(call.text(1, "negative_slope", "0.01"))])
    else:
        given = call.tensor(1, "weight")
        if given is None:
            return
        weights = given.reshape(-1)
    axis = 1 if x.ndim > 1 and len(weights) > 1 else None  # channels stand in the second axis
    if axis is not None and x.shape[axis] != len(weights):
        return
    low = np.minimum(x, 0.0)
    others = None if axis is None else tuple(other for other in range(x.ndim) if other != axis)
    energy = np.sum(low * low, axis=others, keepdims=True)
    product = np.sum(low * call.target, axis=others, keepdims=True)
    right = weights.reshape([-1 if other == axis else 1 for other in range(x.ndim)])
    slopes = np.divide(product, energy, out=np.broadcast_to(right, product.shape).copy(), where=energy > 0.0)
    if x.size < _FEWEST_TO_FIT * len(weights):
        return
    yield f"other_slope: {_describe_slopes(slopes.reshape(-1), weights)}", np.maximum(x, 0.0) + slopes * low


def _describe_slopes(slopes: Array, right: Array) -> str:
    """Say how slopes come from the right ones, or what they are.

    >>> _describe_slopes(np.array([-0.25]), np.array([0.25])), _describe_slopes(np.array([0.01]), np.array([0.1]))
    ('the negative of what it should be', '0.01')
    >>> _describe_slopes(np.array([0.3, 0.1, 0.2]), np.array([0.1, 0.2, 0.3]))
    'those of other channels'
    """

    def is_near(wanted: Array) -> bool:
        """Tell whether the slopes are these, but for the error of fitting them."""
        return bool(np.allclose(slopes, wanted, rtol=_WHOLE / 10, atol=1e-6))

    if is_near(-right):
        return "the negative of what it should be"
    if len(slopes) > 1:
        same = np.allclose(np.sort(slopes), np.sort(right), rtol=_WHOLE / 10, atol=1e-6)
        return "those of other channels" if same else f"{slopes.min():.3g} to {slopes.max():.3g}"
    return f"{float(slopes[0]):.3g}"


def _vary_norm(call: _TargetCall) -> Variants:
    x, weight, bias = call.tensor(0, "input"), call.tensor(2, "weight"), call.tensor(3, "bias")
    if x is None:
        return
    yield "no_weight", call.compute_without("2", "weight")
    yield "no_bias", call.compute_without("3", "bias")
    yield "no_weight_and_bias", call.compute_without("2", "weight", "3", "bias")
    if weight is not None:
        yield "weight_plus_one", call.compute_with(_2=weight + 1.0)
    if call.operator == "group_norm":
        groups = int(call.text(1, "num_groups", "1"))
        for other in {groups // 2, groups * 2, 1, x.shape[1]} - {0, groups}:
            if x.shape[1] % other == 0:
                arguments = {**call.arguments, "1": str(other), "num_groups": str(other)}
                yield "other_groups", compute_expected("group_norm", arguments, call.inputs)
    if call.operator == "layer_norm":
        yield "not_centred", compute_expected("rms_norm", {**call.arguments, "eps": call.text(4, "eps", "1e-5")}, call.inputs)
        shift = np.zeros(1) if bias is None else bias
        count = x.shape[-1]
        # Over n - 1 in place of n the variance is n / (n - 1) times as large; the epsilon is too small to matter here.
        yield "unbiased_variance", (call.exact - shift) * math.sqrt((count - 1) / count) + shift


def _vary_batch_norm(call: _TargetCall) -> Variants:
    """Yield the normalisation by the batch's own variance, divided by n - 1 in place of n."""
    x, bias = call.tensor(0, "input"), call.tensor(4, "bias")
    if x is None or call.text(5, "training", "False") != "True":
        return
    count = x.size // x.shape[1]
    shift = np.zeros(1) if bias is None else bias.reshape(-1, *([1] * (x.ndim - 2)))
    if count > 1:
        yield "unbiased_variance", (call.exact - shift) * math.sqrt((count - 1) / count) + shift


def _vary_softmax(call: _TargetCall) -> Variants:
    scores = call.tensor(0, "input")
    if scores is None:
        return
    yield "uniform", np.full(call.exact.shape, 1.0 / call.exact.shape[int(call.text(1, "dim", "-1"))])
    for axis in range(scores.ndim):
        yield "other_axis", compute_expected("softmax", {"dim": str(axis)}, {"0": scores})
    yield from _cut_keys(scores, call.target)


def _vary_product(call: _TargetCall) -> Variants:
    first, second = call.tensor(0, "input"), call.tensor(1, "weight" if call.operator == "linear" else "other")
    if first is None or second is None or second.ndim < 2:
        return
    if call.operator == "linear":
        yield "no_bias", call.compute_without("2", "bias")
        yield "transposed", call.compute_with(_1=second.T)
        second = second.T
    else:
        yield from _read_in_order_of_memory(call, first, second)
    if second.ndim == 2:
        yield from _leave_out_terms(first, second.T, call.exact)
        yield from _change_terms(first, second, call.exact, call.target)


def _read_in_order_of_memory(call: _TargetCall, first: Array, second: Array) -> Variants:
    """Yield products that read one operand in the order of its memory, as if it were no view.

    What a dump has of a tensor does not tell how it lay in memory, so each order of its axes is tried on a few rows or columns.
    """
    if first.ndim < _MATRIX or not np.isfinite(call.target).all():
        return
    for place, operand in ((1, second), (0, first)):
        best, least = None, np.inf
        for order in _list_orders(operand):
            read = np.transpose(operand, order).reshape(operand.shape)
            if place == 1:
                left, right, given = first[..., :_SAMPLE, :], read, call.target[..., :_SAMPLE, :]
            else:
                left, right, given = read, second[..., :_SAMPLE], call.target[..., :_SAMPLE]
            error = float(np.sum((np.matmul(left, right) - given) ** 2))
            if error < least:
                best, least = read, error
        if best is not None:
            yield f"memory_order: {'second' if place else 'first'}", call.compute_with(**{f"_{place}": best})


def _list_orders(operand: Array) -> Iterator[tuple[int, ...]]:
    plain = tuple(range(operand.ndim))
    if operand.ndim <= _AXES and operand.size <= _LARGE:
        yield from (order for order in itertools.permutations(plain) if order != plain)
    else:
        yield (*plain[:-2], plain[-1], plain[-2])


def _change_terms(left: Array, right: Array, exact: Array, target: Array) -> Variants:
    """Yield a product some of whose terms are left out or added twice, wherever they are in the sum.

    The target's error is ``E = sum over k of d_k l_k r_k``, with columns ``l_k`` of the left operand and rows ``r_k`` of the
    right one. Least squares give the ``d``: -1 for a term that is left out, 0 for one that is right. So the weight gradient of
    fewer tokens is found, and that of one sample of two.
    """
    count = right.shape[0]
    error = (target - exact).reshape(-1, right.shape[1])
    columns = left.reshape(-1, count)
    if not 1 < count <= min(_MOST_FITTED, exact.size // 4) or not np.isfinite(error).all() or not np.isfinite(columns).all():
        return
    gram = (columns.T @ columns) * (right @ right.T)
    fitted = np.linalg.lstsq(gram, np.sum((columns.T @ error) * right, axis=1), rcond=1e-10)[0]
    whole = np.rint(fitted)
    changed = np.flatnonzero(whole)
    if 0 < len(changed) < count and np.abs(fitted - whole).max() < _WHOLE and abs(whole[changed].sum()) == len(changed):
        name = "terms_left_out" if whole[changed[0]] < 0 else "terms_added_twice"
        wrong = (columns[:, changed] * whole[changed]) @ right[changed]
        yield f"{name}: {_describe_terms(changed, count)}", exact + wrong.reshape(exact.shape)


def _describe_terms(changed: npt.NDArray[np.intp], count: int) -> str:
    """Say which of some terms are meant.

    >>> _describe_terms(np.array([0, 1, 2]), 8), _describe_terms(np.array([3, 4]), 8), _describe_terms(np.array([1, 5]), 8)
    ('the first 3 of 8', '4 to 5 of 8', '2 of 8')
    """
    first, last = int(changed[0]), int(changed[-1])
    if last - first + 1 != len(changed):
        return f"{len(changed)} of {count}"
    if first == 0:
        return f"the first {len(changed)} of {count}"
    return f"the last {len(changed)} of {count}" if last == count - 1 else f"{first + 1} to {last + 1} of {count}"


def _shift_positions(call: _TargetCall) -> Variants:
    """Yield the output for positions that are counted from another number.

    Positions are an operand of whole numbers that go up by one along an axis. The operator is linear in each operand, so the
    step of one position tells how many fit.
    """
    for key, positions in call.inputs.items():
        if not _counts_up(positions):
            continue
        further = compute_expected(call.operator, call.arguments, {**call.inputs, key: positions + 1})
        if further is None or further.shape != call.target.shape:
            continue
        step, error = further - call.exact, call.target - call.exact
        energy, product = float(np.sum(step * step)), float(np.sum(step * error))
        if energy > 0.0 and np.isfinite(product) and (shift := round(product / energy)):
            yield f"positions_shifted: by {shift}", call.exact + shift * step


def _counts_up(values: Array) -> bool:
    """Tell whether values are whole numbers that go up by one along an axis of three or more.

    >>> _counts_up(np.arange(5.0)[:, None]), _counts_up(np.array([[1, 5, 7]]))
    (True, False)
    """
    if not np.isfinite(values).all() or not np.array_equal(values, np.rint(values)):
        return False
    return any(size > 2 and bool((np.diff(values, axis=axis) == 1).all()) for axis, size in enumerate(values.shape))


def _vary_pointwise(call: _TargetCall) -> Variants:
    for position, name in enumerate(("only_first", "only_second")):
        argument = "other" if position else "input"
        value = call.tensor(position, argument)
        if value is None:
            with contextlib.suppress(ValueError):  # neither a tensor nor a number
                value = np.asarray(float(call.text(position, argument, "")))
        if value is not None:
            yield name, np.broadcast_to(value, np.broadcast_shapes(value.shape, call.exact.shape))
    if call.operator == "add" and not call.arguments.get("alpha"):
        first, second = call.tensor(0, "input"), call.tensor(1, "other")
        if first is not None and second is not None:
            yield from _normalise_addend("first", first, second, call)
            yield from _normalise_addend("second", second, first, call)


def _normalise_addend(place: str, addend: Array, other: Array, call: _TargetCall) -> Variants:
    """Yield a sum with a norm of one addend in its place, with the weight and bias of that norm where the rows tell them."""
    if (
        addend.shape != call.target.shape
        or addend.ndim < _MATRIX
        or addend.shape[-1] < _FEW
        or not np.isfinite(call.target).all()
    ):
        return
    rows = addend.reshape(-1, addend.shape[-1])
    rest = (call.target - other).reshape(rows.shape)
    for kind, centred in (("layer_norm", rows - rows.mean(axis=1, keepdims=True)), ("rms_norm", rows)):
        variance = np.mean(centred * centred, axis=1, keepdims=True)
        if not variance.all():  # a row of zeros, of which a norm is all epsilon
            continue
        for epsilon in _EPSILONS:
            normed = centred / np.sqrt(variance + epsilon)
            yield f"norm_added: {kind} of its {place}", (normed.reshape(addend.shape) + other)
        if len(rows) < _ROWS:
            continue
        fitted, plain = (_fit_columns(one, rest) for one in (normed, rows))
        # Rows of equal norm are normalised already: their own multiples fit as well, and prove no norm.
        if np.sum((rest - fitted) ** 2) <= _FAR_BETTER * np.sum((rest - plain) ** 2):
            yield f"norm_added: {kind} of its {place}", fitted.reshape(addend.shape) + other


def _fit_columns(values: Array, target: Array) -> Array:
    """Return the nearest to a target that one factor and one offset for each column make of values."""
    centred, offset = values - values.mean(axis=0), target.mean(axis=0)
    energy = np.sum(centred * centred, axis=0)
    slope = np.divide(np.sum(centred * (target - offset), axis=0), energy, out=np.zeros_like(energy), where=energy > 0.0)
    fitted: Array = centred * slope + offset
    return fitted


def _vary_loss(call: _TargetCall) -> Variants:
    """Yield the mean over fewer tokens: their labels are padding on one side only, or the sequence is cut."""
    scores, labels = call.tensor(0, "input"), call.tensor(1, "target")
    if scores is None or labels is None or scores.ndim != 2 or labels.ndim != 1:
        return
    for count in range(1, min(_MOST_TERMS, len(labels) - 1) + 1):
        for where, kept in (("last", slice(None, -count)), ("first", slice(count, None))):
            fewer = call.compute_with(_0=scores[kept], _1=labels[kept])
            yield f"terms_left_out: the {where} {count} of {len(labels)}", fewer


def _vary_embedding(call: _TargetCall) -> Variants:
    """Yield the rows that stand a few places further in the table.

    If several rows were asked for, several have to be read: one row for all is what ids that are all zero read, too.
    """
    rows, table = call.tensor(0, "input"), call.tensor(1, "weight")
    if rows is not None and table is not None:
        fewest = min(2, len(np.unique(rows)))
        for shift in _SHIFTS:
            shifted = rows + shift
            values = table[np.clip(shifted, 0, len(table) - 1)]
            outside = (shifted < 0) | (shifted >= len(table))  # what is read there depends on the kernel
            is_shown = outside.mean() < _OUTSIDE and len(np.unique(shifted[~outside])) >= fewest
            if is_shown and values.shape == call.target.shape:
                values[outside] = call.target[outside]
                yield f"rows_shifted: by {shift}", values


_FAMILIES: dict[str, Callable[[_TargetCall], Variants]] = {
    **dict.fromkeys(("gelu", "silu", "sigmoid"), _vary_activation),
    **dict.fromkeys(("prelu", "leaky_relu"), _vary_slope),
    **dict.fromkeys(("layer_norm", "rms_norm", "group_norm"), _vary_norm),
    "batch_norm": _vary_batch_norm,
    "softmax": _vary_softmax,
    **dict.fromkeys(("linear", "matmul", "bmm", "mm"), _vary_product),
    **dict.fromkeys(("add", "sub", "mul", "div"), _vary_pointwise),
    "embedding": _vary_embedding,
    "cross_entropy": _vary_loss,
}
_LINEAR = frozenset("linear matmul bmm mm mul add sub outer einsum".split())  # in each of their operands


def _cut_keys(scores: Array, target: Array) -> Variants:
    """Yield a softmax without its last keys, as many as are zero on the target."""
    zero = np.all(target == 0.0, axis=tuple(range(target.ndim - 1)))
    count = int(np.argmin(zero[::-1])) if not zero.all() else 0
    if count:
        left = scores[..., :-count]
        powers = np.exp(left - left.max(axis=-1, keepdims=True))
        rest = np.zeros((*scores.shape[:-1], count))
        yield "last_keys_ignored", np.concatenate([powers / powers.sum(axis=-1, keepdims=True), rest], axis=-1)


def _leave_out_terms(x: Array, weight: Array, exact: Array) -> Variants:
    """Yield products whose sums lack their last terms, one more each time."""
    shortened = exact.copy()
    for count in range(1, min(_MOST_TERMS, x.shape[-1] - 1) + 1):
        shortened -= x[..., -count, None] * weight[:, -count]
        yield "last_terms_left_out", shortened


def _round_inputs(operator: str, arguments: Mapping[str, str], inputs: Inputs) -> Variants:
    """Yield the operator on inputs of a narrower type, with a result in it and without."""
    for name, dtype in _TYPES:
        with np.errstate(over="ignore"):
            narrow = {
                key: value.astype(dtype).astype(np.float64) if value.dtype.kind == "f" else value
                for key, value in inputs.items()
            }
            # Inputs of that type already: only the rounding of the result would be explained, which is right in that type.
            if all(np.array_equal(narrow[key], value, equal_nan=value.dtype.kind == "f") for key, value in inputs.items()):
                continue
            output = compute_expected(operator, arguments, narrow)
            yield f"inputs_in_{name}", output
            if output is not None:
                yield f"inputs_in_{name}", output.astype(dtype).astype(np.float64)
