"""Whether sums of products were kept in 16 bits, which a bias that is added in a wider type hides from the result itself."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from precflow.comparison.fused.value_classes import Floats
from precflow.diagnosis.evidence.expected import Inputs

_BIAS = frozenset({"2", "bias"})
_ADDENDS = dict.fromkeys(("addmm", "baddbmm"), frozenset({"0", "input"}))  # where it stands in other products
_NARROW = (("bfloat16", np.dtype(ml_dtypes.bfloat16)), ("float16", np.dtype(np.float16)))
_ENOUGH = 64  # sums that a narrow type holds; fewer it may hold by chance
# By type of the result: one rounding of it (of float32 on a chip that rounds towards zero), the types of sums that can be told
# in it, and the share of a sum that this rounding may be: the steps of float16 are 2^-10 of it, those of bfloat16 2^-7.
_SUMS = {"float32": (2.0**-23, _NARROW, 2.0**-14), "float16": (2.0**-11, _NARROW[:1], 2.0**-10)}


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
