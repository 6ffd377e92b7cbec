"""Every piece of evidence that a rule may name: what it is called on a screen and what it means.

A name is here or it does not exist: rules that use another one are refused when they are loaded.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Named(NamedTuple):
    """One piece of evidence: the words of a screen, and the meaning with unit and denominator."""

    label: str
    meaning: str


_RUN = {
    "recipe": Named("recipe", "Name of the recipe."),
    "keep_tensors": Named("keeps tensors", "The override with which a run of this recipe keeps the tensors of its suspects."),
    "reference_dtype": Named("reference dtype", "Floating point type of the reference."),
    "target_dtype": Named("target dtype", "Floating point type of the target."),
    "low_precision": Named("low precision", "Either side computes in 16 bits or fewer."),
    "damage": Named("damaged", "What of the dumps is missing, torn, cut short, or was never sealed; up to five."),
    "emulated": Named("emulated", "Either side is emulated."),
    "failing": Named("records over their limit", "Number of records that fail, or differ in shape, dtype or finiteness."),
    "suspect_count": Named("calls that introduce an error", "Number of suspects."),
    "suspects_all_matmul": Named("all of them multiply matrices", "Every suspect is of the family matmul; false without any."),
    "weights_different": Named("weights that differ", "Up to five names."),
    "weights_different_count": Named("number of weights that differ", "Weights that differ or are on one side only."),
    "inputs_different": Named("inputs that differ", "Up to five names."),
    "inputs_different_count": Named("number of inputs that differ", "Inputs that differ or are on one side only."),
    "seed_reference": Named("seed of the reference", "As the agent set it."),
    "seed_target": Named("seed of the target", "As the agent set it."),
    "device_draws": Named("random numbers drawn on the device", "Operators whose numbers were not drawn on CPU and moved."),
    "unrepeatable_reference": Named(
        "reference changes at", "Module and operator of records that change between equal runs, in order."
    ),
    "unrepeatable_target": Named("target changes at", "The same on the target."),
    "misspelt_variables": Named("environment variables", "Wrongly spelt names and the names that they resemble."),
    "package_differences": Named(
        "packages that differ", "`name: reference / target`, those first that the recipe wants the same."
    ),
    "matmul_switches": Named("switch for matrix products", "TF32, HF32 and their like, in effect on one side only."),
    "convolution_switches": Named("switch for convolutions", "The same for convolutions."),
    "unpaired_reference": Named("only on the reference", "Up to five names of calls without a partner."),
    "unpaired_target": Named("only on the target", "The same on the target."),
    "overflow_reference": Named(
        "overflow begins on the reference at", "First call that makes saturated values, infinity and NaN, each with its count."
    ),
    "overflow_target": Named("overflow begins on the target at", "The same on the target."),
    "overflow_both": Named("the same call on both sides", "Calls that are the first to make a kind on both sides."),
    "overflow_kind": Named(
        "first on the target only", "`saturated`, `infinity` or `nan`: the first kind that only the target has."
    ),
    "overflow_starts": Named("where that begins", "Module and operator."),
    "overflow_ends": Named("kinds that follow", "Further kinds that only the target has, in order."),
    "left_out_reference": Named(
        "steps that the reference leaves out", "Its gradients are not finite, and its optimizer did nothing; the target's did."
    ),
    "left_out_target": Named("steps that the target leaves out", "The same on the target."),
    "left_out_both": Named("steps that both leave out", "Gradients are not finite, and neither optimizer did anything."),
    "unpaired_count": Named("records without a partner", "Number of judged records that are on one side only."),
}
_SUSPECT = {
    "name": Named("where", "Module and operator."),
    "module": Named("module", "Qualified name of the module."),
    "operator": Named("operator", "Canonical name of the operator; `module` for a module."),
    "family": Named(
        "family", "matmul, normalisation, softmax, activation, masking, random, reduction, attention, module, other."
    ),
    "site": Named("called at", "Place in the source."),
    "why_suspect": Named("on the graph", "Why it is under suspicion."),
    "status": Named("status", "Status of its output."),
    "ratio": Named("times its limit", "How far over its limit; above 1 fails."),
    "movement": Named("pure movement", "The operator only moves values."),
    "accumulated": Named("inputs near their limit", "An input uses more than half of its limit already."),
    "inputs_use": Named(
        "share of their limit that inputs use", "Largest of the passing records that it is computed from, 0 to 1."
    ),
    "inputs_equal": Named("inputs bitwise equal", "All inputs and weights have the same bits on both sides."),
    "changed": Named("changed in between", "Which tensor of its is not what its maker returned, with that call and its place."),
    "arguments_different": Named(
        "arguments that differ", "`name: reference / target`; devices and the run's own dtype are left out."
    ),
    "reference_shape": Named("shape on the reference", "Sizes of its output."),
    "target_shape": Named("shape on the target", "Sizes of its output."),
    "reference_output_dtype": Named("dtype on the reference", "Of its output."),
    "target_output_dtype": Named("dtype on the target", "Of its output."),
    "kept": Named("kept of its output", "`tensors`, `sketch or statistics`, or `content id`: the least that either side kept."),
    "relative_l2": Named("error", "Norm of the error relative to the norm of the reference, ordinary elements only."),
    "error_bits": Named("bits that agree", "-log2 of the error."),
    "error_cosine": Named("cosine of error and value", "Near 1 or -1 for a scale, near 0 for rounding."),
    "scale_slope": Named("target = reference times", "Least squares factor over all ordinary elements."),
    "scale_share": Named("explained by that factor", "Share of the error's energy, 0 to 1."),
    "curve_share": Named(
        "error is a curve over the input", "Share of the error's energy that a function of the input explains, 0 to 1."
    ),
    "narrow_type": Named("all values fit into", "Narrower type that holds the target's values but not the reference's."),
    "epsilon_reference": Named("epsilon of the reference", "As recorded, or PyTorch's default."),
    "epsilon_target": Named("epsilon that explains the target", "Fitted from the input and both outputs."),
    "epsilon_share": Named("explained by that epsilon", "Share of the error's energy, 0 to 1."),
    "nonfinite_reference": Named("NaN or Inf on the reference", "Elements of its output."),
    "nonfinite_target": Named("NaN or Inf on the target", "Elements of its output."),
    "nonfinite_target_only": Named("NaN or Inf on the target only", "Elements that are numbers on the reference."),
    "overflow_share": Named("broken where float16 ends", "Share of broken elements whose reference value is beyond 65504."),
    "reference_max": Named("largest value on the reference", "Finite magnitude."),
    "masked_reference": Named("masked on the reference", "Elements with a fill value, or exact zeros behind a softmax."),
    "masked_target": Named("masked on the target", "The same on the target."),
    "masked_different": Named("masked on one side only", "Elements."),
}
EVIDENCE: dict[str, Named] = {**_RUN, **_SUSPECT}
"""Name -> label and meaning. Names of a suspect are known only in rules about one."""
OF_SUSPECT = frozenset(_SUSPECT)


_NEAR_ONE = 0.9
_LISTED = 5


def shown(value: Any) -> str:
    """Return a value of evidence as a person reads it.

    Near 1, where shares and factors are, five digits are shown; elsewhere three. Of lists the first five.

    >>> shown(True), shown(0.00123456), shown(0.9998), shown(["a", "b"]), shown((2, 3)), shown([])
    ('yes', '0.00123', '0.9998', 'a, b', '2, 3', 'none')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}" if _NEAR_ONE < abs(value) < 1.0 / _NEAR_ONE else f"{value:.3g}"
    if isinstance(value, (list, tuple)):
        more = [f"and {len(value) - _LISTED} more"] if len(value) > _LISTED else []
        return ", ".join([*(shown(item) for item in value[:_LISTED]), *more]) or "none"
    return str(value)
