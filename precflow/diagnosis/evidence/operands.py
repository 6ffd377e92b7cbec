"""Whether a product of matrices rounded its operands, by computing it again from operands with fewer bits, or its sums.

TF32 keeps 10 explicit bits of the significand of a float32 operand, HF32 11, bfloat16 7. An error of the right size proves
nothing: many faults are as large. But if the product of rounded operands gives the target's output, and that of whole ones does
not, no other cause is left.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from precflow.comparison.fused.value_classes import Floats
from precflow.diagnosis.evidence.expected import Inputs, compute_expected

BITS = (11, 10, 7)  # HF32, TF32, bfloat16
_BIAS = frozenset({"2", "bias"})
# What is added to a product is an operand of some kernels, which round it, and added behind it by others, which do not.
_ADDENDS = dict.fromkeys(("addmm", "baddbmm"), frozenset({"0", "input"}))
_NARROW = (("bfloat16", np.dtype(ml_dtypes.bfloat16)), ("float16", np.dtype(np.float16)))
_ENOUGH = 64  # sums that a narrow type holds; fewer it may hold by chance
# By type of the result: one rounding of it (of float32 on a chip that rounds towards zero), the types of sums that can be told
# in it, and the share of a sum that this rounding may be: the steps of float16 are 2^-10 of it, those of bfloat16 2^-7.
_SUMS = {"float32": (2.0**-23, _NARROW, 2.0**-14), "float16": (2.0**-11, _NARROW[:1], 2.0**-10)}
_FEWEST = 16  # sums; one is near some way to shorten its operands by chance
_FITS = 0.8  # share of the error that rounded operands have to explain; other errors reach 0.1


@dataclass(frozen=True)
class OperandFit:
    """How many bits of the operands explain a product.

    Attributes:
        bits: Explicit bits of the significand, one of ``BITS``; 0 if none of them explains the error.
        share: Share of the error's energy that they explain, 0 to 1.
    """

    bits: int
    share: float


def fit_operand_bits(operator: str, arguments: Mapping[str, str], inputs: Inputs, target: Floats) -> OperandFit | None:
    """Find the number of bits of the operands that explain a target's product; ``None`` if it cannot be computed.

    Args:
        operator: Canonical name of a product of matrices, or ``conv2d``.
        arguments: Arguments that are not tensors.
        inputs: What the target multiplied.
        target: The target's output.
    """
    exact = compute_expected(operator, arguments, inputs)
    if exact is None or exact.shape != target.shape or target.size < _FEWEST or not np.isfinite(target).all():
        return None
    energy = float(np.sum((target - exact) ** 2))
    if not 0.0 < energy < np.inf:
        return None

    def measure_shares(bits: int) -> Iterator[float]:
        """Yield the share of the error that each way to shorten the operands explains."""
        addends = _ADDENDS.get(operator, _BIAS) & inputs.keys()
        for truncate, kept in itertools.product((False, True), (addends, frozenset()) if addends else (addends,)):
            shortened = {
                name: round_significand(value.astype(np.float64), bits, truncate=truncate)
                if value.dtype.kind == "f" and name not in kept
                else value
                for name, value in inputs.items()
            }
            # Operands that are as short already: only the rounding of the result would be explained, and that is right.
            if all(np.array_equal(shortened[name], value) for name, value in inputs.items() if name not in addends):
                continue
            output = compute_expected(operator, arguments, shortened)
            # Autocast rounds the result as well.
            for result in () if output is None else (output, round_significand(output, bits)):
                yield 1.0 - float(np.sum((target - result) ** 2)) / energy

    shares = {bits: max(measure_shares(bits), default=0.0) for bits in BITS}
    best = max(shares, key=lambda bits: shares[bits])
    share = max(0.0, shares[best])
    return OperandFit(best if share > _FITS else 0, share)


def find_sum_type(operator: str, inputs: Inputs, target: Floats, dtype: np.dtype[Any]) -> str:
    """Return the 16-bit type that holds the target's sums of products before a bias was added; ``""`` for none.

    An accumulator of 16 bits leaves sums of 16 bits. A bias that is added in float32 hides that from the result itself. In
    float16 sums of bfloat16 can be told, whose steps are eight times as wide.

    Args:
        operator: Canonical name of a product with something added.
        inputs: What the target multiplied and added.
        target: The target's output.
        dtype: Its type; of one without room between its own steps and those of narrower sums, nothing is known.
    """
    name = next(iter(_ADDENDS.get(operator, _BIAS) & inputs.keys()), None)
    known = _SUMS.get(dtype.name)
    if name is None or known is None or not inputs[name].any():
        return ""
    addend = inputs[name].astype(np.float64)
    if operator.startswith("conv"):
        addend = addend.reshape(-1, *[1] * (target.ndim - 2))
    try:
        sums = target - addend
    except ValueError:  # a module's call, which has other inputs
        return ""
    finite = np.isfinite(sums)
    if np.count_nonzero(finite) < _ENOUGH or sums.shape != target.shape:
        return ""
    rounding, types, told_from = known
    room = rounding * np.abs(target[finite])
    with np.errstate(over="ignore"):
        for type_name, narrow in types:
            held = np.abs(sums[finite].astype(narrow).astype(np.float64) - sums[finite]) <= room
            # Where sums are small next to the bias, the room is as wide as the steps of the type.
            told = room < told_from * np.abs(sums[finite])
            if np.count_nonzero(told) >= _ENOUGH and held[told].all():
                return type_name
    return ""


def round_significand(values: Floats, bits: int, *, truncate: bool = False) -> Floats:
    """Round to ``bits`` explicit bits of the significand, to nearest or towards zero.

    >>> round_significand(np.array([1.0 + 2.0**-4, 3.0]), 3)
    array([1., 3.])
    """
    significand, exponent = np.frexp(values)
    scaled = np.ldexp(significand, bits + 1)  # frexp gives 0.5 to 1, so one bit more is in front of the point
    rounded: Floats = np.ldexp(np.trunc(scaled) if truncate else np.rint(scaled), exponent - bits - 1)
    return rounded
