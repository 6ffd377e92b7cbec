"""Evidence from a call as a whole: what its own inputs should have given, and how what it gave differs from that.

Between the sides, an output differs by what arrived with the inputs and by what the operator added. Where all tensors of the
call were kept and the operator is known, float64 at the target's own inputs leaves only what the operator added; otherwise the
reference's output stands in for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from precflow.agent.contract import BACKWARD, FORWARD, OPTIMIZER
from precflow.comparison.fused.value_classes import widen
from precflow.diagnosis.evidence import (
    error_shape,
    isolated,
    lookups,
    masks,
    normalisation,
    operator_families,
    places,
    rearranged,
    sum_type,
)
from precflow.diagnosis.evidence.expected import compute_expected
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.diagnosis.evidence.tensors import ObservedCall, TensorPair, WholeCall
from precflow.dumps.dtypes import FLOATS, Array, float_facts, name_of

_EPSILONS = {"layer_norm": ("4", "1e-05"), "rms_norm": ("3", "None"), "group_norm": ("4", "1e-05")}  # position and default
_LARGEST_EPSILON = 1e-2  # a larger constant that is added is no epsilon of a norm that is written out
_HALF_UNIT = 2.0**-11  # of float16, the finest type of 16 bits: there one factor hides others within rounding
_WIDE = 4  # bytes of float32
_LARGEST_ADDED = 1.0  # in its place; more is no epsilon of any kind
_ENOUGH = 4  # sums with a constant: one of them fits any
_ZERO = 0.95  # share of the error that zeros in place of values have to make
_OWN = 2.0**-5  # relative error of the reference above which the expected output is that of another operator
_ROUNDINGS, _ROUNDINGS_OF_16_BITS = 64.0, 4.0  # that a right output may be off by: of products of matrices, and in 16 bits
_DIGITS_OF_16_BITS = 11
_GROWN = 4.0  # times the difference of its inputs that a right output may differ by
_CLOSE = 0.02  # more than this is no rounding that moved values may be told apart from others by
_OWN_OF_GRADIENT = 2.0**-7  # the same of a gradient, to which other modules that share the weight may have added

EVIDENCE = {
    "in_place": Evidence(
        "measured at its own inputs", "The numbers below are against float64 at the target's own inputs; absent otherwise."
    ),
    "own_error": Evidence("its own error", "Norm of its error against float64 at its own inputs, relative to that."),
    "own_error_units": Evidence("its own error in roundings", "In units of one rounding of its type; near 1 if it is right."),
    "sum_type": Evidence(
        "sums fit into", "16-bit type that holds the target's sums before a bias of float32 is added; empty if none does."
    ),
    "unchanged": Evidence(
        "passed through unchanged",
        "The end of an axis where the output has the values of an input while the rest is right; empty if there is none.",
    ),
    "few_share": Evidence(
        "elements with nearly all of the error", "Smallest share of them that carries 99 % of its energy.", unit="%"
    ),
    "few_rows": Evidence("rows with nearly all of the error", "Number of rows of the last axis."),
    "isolated": Evidence(
        "wrong alone", "The few elements, rows or columns beyond rounding, where all others are right; empty if more are."
    ),
    "isolated_extreme": Evidence("they are the extreme values", "The largest or smallest by value or by input."),
    "border": Evidence("the error is only at", "The end of an axis; empty if it is not at a border."),
    "zero_share": Evidence(
        "error where the target is zero",
        "Share of the error's energy where the reference is not zero.",
        tests="zeros in place of values",
        unit="%",
    ),
    "zero_block": Evidence(
        "zeros in their block",
        "Of the smallest block around these zeros: 1 for a part that was not written.",
        unit="%",
    ),
    "clamp_value": Evidence("cut off at", "Largest or smallest value of the target, which several elements have."),
    "clamp_share": Evidence(
        "explained by the cut-off", "Share of the error's energy.", tests="values that are cut off", unit="%"
    ),
    "sign_share": Evidence(
        "only the sign differs", "Share of the error's energy at such elements.", tests="another sign", unit="%"
    ),
    "norm_change": Evidence(
        "change of norms", "Of the rows, relative to the error: near 0 for a rotation, up to 1 for a scale."
    ),
    "norm_spread": Evidence(
        "spread of norms",
        "Of the reference's rows: standard deviation over mean, near 0 behind a normalisation.",
    ),
    "rows_read": Evidence(
        "reads",
        "Which rows of its table it replaces by others wherever they are read; empty if that does not explain the error.",
    ),
    "first_sample_right": Evidence("the first sample agrees", "And the others do not; absent without several samples."),
    "position_growth": Evidence("grows with the position", "Relative error of the last quarter over that of the first."),
    "position_rank": Evidence("order of the errors by position", "Rank correlation, 1 if every position is worse."),
    "rearranged": Evidence("values are", "How they were moved; empty if no rearrangement explains the target."),
    "rearranged_share": Evidence(
        "explained by that order", "Share of the error's energy.", tests="the values in another order", unit="%"
    ),
    "rearranged_exact": Evidence(
        "nothing else is left",
        "The right values in that order give the target's, apart from rounding and differences of the inputs.",
    ),
    "uniform_target": Evidence("rows of equal weights on the target", "Share of the rows.", unit="%"),
    "uniform_reference": Evidence("rows of equal weights on the reference", "Share of the rows.", unit="%"),
    "masked_rows_wrong": Evidence(
        "wrong rows that are masked everywhere", "Share of the rows with the largest errors.", unit="%"
    ),
    "saturated_target": Evidence("saturated", "Elements there whose reference is infinite or beyond it."),
    "flushed": Evidence(
        "too small for a normal number, and zero on the target",
        "Elements; the target has no subnormal number, and hardly any other zero in place of a value. Absent otherwise.",
    ),
    "nan_rows_masked": Evidence(
        "NaN in rows that are masked everywhere", "Share of the rows with NaN on the target only.", unit="%"
    ),
    "uneven_factor": Evidence(
        "factors differ between", "Rows, columns or slices that each have a factor of their own, in 16 bits; empty if none."
    ),
}


def gather(observed: ObservedCall) -> dict[str, Any]:
    """Return evidence by the names of ``names.EVIDENCE``; nothing for an output that cannot be compared."""
    output = observed.output
    if output is None:
        return {}
    if observed.product is not None:
        multiplies = msgspec.structs.replace(observed.reference, operator="matmul", phase=FORWARD, arguments={})
        observed = replace(observed, reference=multiplies, whole=observed.product)
    whole = observed.whole
    expected = None if whole is None else compute_own_expected(observed, *whole)
    if whole is None or expected is None:
        known = [pair.target for pair in observed.inputs]
        return _describe_places(observed, *_as_arrays(observed, output), known if observed.inputs_equal else None)
    target, output_type = widen(whole[1].output), whole[1].output.dtype
    digits = float_facts(name_of(output_type)).digits
    narrow = output_type if output_type.itemsize < _WIDE else None
    usable = np.isfinite(expected) & np.isfinite(target)
    call, inputs = observed.reference, widen_inputs(whole[1].inputs)
    evidence: dict[str, Any] = {"in_place": True}
    if usable.all():
        scale = error_shape.fit_scale(expected, target)
        own = error_shape.measure_relative_error(expected, target)
        evidence |= {
            "own_error": own,
            "own_error_units": own * 2.0**digits if own is not None else None,
            "scale_slope": scale.slope if scale else None,
            "scale_share": scale.share if scale else None,
            "error_cosine": error_shape.measure_error_cosine(expected, target),
        }
    is_product = operator_families.find_family(call.operator) == "matmul"
    if is_product and not sum_type.find_sum_type(call.operator, inputs, expected, output_type):
        evidence["sum_type"] = sum_type.find_sum_type(call.operator, inputs, target, output_type)
    is_right = narrow is not None and np.array_equal(_round_to(expected, narrow), target)  # as near as its type allows
    evidence |= (
        _fit_epsilon(observed, inputs, expected, target) if usable.all() and not (is_right and call.operator == "add") else {}
    )
    if operator_families.find_family(call.operator) == "activation" and "0" in inputs and inputs["0"].shape == target.shape:
        evidence["curve_share"] = error_shape.measure_curve_share(inputs["0"], target - expected)
    evidence["rows_read"] = _describe_lookup(call.operator, inputs, target)
    right = [expected, *([_round_to(expected, narrow)] if narrow else [])]  # rounding hides small differences
    given = [value for value in inputs.values() if value.dtype.kind == "f"]
    unchanged = (places.describe_unchanged(one, target, value) for one in right for value in given)
    evidence["unchanged"] = next(filter(None, unchanged), "")
    evidence |= _describe_places(observed, expected, target, given)
    return {name: value for name, value in evidence.items() if value is not None}


def _round_to(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return values of a narrower type as float64."""
    with np.errstate(over="ignore"):
        return values.astype(dtype).astype(np.float64)


