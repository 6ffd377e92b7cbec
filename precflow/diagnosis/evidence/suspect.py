"""Evidence about one call under suspicion: its inputs, its arguments, the shape of its error. The unknown is left out."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from precflow.agent.contract import FORWARD, OPTIMIZER, parse_identity
from precflow.comparison import pairing
from precflow.diagnosis.evidence import error_shape, in_place, masks, normalisation, operator_families, wraps
from precflow.diagnosis.evidence.overflows import nonfinite
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.diagnosis.evidence.tensors import ObservedCall, TensorPair
from precflow.diagnosis.findings import Suspect
from precflow.diagnosis.introduced import IntroducedError
from precflow.dumps.record_names import find_operator, name_record
from precflow.dumps.records import Call, Record
from precflow.judgement import lines
from precflow.judgement.verdicts import Judged

_WIDE = ("float32", "float64")
# operator -> position of eps among the arguments, and whether the mean is subtracted
_EPSILON = {"layer_norm": (4, True), "native_layer_norm": (4, True), "rms_norm": (3, False)}
_DEFAULT_EPSILON = 1e-5  # of torch's layer_norm, group_norm and batch_norm
OPTIMIZER_CLASS = "optimizer"  # argument of an optimizer's step
IMPLEMENTATIONS = frozenset(("foreach", "fused", "capturable", "differentiable"))  # settings of an optimizer
_DEVICE = re.compile(r"\b(cuda|npu|cpu|device)\b")
_DTYPE = re.compile(r"\b(b?float\d*|half|double)\b|torch\.(b?float\d*|half|double)")
# Smallest weight of attention that counts as more than zero: below it a type, or a device that flushes, has none.
_SMALLEST_ATTENTION = {"float16": 2e-4}
_ONE, _ONE_OF_WIDE = 0.1, 1e-3  # difference of the sum of a row from one, of weights in 16 bits and in wider types
_SAMPLE = 4096  # elements among which different values are counted
_SMALLEST_NORMAL = 2.0**-14  # of float16; below it a value has fewer bits
_MOST_OPERATORS = 9  # that a title names
_FILL = 1e4  # larger arguments are fill constants of masks, which depend on the element type


# How many values these return depends on the values that they are given.
_VALUE_SHAPED = frozenset(
    "nonzero argwhere masked_select unique unique_consecutive bincount repeat_interleave one_hot where getitem index "
    "index_select __getitem__ split split_with_sizes histc".split()
)

EVIDENCE = {
    "name": Evidence("where", "Name of the call."),
    "record": Evidence("record", "Name of its failing output."),
    "module": Evidence("module", "Qualified name of the module."),
    "operator": Evidence("operator", "Canonical name of the operator; `module` for a module."),
    "family": Evidence(
        "family", "matmul, normalisation, softmax, activation, masking, random, reduction, attention, module, other."
    ),
    "site": Evidence("called at", "Place in the source."),
    "why_suspect": Evidence("on the graph", "Why it is under suspicion."),
    "status": Evidence("status", "Status of its output."),
    "ratio": Evidence("times its limit", "How far over its limit; above 1 fails."),
    "movement": Evidence("pure movement", "The operator only moves values."),
    "accumulated": Evidence("inputs near their limit", "An input uses more than half of its limit already."),
    "inputs_use": Evidence(
        "error of the inputs, as a share of their limit", "Largest of the passing records that it is computed from.", unit="%"
    ),
    "inputs_equal": Evidence(
        "inputs bitwise equal",
        "All inputs and weights have the same bits on both sides; absent where what was kept does not tell.",
    ),
    "inputs_differ": Evidence("an input has other bits", "Among inputs whose content is known on both sides."),
    "input_shapes_equal": Evidence("inputs have the same shapes", "All inputs and weights."),
    "shape_follows_values": Evidence(
        "its size depends on values", "The operator returns as many values as its inputs select, such as nonzero."
    ),
    "introduced_fault": Evidence(
        "introduces an error in place", "By float64 at the target's own inputs; absent where it was not evaluated."
    ),
    "introduced_rho": Evidence("times the reference's own error", "Against float64, each side at its own inputs."),
    "introduced_measure": Evidence(
        "shown by",
        "`rho` (size), `variance`, `slope`, `curve`, `largest` (rounding residue), `half_steps`, `other_form`, `movement` or"
        " `nonfinite`.",
    ),
    "half_steps": Evidence(
        "smallest values in steps of float16",
        "Those of a bfloat16 output are whole multiples of 2^-24, and correct ones are not; absent otherwise.",
    ),
    "introduced_factor_share": Evidence(
        "error left by one factor, over its limit",
        "What one factor leaves of its error, over the most that rounding can leave; above 1 it is more than rounding.",
    ),
    "introduced_systematic": Evidence("the error follows the values", "Not only more rounding."),
    "wired_differently": Evidence(
        "takes other inputs", "Sentences that say which call an input comes from on both sides; absent if they are the same."
    ),
    "elements": Evidence("elements", "Number of elements of the output: one number fits any factor."),
    "mask_pattern": Evidence(
        "the target's mask is",
        "missing, additional, inverted, moved, transposed, aligned to the other corner, that of the first sample for all,"
        " partly missing or additional; empty if none of these.",
    ),
    "changed": Evidence(
        "changed in between",
        "A tensor that changed between the call that returned it and this one, with that call and its source line.",
    ),
    "given_differently": Evidence(
        "given differently",
        "An input of whole numbers that differs between the sides though no call before it fails.",
    ),
    "other_weight": Evidence(
        "other weight", "A weight of the call that differs between the sides although no recorded call wrote it."
    ),
    "behind_accepted": Evidence(
        "its inputs carry the accepted difference of", "Module and operator; absent if they carry none."
    ),
    "after": Evidence("last calls that agree", "Calls whose records agree, if the error starts between them and the suspect."),
    "between_reference": Evidence("in between on the reference", "Calls there without a partner on the target."),
    "between_target": Evidence("in between on the target", "Calls there without a partner on the reference."),
    "between_operators": Evidence("what runs in between", "Operators of each side, in words; absent where they are many."),
    "drawn_between": Evidence(
        "random numbers in between", "Calls of either side in between, if each of them draws random numbers; else absent."
    ),
    "arguments_different": Evidence(
        "arguments that differ", "`name: reference / target`; devices and the run's own dtype are left out."
    ),
    "reference_shape": Evidence("shape on the reference", "Sizes of its output."),
    "target_shape": Evidence("shape on the target", "Sizes of its output."),
    "reference_output_dtype": Evidence("dtype on the reference", "Of its output."),
    "target_output_dtype": Evidence("dtype on the target", "Of its output."),
    "kept": Evidence(
        "kept of its output", "`tensors`, `sketch or statistics`, or `content id`: the least that either side kept."
    ),
    "relative_l2": Evidence("error", "Norm of the error relative to the norm of the reference, ordinary elements only."),
    "error_bits": Evidence("bits that agree", "-log2 of the error."),
    "error_cosine": Evidence("cosine of error and value", "Near 1 or -1 for a scale, near 0 for rounding."),
    "scale_slope": Evidence("target = reference times", "Least squares factor over all ordinary elements."),
    "scale_share": Evidence(
        "explained by that factor", "Share of the error's energy.", tests="one factor for all values", unit="%"
    ),
    "different_values": Evidence("different values", "Of the reference, ordinary elements only: one value fits any factor."),
    "amount_share": Evidence(
        "explained by one amount that is added",
        "Share of the error's energy; values that hardly vary fit an amount as well as a factor.",
        unit="%",
    ),
    "curve_share": Evidence(
        "error is a curve over the input", "Share of the error's energy that a function of the input explains.", unit="%"
    ),
    "narrow_type": Evidence("all values fit into", "Narrower type that holds the target's values but not the reference's."),
    "wrapped_type": Evidence(
        "wraps like", "Narrower integer type at whose end the target's values wrapped around; absent if there is none."
    ),
    "wraps_at": Evidence("wraps at", "The first number that does not fit into this type."),
    "epsilon_reference": Evidence("epsilon of the reference", "As recorded, or PyTorch's default."),
    "epsilon_target": Evidence("epsilon that explains the target", "Fitted from the input and both outputs."),
    "epsilon_share": Evidence("explained by that epsilon", "Share of the error's energy.", tests="another epsilon", unit="%"),
    "nonfinite_reference": Evidence("NaN or Inf on the reference", "Elements of its output."),
    "nonfinite_target": Evidence("NaN or Inf on the target", "Elements of its output."),
    "nonfinite_target_only": Evidence("NaN or Inf on the target only", "Elements that are numbers on the reference."),
    "overflow_share": Evidence(
        "broken where float16 ends", "Share of broken elements whose reference value is beyond 65504.", unit="%"
    ),
    "reference_max": Evidence("largest value on the reference", "Finite magnitude."),
    "masked_reference": Evidence("masked on the reference", "Elements with a fill value, or exact zeros after a softmax."),
    "masked_target": Evidence("masked on the target", "The same on the target."),
    "masked_different": Evidence("masked on one side only", "Elements."),
}


def gather(
    observed: ObservedCall,
    judged: Judged,
    *,
    same_dtype: bool,
    introduced: IntroducedError | None = None,
    sources: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the evidence about one suspect, by the names of ``names.EVIDENCE``.

    Args:
        observed: What both sides recorded.
        judged: Status of its output.
        same_dtype: Both runs have the same floating point type.
        introduced: What float64 at the target's own inputs said about it; ``None`` where it was not evaluated.
        sources: For each input that another call made on the target, a sentence that says so.
    """
    # Evidence knows an aten operator by the torch function that does the same.
    function = operator_families.name_as_function(observed.reference.operator)
    observed = replace(observed, reference=msgspec.structs.replace(observed.reference, operator=function))
    evidence = {**_describe_call(observed, judged), **_compare_calls(observed, same_dtype=same_dtype)}
    if sources:
        evidence["wired_differently"] = list(sources)
    if introduced is not None:
        evidence |= {
            "introduced_rho": introduced.rho,
            "introduced_measure": introduced.measure,
            "introduced_fault": introduced.is_fault,
            "introduced_systematic": introduced.is_systematic,
            "half_steps": introduced.has_half_steps or None,
            "introduced_factor_share": introduced.factor_share or None,
        }
    if introduced is not None and (introduced.measure == "settings" or introduced.is_inside):
        pass  # what its output looks like beside the reference's comes from the settings, or from a gradient inside
    elif observed.output is not None:
        family = str(evidence["family"])
        evidence |= _measure_error(observed, observed.output) | _gather_by_family(family, observed, observed.output)
        evidence |= in_place.gather(observed)
    else:
        evidence |= _compare_statistics(*observed.records) | _find_wrap(observed)
    return {name: value for name, value in evidence.items() if value is not None}