def _describe_lookup(operator: str, inputs: Mapping[str, npt.NDArray[Any]], target: Array) -> str | None:
    """Say which rows of a table were read wrongly."""
    numbers, table = inputs.get("0", inputs.get("input")), inputs.get("1", inputs.get("weight"))
    if operator != "embedding" or numbers is None or table is None or numbers.dtype.kind not in "iu":
        return None
    return lookups.describe_wrong_rows(numbers, table, target)


def compute_own_expected(observed: ObservedCall, reference: WholeCall, target: WholeCall) -> Array | None:
    """Return float64 at the target's own inputs, with the reference's arguments; ``None`` where it cannot be had.

    The same is computed for the reference first. If that is far from what the reference gave, the operator is not the one that
    this package knows by the name, and nothing is concluded from it.
    """
    call = observed.reference
    if call.phase != "forward" or not call.operator:
        return None
    known = compute_expected(call.operator, call.arguments, widen_inputs(reference.inputs))
    given = widen(reference.output) if name_of(reference.output.dtype) in FLOATS else None
    if known is None or given is None or known.shape != given.shape:
        return None
    usable = np.isfinite(known) & np.isfinite(given)
    error = error_shape.measure_relative_error(np.where(usable, known, 0.0), np.where(usable, given, 0.0))
    if error is not None and error > (_OWN if observed.product is None else _OWN_OF_GRADIENT):
        return None
    expected = compute_expected(call.operator, call.arguments, widen_inputs(target.inputs))
    return expected if expected is not None and expected.shape == target.output.shape else None