def _describe_call(observed: ObservedCall, judged: Judged) -> dict[str, Any]:
    suspect, call = observed.suspect, observed.reference
    operator = call.operator or operator_families.operator_of_class(call.class_name)
    if not call.operator and call.phase != "forward":  # rules about an operator are about its forward
        operator = call.phase if call.phase == "optimizer" else f"{operator or 'module'} {call.phase}"
    return {
        "name": suspect.name,
        "record": name_record(parse_identity(suspect.record)),
        "module": suspect.module,
        "operator": operator or "module",
        "family": "matmul" if observed.product is not None else operator_families.find_family(operator),
        "site": suspect.site,
        "why_suspect": suspect.why,
        "status": judged.status,
        "ratio": suspect.ratio,
        "movement": call.movement,
        "accumulated": suspect.inputs_use > lines.ACCUMULATED,
        "inputs_use": suspect.inputs_use,
        "inputs_equal": observed.inputs_equal or (False if observed.inputs_differ else None),
        "inputs_differ": observed.inputs_differ,
        "input_shapes_equal": observed.input_shapes_equal,
        "shape_follows_values": operator in _VALUE_SHAPED,
        "changed": suspect.changed or None,
        "given_differently": suspect.outside or None,
        "behind_accepted": suspect.accepted or None,
        "other_weight": suspect.weight or None,
        "after": list(suspect.after) or None,
        "between_reference": list(suspect.between_reference) or None,
        "between_target": list(suspect.between_target) or None,
        "drawn_between": _find_draws((*suspect.between_reference, *suspect.between_target)) or None,
        "between_operators": _list_operators(suspect) or None,
    }


def describe_lone(suspect: Suspect) -> dict[str, Any]:
    """Return what is known of a call that the target alone makes: its place, and no values that could be compared."""
    evidence = {
        "name": suspect.name,
        "record": name_record(parse_identity(suspect.record)),
        "module": suspect.module,
        "operator": suspect.operator or "module",
        "site": suspect.site,
        "why_suspect": suspect.why,
        "ratio": suspect.ratio,
        "after": list(suspect.after) or None,
        "between_target": list(suspect.between_target) or None,
        "drawn_between": _find_draws(suspect.between_target) or None,
    }
    return {name: value for name, value in evidence.items() if value is not None}


def _list_operators(suspect: Suspect) -> str:
    """Return which operators each side runs where the error starts, ``""`` where only one side has any, or they are many."""
    here, there = ([find_operator(name) for name in names] for names in (suspect.between_reference, suspect.between_target))
    if not (here and there) or len(here) + len(there) > _MOST_OPERATORS:
        return ""
    return f"{', '.join(here)} on the reference, {', '.join(there)} on the target"


def _find_draws(between: Sequence[str]) -> list[str]:
    """Return the calls that draw random numbers, if nothing else but movement lies between what agrees and what does not."""
    drawing = [name for name in between if operator_families.find_family(find_operator(name)) == "random"]
    return drawing if len(drawing) == len(between) else []