def widen_inputs(inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return floating point tensors as float64 and others as they are."""
    return {name: widen(value) if name_of(value.dtype) in FLOATS else value for name, value in inputs.items()}


def _fit_epsilon(observed: ObservedCall, inputs: Mapping[str, Array], expected: Array, target: Array) -> dict[str, Any]:
    """Return which epsilon the target added, for a normalisation and for the sum that stands for it in one written out."""
    call, x = observed.reference, inputs.get("0", inputs.get("input"))
    if call.operator == "add" and x is not None:
        return _fit_added_constant(call.arguments.get("1", call.arguments.get("other", "")), expected, target)
    if call.operator == "batch_norm" and x is not None:
        return _fit_epsilon_of_channels(call.arguments, inputs, expected, target)
    shape = call.arguments.get("normalized_shape", call.arguments.get("1", "0"))
    if (
        x is None
        or call.operator not in _EPSILONS
        or (call.operator != "group_norm" and len(re.findall(r"\d+", shape)) != 1)  # over several axes
    ):
        return {}
    position, default = _EPSILONS[call.operator]
    text = call.arguments.get("eps", call.arguments.get(position, default))
    if text == "None":  # rms_norm then takes that of the element type
        return {}
    if call.operator == "group_norm":
        rows = (-1, x.size // (len(x) * int(call.arguments.get("num_groups", call.arguments.get("1", "1")))))
        weight, bias = inputs.get("2", inputs.get("weight")), inputs.get("3", inputs.get("bias"))
        channels = (-1, *([1] * (x.ndim - 2)))
        # The weight of a channel is that of many columns of a group, and of other ones in the next: take it out first.
        shift, factor = (np.zeros(1) if bias is None else bias.reshape(channels)), weight
        factor = np.ones(1) if factor is None else np.where(factor == 0.0, 1.0, factor).reshape(channels)
        x, expected, target = (values.reshape(rows) for values in (x, (expected - shift) / factor, (target - shift) / factor))
    rows = (-1, x.shape[-1])
    x, expected, target = (values.reshape(rows) for values in (x, expected, target))
    fitted = normalisation.fit_epsilon(x, expected, target, float(text), centred=call.operator != "rms_norm")
    if fitted is None:
        return {}
    return {"epsilon_reference": float(text), "epsilon_target": fitted.epsilon, "epsilon_share": fitted.share}


def _fit_epsilon_of_channels(
    arguments: Mapping[str, str], inputs: Mapping[str, Array], expected: Array, target: Array
) -> dict[str, Any]:
    """Return which epsilon a batch norm added to the variances that it keeps, or to those of the batch while it trains."""
    variance, bias = inputs.get("2", inputs.get("running_var")), inputs.get("4", inputs.get("bias"))
    if arguments.get("training", arguments.get("5", "False")) == "True":
        x = inputs.get("0", inputs.get("input"))
        variance = None if x is None else x.var(axis=(0, *range(2, x.ndim)))
    if variance is None:
        return {}
    epsilon = float(arguments.get("eps", arguments.get("7", "1e-05")))
    shift = np.zeros(1) if bias is None else bias.reshape(-1, *([1] * (expected.ndim - 2)))
    rows = (len(variance), -1)
    scaled, expected, target = (np.moveaxis(values, 1, 0).reshape(rows) for values in (expected - shift, expected, target))
    fitted = normalisation.fit_epsilon_to_variance(variance, scaled, expected, target, epsilon)
    if fitted is None:
        return {}
    return {"epsilon_reference": epsilon, "epsilon_target": fitted.epsilon, "epsilon_share": fitted.share}


def _fit_added_constant(text: str, expected: Array, target: Array) -> dict[str, Any]:
    """Return the constant that the target added in place of a small one, as of a variance."""
    try:
        added = float(text)
    except ValueError:
        return {}
    error = target - expected
    energy = float(np.sum(error**2))
    if not 0.0 < added < _LARGEST_EPSILON or energy == 0.0:
        return {}
    offset = float(error.mean())
    if target.size < _ENOUGH or not abs(added + offset) < _LARGEST_ADDED:
        return {}
    share = 1.0 - float(np.sum((error - offset) ** 2)) / energy
    return {"epsilon_reference": added, "epsilon_target": added + offset, "epsilon_share": share}


def _as_arrays(observed: ObservedCall, output: TensorPair) -> tuple[Array, Array]:
    """Return the two outputs in their shape, with numbers that are not ordinary as zeros; as rows where rows were left out."""
    shape = observed.records[0].shape
    pairs = (np.where(output.ordinary, values, 0.0) for values in (output.reference, output.target))
    is_whole = output.reference.size == int(np.prod(shape)) and shape
    here, there = (pair.reshape(shape) if is_whole else pair for pair in pairs)
    return here, there


def _describe_places(observed: ObservedCall, reference: Array, target: Array, inputs: Sequence[Array] | None) -> dict[str, Any]:
    """Return where the error is, and how values were moved; nothing of what an optimizer leaves behind.

    Adam's first steps have the size of the rate, and the sign of the gradient: where that is rounding, weights differ at single
    places by their sign. No kernel was wrong there. The steps of optimizers are computed again by themselves.

    Args:
        observed: The call.
        reference: What is right, or what the reference gave.
        target: What the target gave.
        inputs: Of the target, where ``reference`` is right at them; ``None`` where the inputs of the sides may differ.
    """
    if observed.reference.phase == OPTIMIZER:
        return {}
    reference, target = np.atleast_1d(reference), np.atleast_1d(target)  # a loss is a number, and has no rows
    usable = np.isfinite(reference) & np.isfinite(target)
    here, there = np.where(usable, reference, 0.0), np.where(usable, target, 0.0)
    error = there - here
    if not error.any():
        return {}
    is_softmax = operator_families.find_family(observed.reference.operator) in {"softmax", "attention"}
    growth, clamp = places.measure_growth(here, there), places.measure_clamp_share(here, there)
    zero_share = places.measure_zero_share(here, there)
    other = observed.records[1]
    alone, unit = None, math.inf
    if inputs is not None and other is not None and other.dtype in FLOATS:
        digits = float_facts(other.dtype).digits
        alone, unit = isolated.find_isolated(here, there, inputs, digits), 2.0**-digits
    room = _measure_room(observed, unit)
    moved = rearranged.find_rearrangement(here, there, room if unit < 1.0 else math.inf)
    # The rows of a weight's gradient are no samples: that of a word that stands for padding is 0 on both sides.
    is_of_samples = observed.reference.phase in {FORWARD, BACKWARD}
    evidence = {
        "uneven_factor": error_shape.find_uneven_factor(here, there) if _HALF_UNIT <= unit < 1.0 else None,
        "isolated": alone.text if alone else "",
        "isolated_extreme": alone.is_extreme if alone else None,
        "few_share": places.measure_few_share(error),
        "few_rows": len(places.find_few(error.reshape(-1, error.shape[-1]), 0)),
        "border": places.describe_border(error, is_known=zero_share is not None and zero_share > _ZERO),
        "zero_share": zero_share,
        "zero_block": places.measure_zero_block(here, there),
        "clamp_value": clamp[0] if clamp else None,
        "clamp_share": clamp[1] if clamp else None,
        "sign_share": places.measure_sign_share(here, there),
        "norm_change": places.measure_norm_change(here, there),
        "norm_spread": places.measure_norm_spread(here),
        "first_sample_right": places.is_first_sample_right(here, there, unit) if is_of_samples else None,
        "position_growth": growth[0] if growth else None,
        "position_rank": growth[1] if growth else None,
        "rearranged": moved.text if moved else None,
        "rearranged_share": moved.share if moved else None,
        "rearranged_exact": moved.left <= room <= _CLOSE if moved and moved.text else None,
        "uniform_target": places.measure_uniform_share(there) if is_softmax else None,
        "uniform_reference": places.measure_uniform_share(here) if is_softmax else None,
        "masked_rows_wrong": _find_masked_rows(observed, error),
        "nan_rows_masked": _find_masked_nan(observed),
        "saturated_target": _count_saturated(observed, target, reference),
        "flushed": _count_flushed(observed, target, reference),
    }
    return {name: value for name, value in evidence.items() if value is not None}


def _measure_room(observed: ObservedCall, unit: float) -> float:
    """Return how far values that only moved may be off, relative to their norm: by rounding, and by what their inputs are.

    Args:
        observed: The call.
        unit: One rounding of the target's type; infinite where the inputs of the sides may differ.
    """
    other = observed.records[1]
    if other is None or other.dtype not in FLOATS:
        return math.inf
    digits = float_facts(other.dtype).digits
    own = (_ROUNDINGS if digits > _DIGITS_OF_16_BITS else _ROUNDINGS_OF_16_BITS) * 2.0**-digits
    if unit < 1.0:
        return own
    pairs = [(pair.reference[pair.ordinary], pair.target[pair.ordinary]) for pair in observed.inputs]
    errors = [error_shape.measure_relative_error(*pair) for pair in pairs]
    return own + _GROWN * max((error for error in errors if error is not None), default=math.inf)


def _find_masked_rows(observed: ObservedCall, error: Array) -> float | None:
    """Return the share of wrong rows whose scores are masked everywhere, for a softmax."""
    if observed.reference.operator != "softmax" or not observed.inputs:
        return None
    filled = observed.inputs[0].filled_reference
    if filled.size != error.size:
        return None
    rows = np.abs(error).reshape(filled.shape).max(axis=1)
    return masks.measure_masked_rows(filled, rows > 0.1 * rows.max())  # a tenth of the largest: rounding is not meant


def _find_masked_nan(observed: ObservedCall) -> float | None:
    """Return the share of rows with NaN on the target only whose input is masked everywhere."""
    output = observed.output
    if output is None or not observed.inputs or observed.inputs[0].filled_reference.shape != output.target.shape:
        return None
    broken: Array = np.any(np.isnan(output.target) & ~np.isnan(output.reference), axis=1)
    pair = observed.inputs[0]
    return masks.measure_masked_rows(pair.filled_reference | pair.filled_target, broken)


def _count_saturated(observed: ObservedCall, target: Array, reference: Array) -> int | None:
    """Return the number of elements at the target type's largest value where the reference is infinite, or beyond it."""
    other = observed.records[1]
    if other is None or other.dtype not in FLOATS:
        return None
    largest = float_facts(other.dtype).largest
    return int(np.count_nonzero((np.abs(target) == largest) & ~(np.abs(reference) < largest)))


def _count_flushed(observed: ObservedCall, target: Array, reference: Array) -> int | None:
    """Return how many elements are zero on the target because their type has no normal number as small; ``None`` if none is."""
    other = observed.records[1]
    if other is None or other.dtype not in FLOATS:
        return None
    return places.count_flushed(reference, target, float_facts(other.dtype)) or None