def _compare_calls(observed: ObservedCall, *, same_dtype: bool) -> dict[str, Any]:
    """Return how the two calls differ, without looking at values."""
    here, there = observed.records
    sides = [record for record in (here, there) if record is not None]
    if all(record.stored for record in sides):
        kept = "tensors"
    elif all(record.stored or record.statistics is not None for record in sides):
        kept = "sketch or statistics"
    else:
        kept = "content id"
    reference, target = observed.reference, observed.target
    return {
        "arguments_different": [
            *find_different_arguments(reference, target, same_dtype=same_dtype),
            *find_further_tensors(reference, target),
        ]
        if target is not None
        else [],
        "reference_shape": list(here.shape),
        "elements": math.prod(here.shape),
        "reference_output_dtype": here.dtype,
        "kept": kept,  # the least that either side kept
        **({"target_shape": list(there.shape), "target_output_dtype": there.dtype} if there is not None else {}),
    }


def _measure_error(observed: ObservedCall, output: TensorPair) -> dict[str, Any]:
    here, there = output.reference[output.ordinary], output.target[output.ordinary]
    fitted, error = error_shape.fit_scale(here, there), error_shape.measure_relative_error(here, there)
    broken = nonfinite.count_nonfinite(output.reference, output.target)
    return {
        "relative_l2": error,
        "error_bits": None if error is None else error_shape.count_error_bits(error),
        "error_cosine": error_shape.measure_error_cosine(here, there),
        "scale_slope": fitted.slope if fitted else None,
        "scale_share": fitted.share if fitted else None,
        "different_values": np.unique(here[:: max(1, here.size // _SAMPLE)]).size,
        "amount_share": error_shape.measure_amount_share(here, there),
        "narrow_type": _find_narrow_type(observed, output),
        "nonfinite_reference": broken.reference,
        "nonfinite_target": broken.target,
        "nonfinite_target_only": broken.target_only,
        "overflow_share": broken.overflow_share,
        "reference_max": broken.reference_max,
    }


def _compare_statistics(one: Record, other: Record | None) -> dict[str, Any]:
    """Return what statistics tell about NaN and infinity if the tensors were not kept."""
    here, there = one.statistics, other.statistics if other is not None else None
    if here is None or there is None:
        return {}
    largest = max(abs(here.minimum or 0.0), abs(here.maximum or 0.0))
    broken = there.nonfinite > here.nonfinite
    beyond = broken and other is not None and other.dtype == "float16" and largest >= nonfinite.HALF_MAX
    return {
        "nonfinite_reference": here.nonfinite,
        "nonfinite_target": there.nonfinite,
        "nonfinite_target_only": max(0, there.nonfinite - here.nonfinite),
        "overflow_share": float(beyond),
        "reference_max": largest,
    }


def _find_narrow_type(observed: ObservedCall, output: TensorPair) -> str:
    """Return the narrower type that holds the target's values, ``""`` if the reference's values fit into it too."""
    _, other = observed.records
    if other is None or other.dtype not in (*_WIDE, "float16"):  # a narrow tensor holds narrow values anyway
        return ""
    if error_shape.has_fixed_step(output.target, output.reference):
        return ""
    if other.dtype == "float16":  # values of bfloat16 have three bits less
        normal = (side[np.abs(side) >= _SMALLEST_NORMAL] for side in (output.target, output.reference))
        own, others = (error_shape.find_narrow_type(side) for side in normal)
        return own if own == "bfloat16" != others else ""
    if output.target.size == 1 and np.isfinite([output.reference, output.target]).all():
        return error_shape.find_narrow_number(output.reference.item(), output.target.item())
    narrow = error_shape.find_narrow_type(output.target)
    return "" if narrow == error_shape.find_narrow_type(output.reference) else narrow


def _find_wrap(observed: ObservedCall) -> dict[str, Any]:
    """Return the type in which whole numbers wrapped, and where it ends, for outputs of whole numbers."""
    if observed.whole is None:
        return {}
    here, there = (side.output for side in observed.whole)
    if here.shape != there.shape or not {here.dtype.kind, there.dtype.kind} <= {"i", "u"}:
        return {}
    found = wraps.find_wrapped_type(here.astype(np.float64), there.astype(np.float64))
    return {} if found is None else {"wrapped_type": found[0], "wraps_at": found[1]}


def _gather_by_family(family: str, observed: ObservedCall, output: TensorPair) -> dict[str, Any]:
    if family == "normalisation":
        return _fit_epsilon(observed, output)
    if family == "activation" and observed.inputs and observed.inputs[0].reference.shape == output.reference.shape:
        # An approximate activation makes an error that depends on the input alone.
        error = output.target - output.reference
        return {"curve_share": error_shape.measure_curve_share(observed.inputs[0].reference, error)}
    if family in {"masking", "softmax"}:
        if family == "softmax":  # the fill values of a mask have become exact zeros
            # A mask gives the weights of some keys to others, so that a row that does not add up to one has another fault.
            sums = [np.sum(side, axis=1, keepdims=True) for side in (output.reference, output.target)]
            wide = all(record is None or record.dtype in _WIDE for record in observed.records)
            most = _ONE_OF_WIDE if wide else _ONE
            adds_up = (np.abs(sums[1] - sums[0]) <= most) | (np.abs(sums[0] - 1.0) > _ONE)
            output = replace(output, target=np.where(adds_up, output.target, output.reference))
            masked = (output.reference == 0.0, output.target == 0.0)
            smallest = max(_SMALLEST_ATTENTION.get(record.dtype, 1e-6) for record in observed.records if record is not None)
            counts = nonfinite.count_masked_weights(output.reference, output.target, smallest)
        else:
            masked = (output.filled_reference, output.filled_target)
            counts = nonfinite.count_masked(*masked)
        shape = observed.records[0].shape
        whole = [one.reshape(shape) for one in masked] if masked[0].size == math.prod(shape) else None  # thinned otherwise
        return {
            "masked_reference": counts.reference,
            "masked_target": counts.target,
            "masked_different": counts.different,
            "mask_pattern": masks.describe_mask(*whole) if whole and counts.different else None,
        }
    return {}


def _fit_epsilon(observed: ObservedCall, output: TensorPair) -> dict[str, Any]:
    call = observed.reference
    known = _EPSILON.get(call.operator or operator_families.operator_of_class(call.class_name))
    # The fit is over rows of the last axis. Without a recorded ``normalized_shape``, such as "(768,)", one axis is assumed.
    shape = call.arguments.get("normalized_shape", call.arguments.get("1", "0"))
    is_over_last_axis = len(re.findall(r"\d+", shape)) == 1
    if known is None or call.phase != "forward" or not is_over_last_axis:
        return {}
    position, centred = known
    epsilon = read_number(call.arguments, "eps", position, _DEFAULT_EPSILON)
    fitted = None
    if observed.inputs and observed.inputs[0].reference.shape == output.reference.shape:
        pair = observed.inputs[0]
        fitted = normalisation.fit_epsilon(pair.reference, output.reference, output.target, epsilon, centred=centred)
    return {
        "epsilon_reference": epsilon,
        "epsilon_target": fitted.epsilon if fitted else None,
        "epsilon_share": fitted.share if fitted else None,
    }


def find_different_arguments(reference: Call, target: Call, *, same_dtype: bool) -> list[str]:
    """Return ``name: reference / target`` for each argument that differs without a good reason.

    Devices differ on purpose. If the two runs have different element types, dtype arguments and mask fill constants do too. An
    optimizer has settings that choose an implementation of the same formula, its class among them; and one that a side does not
    know says nothing: versions of torch add some. What it does there, its steps show.
    """
    different = pairing.find_different_arguments(reference, target)
    if reference.phase == OPTIMIZER:
        different = {
            name: both
            for name, both in different.items()
            if pairing.ABSENT not in both and name not in {*IMPLEMENTATIONS, OPTIMIZER_CLASS}
        }
    return [f"{name}: {one} / {other}" for name, (one, other) in different.items() if not _is_expected(one, other, same_dtype)]


def find_further_tensors(reference: Call, target: Call) -> list[str]:
    """Return the tensors that one side gives a call beside all that the other gives, such as a bias, as arguments are shown.

    A tensor that has another name there, as a mask by its place and by its keyword, is none.
    """
    if reference.phase != FORWARD:
        return []
    here, there = ({record.index: record for record in call.inputs} for call in (reference, target))
    if here.keys() <= there.keys():
        more, arguments, say = there, reference.arguments, f"{pairing.ABSENT} / {{}}"
    elif there.keys() <= here.keys():
        more, arguments, say = here, target.arguments, f"{{}} / {pairing.ABSENT}"
    else:
        return []
    alone = [record for index, record in more.items() if index not in {*here} & {*there} and index not in arguments]
    return [f"{record.index}: {say.format(record.weight or pairing.A_TENSOR)}" for record in alone]


def read_number(arguments: Mapping[str, str], name: str, position: int, default: float) -> float:
    """Return a number among the arguments, by name or by position; the default if there is none.

    >>> read_number({"4": "1e-06"}, "eps", 4, 1e-5)
    1e-06
    """
    try:
        return float(arguments.get(name, arguments.get(str(position), default)))
    except ValueError:
        return default


def _is_expected(one: str, other: str, same_dtype: bool) -> bool:  # noqa: FBT001  # private, and named at its one call
    if _DEVICE.search(one) and _DEVICE.search(other):
        return True
    if same_dtype:
        return False
    return bool(_DTYPE.search(one) and _DTYPE.search(other)) or (_is_fill(one) and _is_fill(other))


def _is_fill(text: str) -> bool:
    try:
        return abs(float(text)) > _FILL
    except ValueError:
        return False
