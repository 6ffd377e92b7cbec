"""Which operators introduce an error of their own, in place: by float64 at the target's own inputs.

A failing record says little about who is wrong: what an operator was given may have been wrong already, and errors grow and
shrink on their way. So each operator is judged alone. Take what the target recorded of a call, its inputs x and its output y,
compute y again from x in float64 with the *reference's* arguments, and compare the error with the reference's own::

    eta = || y - f64(x) || / S          S = || f64(x) ||, or || sum of |terms| || where a sum may cancel
    rho = eta of the target / max(eta of the reference, half a rounding)

What arrived wrong is on both sides of the subtraction, so it cancels: faults one behind the other are all named, and calls
that only pass an error on are cleared. ``rho`` is near 1 for a correct chip at any depth and in the backward pass.

In low precision one rounding hides everything smaller than 0.2 %, so the *residue* is looked at instead of its size: what is
left after float64 must look like rounding. ``z`` is the error in units of the rounding's standard deviation::

    variance    mean of z^2: more roundings inside than one
    slope       |sum z w| with weights w that follow the value: a wrong scale
    curve       largest |sum z| / sqrt(n) over bins of the value: a wrong curve
    largest     largest |z|: a single wrong element

Slope and curve say which way the errors point, and are divided by the target's own scatter, ``sqrt(variance)``: a function that
is off by an ulp or two in a table's way, the same at neighbouring arguments, has errors that are large and point nowhere.
Each is divided by that of the reference and of a control (float64 at the same inputs, rounded once), whichever is larger:
inputs of few distinct values leave residues that do not average out, on correct chips too. More roundings inside are a
property of a chip's kernel as long as all calls of an operator show them, and so is a curve that is off by an ulp; variance,
curve and largest are therefore also divided by the median of the same output of the target's other calls of the operator, and
only a very large variance or curve is a fault by itself. Variance and largest element are in units of the rounding of what a
function adds up inside, where that is known: a LayerNorm in bfloat16 may round ``h * w`` before it adds its bias.

The agent computes the numbers (:mod:`precflow.agent.replay`); the lines are in :mod:`precflow.judgement.lines`.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from precflow.judgement import lines
from precflow.numbers import number

MATMUL, MOVEMENT, RANDOM, PARTS, REDUCTION = "matmul", "movement", "random", "parts", "reduction"
_ADDING = frozenset({MATMUL, REDUCTION})  # a chip may round their partial sums, or cut them off
_ROUNDING_INSIDE = _ADDING | {PARTS}  # in 16 bits
_RESIDUES = ("variance", "slope", "curve", "largest")
_DIRECTED = ("slope", "curve")
_OF_CHIPS = ("variance", "curve", "largest")  # a property of kernels before it is a fault
_ALONE = {"variance": lines.VARIANCE_ALONE, "curve": lines.CURVE_ALONE, "largest": lines.LARGEST_ALONE}
_NO_STEPS = frozenset({"softmax", "exp", "silu", "gelu"})  # computed in float32 they leave no fixed step on either side of zero
_ENOUGH = 100  # calls of an operator that say what is usual
_FLOORS = (lines.VARIANCE_FLOOR, lines.SLOPE_FLOOR, lines.CURVE_FLOOR, lines.LARGEST_FLOOR)


@dataclass(frozen=True)
class SideNumbers:
    """What the agent measured of one side's output of a call.

    Attributes:
        dtype: Element type of the output.
        elements: Number of elements that were compared.
        eta: Relative error against float64; see the module. ``None`` for integers and where nothing ordinary is left.
        unit: Half a unit in the last place of 1 of the type: ``2^-24`` for float32.
        worst_row: Largest error of a row, relative to that row's norm or the median row's.
        cosine: Cosine between the error and the output.
        equal: The output has the bits that pure movement of the inputs gives; for other operators without meaning.
        variance: See the module.
        slope: See the module.
        curve: See the module.
        largest: See the module.
        scale: ``S``; see the module.
        nonfinite: Number of elements that are NaN or infinite, in the output or in float64 rounded to its type.
        filled: Number of elements that are mask fills.
        misplaced: Number of elements that are NaN, infinite or a mask fill on one of the two only, or integers that differ.
        control: The four residues, ``eta`` and ``worst_row`` of float64 at the same inputs, rounded once to the type.
        errors: What standards asked for, see :mod:`precflow.agent.replay.errors`; empty if none did.
        partial_sums: ``eta`` and ``worst_row`` of a chip that rounds partial sums at these inputs, see
            :mod:`precflow.agent.replay.partial_sums`; empty where the error is near the reference's, and where it is not known.
        half_steps: Of a bfloat16 output: its smallest values, see :mod:`precflow.agent.replay.half_steps`.
        other_form: Of a function with two forms in 16 bits: how many elements have the bits of each, see
            :mod:`precflow.agent.replay.other_forms`.
        inner: ``variance`` and ``largest``, with those of the control under ``control``, in units of the rounding of what the
            function adds up inside, see :mod:`precflow.agent.replay.inner_terms`; empty where nothing is known.
    """

    dtype: str
    elements: int = 0
    eta: float | None = None
    scale: float = 0.0
    unit: float = 0.0
    worst_row: float = 0.0
    cosine: float = 0.0
    equal: bool = False
    variance: float = 0.0
    slope: float = 0.0
    curve: float = 0.0
    largest: float = 0.0
    nonfinite: int = 0
    filled: int = 0
    misplaced: int = 0
    control: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, Any] = field(default_factory=dict)
    partial_sums: Mapping[str, float] = field(default_factory=dict)
    half_steps: Mapping[str, float] = field(default_factory=dict)
    other_form: Mapping[str, int] = field(default_factory=dict)
    inner: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluated:
    """One output of one call, as the agent evaluated it.

    Attributes:
        call: Text that names the call: the identity of its first output without role and index.
        index: Index of the output.
        kind: ``matmul`` (multiplies and adds up), ``movement``, ``sum``, ``random``, ``parts`` (a gradient that is added up
            from rounded ones), ``reduction`` (one that is summed over rows) or ``other``.
        evaluated: Both sides could be evaluated.
        why: Why not, in words.
        sides: ``reference`` and ``target``.
    """

    call: str
    index: str
    kind: str = "other"
    evaluated: bool = False
    why: str = ""
    sides: Mapping[str, SideNumbers] = field(default_factory=dict)


_WORDS = {
    "movement": "it only moves values, and its output does not have the bits of its inputs",
    "half_steps": "its smallest values are whole multiples of 2^-24, as those of float16 are, and float64 at the same inputs"
    " gives numbers in between, which bfloat16 has",
    "other_form": "it has the bits of the function's other form also where the two forms are rounded to different numbers",
    "misplaced": "its output has NaN, Inf or a mask's fill value where float64 at the same inputs has none, or the reverse",
}


@dataclass(frozen=True)
class IntroducedError:
    """What the numbers say about one output of a call.

    Attributes:
        call: The call, as in :class:`Evaluated`.
        index: Index of the output.
        kind: As in :class:`Evaluated`, or ``optimizer``.
        rho: The target's error in units of the reference's own; the largest residue ratio in low precision; of
            ``settings`` the relative difference between its step and one with the reference's settings.
        share: How much of its line it uses; above 1 it is a fault.
        measure: What uses most of its line: ``rho``, ``worst_row``, ``variance``, ``slope``, ``curve``, ``largest``,
            ``movement``, ``misplaced``, ``half_steps``, ``other_form``, ``step`` or ``settings`` (of an optimizer, see
            :mod:`precflow.diagnosis.training.replay`).
        is_fault: The operator introduces an error that rounding does not explain.
        is_systematic: The error follows the values (a wrong formula or scale) instead of looking like more rounding.
        note: Something worth knowing that is no fault, such as a matmul with reduced accumulation.
        is_reference_off: The reference's own error is beyond the line: it is no measure of what is right.
        eta_reference: Relative error of the reference's own output.
        eta_target: Relative error of the target's.
        settings: Settings of an optimizer that the target's step follows from, and not from the reference's, in words.
        has_half_steps: The smallest values of a bfloat16 output have the steps of float16, whatever else uses its line.
        factor_share: What is left of the target's error if its output is divided by one factor, in units of the error that a
            right operator of this kind may have: above 1 no factor alone explains it.
    """

    call: str
    index: str
    kind: str
    rho: float
    share: float
    measure: str
    is_fault: bool
    is_systematic: bool = False
    note: str = ""
    is_reference_off: bool = False
    eta_reference: float = 0.0
    eta_target: float = 0.0
    settings: str = ""
    factor_share: float = 0.0
    has_half_steps: bool = False

    @property
    def is_inside(self) -> bool:
        """It is a gradient inside of the module: one that arrives at a module in it, and no output of the call."""
        return "~" in self.index

    @property
    def text(self) -> str:
        """The evidence in one sentence."""
        if self.measure in _WORDS:
            return _WORDS[self.measure]
        if self.measure == "step":
            return (
                "its new weight is not what its optimizer's formula gives from its own gradient, state and settings:"
                f" the difference is {4 * self.rho:.3g} roundings"
            )
        if self.measure == "settings":
            return (
                f"its step is that of its own settings and not of the reference's: {self.settings};"
                f" from the target's own gradient the two are {self.rho:.2g} apart"
            )
        if self.measure == "worst_row":
            return f"at its own inputs its worst row is off by {self.rho:.3g} times what the reference's worst row is"
        if self.measure == "rho":
            return (
                f"given its own inputs, it is {number(100 * self.eta_target)} % off float64;"
                f" the reference, given its own, is {number(self.rho)} times closer"
            )
        kind = "follows the values" if self.is_systematic else "looks like more rounding inside"
        return (
            f"at its own inputs what rounding leaves is not that of one rounding: its {self.measure} is {self.rho:.3g} times"
            f" the reference's, so the error {kind}"
        )


class _Group:
    """Calls of one operator on the target that say what is usual of one of its outputs."""

    def __init__(self) -> None:
        self.members: list[tuple[str, SideNumbers]] = []
        self._usual: dict[str, Mapping[str, float]] = {}  # by the call that is left out, "" for none

    def find_usual(self, call: str) -> Mapping[str, float]:
        """Return the median of each residue over all other calls than this; empty if there are none. Ask when all are there."""
        left_out = call if any(name == call for name, _ in self.members) else ""
        if left_out not in self._usual:
            others = [numbers for name, numbers in self.members if name != left_out]
            self._usual[left_out] = (
                {name: statistics.median(_read_residue(each, name) for each in others) for name in _OF_CHIPS} if others else {}
            )
        return self._usual[left_out]


def decide_all(evaluated: Sequence[Evaluated], operators: Mapping[str, str]) -> list[IntroducedError]:
    """Return what the numbers say about each output of which they say anything.

    Args:
        evaluated: As the agent wrote it.
        operators: Call -> its operator.
    """
    # The mean that native_layer_norm returns beside its output does not say what is usual of that output: like goes with like.
    groups: dict[tuple[str, str], _Group] = defaultdict(_Group)
    for one in evaluated:
        if one.evaluated and one.sides["target"].eta is not None:
            group = groups[operators.get(one.call, ""), one.index]
            if len(group.members) < _ENOUGH and one.sides["target"].elements >= lines.SINGLE_DRAWS:
                group.members.append((one.call, one.sides["target"]))
    decided = []
    for one in evaluated:
        operator = operators.get(one.call, "")
        decided.append(decide_introduced(one, groups[operator, one.index].find_usual(one.call), operator))
    return [one for one in decided if one is not None]


def decide_introduced(  # noqa: PLR0911  one guard clause a kind
    evaluated: Evaluated, usual: Mapping[str, float] | None = None, operator: str = ""
) -> IntroducedError | None:
    """Return what the numbers say about one output; ``None`` where nothing could be said.

    Args:
        evaluated: As the agent wrote it.
        usual: Median of variance, curve and largest of this output of the target's other calls of this operator; empty if it
            has none.
        operator: Canonical name of the operator.
    """
    if not evaluated.evaluated or evaluated.kind == RANDOM:
        return None
    reference, target = evaluated.sides["reference"], evaluated.sides["target"]
    if evaluated.kind == MOVEMENT:
        if not reference.equal:  # the evaluation itself does not do what the reference does, so it proves nothing
            return None
        return _make(evaluated, "movement", 0.0 if target.equal else math.inf, 1.0, is_systematic=True)
    if not target.unit:  # integers: whether a decision is a fault is judged elsewhere
        return None
    if target.misplaced > reference.misplaced:
        return _make(evaluated, "misplaced", math.inf, 1.0)
    if target.eta is None or reference.eta is None:  # nothing ordinary is left to be measured
        return None
    own = _own_error(reference, target)
    rho = target.eta / own
    # A reference that is itself far from float64 (TF32 on the GPU, a composition that is not this operator's) still serves as
    # the scale: rho then only asks whether the target is much worse.
    line = max(_line_of(evaluated), _allow_partial_sums(target, "eta", own))
    by_size = _make(evaluated, "rho", rho, line, is_systematic=abs(target.cosine) > lines.TRUNCATION_COSINE)
    of_steps = _judge_half_steps(evaluated, reference, target, operator)
    if -math.log2(target.unit) >= lines.FINE_DIGITS or by_size.is_fault:
        return replace(by_size, has_half_steps=of_steps.is_fault)
    of_form = _make(evaluated, "other_form", _count_as_other_form(reference, target), lines.OTHER_FORM, is_systematic=True)
    worst = max(
        [by_size, of_steps, of_form, *_judge_residue(evaluated, reference, target, usual or {})], key=lambda found: found.share
    )
    return replace(worst, has_half_steps=of_steps.is_fault)


def _judge_half_steps(evaluated: Evaluated, reference: SideNumbers, target: SideNumbers, operator: str) -> IntroducedError:
    """Return whether the target's smallest values have the steps of float16, and the reference's do not.

    What adds up or multiplies may have a fixed step of its own, as an accumulator has whose terms are aligned to the largest.
    """
    counts = target.half_steps
    is_other = evaluated.kind == "other" and bool(counts) and not _are_whole(reference.half_steps, operator)
    bits = counts["bits"] if is_other and _are_whole(counts, operator) else 0.0
    return _make(evaluated, "half_steps", bits, lines.HALF_STEPS)


def _are_whole(counts: Mapping[str, float], operator: str) -> bool:
    """Tell whether all small values are in whole steps, with odd numbers of them on both sides of zero.

    One side is enough for an operator that has no fixed step there in float32.
    """
    if not counts or any(counts[f"{sign}_whole"] != counts[f"{sign}_small"] for sign in ("negative", "positive")):
        return False
    sides = [
        counts[f"{sign}_small"] >= lines.HALF_STEPS_FEWEST / 2 and counts[f"{sign}_odd"] > 0
        for sign in ("negative", "positive")
    ]
    enough = counts["negative_small"] + counts["positive_small"] >= lines.HALF_STEPS_FEWEST
    return enough and (any(sides) if operator in _NO_STEPS else all(sides))


def _count_as_other_form(reference: SideNumbers, target: SideNumbers) -> int:
    """Return the number of places that tell the target's form from the reference's; 0 if the bits are not those of one form."""
    ours, theirs = reference.other_form, target.other_form
    if not ours or not theirs or ours["as_own"] < lines.SAME_FORM * ours["places"]:
        return 0
    is_other = theirs["as_other"] >= lines.SAME_FORM * theirs["places"]
    is_rounded_once = theirs["as_both"] >= lines.SAME_FORM * theirs["elsewhere"]
    return theirs["as_other"] if is_other and is_rounded_once else 0


def _judge_residue(
    evaluated: Evaluated, reference: SideNumbers, target: SideNumbers, usual: Mapping[str, float]
) -> Iterable[IntroducedError]:
    """Yield what each residue says, and what the size of the error says of what adds up."""
    yield from _judge_sums(evaluated, reference, target)
    is_few = target.elements < lines.SINGLE_DRAWS
    for name, floor in zip(_RESIDUES, _FLOORS, strict=True):
        # Partial sums that a matmul rounds to its own type (split-K) are legal and raise variance and largest element.
        if evaluated.kind in _ROUNDING_INSIDE and name in {"variance", "largest"}:
            continue
        same_type = reference.dtype == target.dtype
        if name == "largest" and same_type and _read_size(reference, name) > lines.LARGEST_OF_REFERENCE:
            continue
        control = target.inner["control"] if name in target.inner else target.control
        least = max(floor, control.get(name, 0.0), _read_size(reference, name) if same_type else 0.0)
        value = _read_residue(target, name)
        if is_few and name == "variance":
            # What the others of so few elements show is as much luck, and so is how well the reference rounded them.
            yield _make(evaluated, name, value / max(floor, least / _rounding_of_few(target)), _variance_line(target))
            continue
        if name not in _OF_CHIPS:
            yield _make(evaluated, name, value / least, lines.RESIDUE, is_systematic=True)
            continue
        if name in usual and not is_few:
            yield _make(evaluated, name, value / max(least, usual[name]), lines.RESIDUE, is_systematic=name == "curve")
        if name in _ALONE:
            line = _variance_line(target) if name == "variance" else _ALONE[name]
            yield _make(evaluated, name, value / least, line, is_systematic=name == "curve")


def _judge_sums(evaluated: Evaluated, reference: SideNumbers, target: SideNumbers) -> Iterable[IntroducedError]:
    """Judge sums in 16 bits by the size of their error.

    The error is scaled by what is added up, which hides a wrong row or element; and variance and largest element say nothing,
    because partial sums may be rounded. So it is held to what rounded partial sums are off by at the same inputs, where that is
    known, and else to the reference's own error alone. That of a reference of another type, such as float32, says nothing about
    rounding to this one: there it is that of float64 rounded once. A reference that is exact (each row of a table was read
    once) has no error to measure by: that of one rounding counts then, and in a row the most that it can be.
    """
    if evaluated.kind not in _ROUNDING_INSIDE or target.elements < lines.FEWEST_ELEMENTS:
        return
    is_same = reference.dtype == target.dtype
    if evaluated.kind == REDUCTION:
        if is_same:
            # Where a sum cancels, rounded partial sums leave more than the rounding of the result, which is all that another
            # reference may show.
            least = _own_error(reference, target)
            yield _make(evaluated, "rho", (target.eta or 0.0) / least, _line_of_sums(target, "eta", least))
        return
    for measure, name, rounding in (
        ("rho", "eta", lines.SMALLEST_ERROR),
        ("worst_row", "worst_row", lines.SMALLEST_ERROR_OF_FEW),
    ):
        own, value = getattr(reference, name) if is_same else target.control.get(name), getattr(target, name)
        if own is not None and value is not None:
            own = own or rounding * target.unit
            yield _make(evaluated, measure, value / own, _line_of_sums(target, name, own))


def _line_of_sums(target: SideNumbers, name: str, own: float) -> float:
    """Return the line of a 16-bit sum's ``eta`` or ``worst_row``, in units of the reference's own."""
    if name not in target.partial_sums:
        return lines.MATMUL_IN_16_BITS
    return max(lines.SUMS_IN_16_BITS, _allow_partial_sums(target, name, own))


def _allow_partial_sums(target: SideNumbers, name: str, own: float) -> float:
    """Return what a chip that rounds partial sums may be off by, in units of the reference's own; 0 where it is not known."""
    factor = lines.PARTIAL_SUMS if name == "eta" else lines.PARTIAL_SUMS_ROW
    return factor * target.partial_sums.get(name, 0.0) / own


def _own_error(reference: SideNumbers, target: SideNumbers) -> float:
    """Return what rho divides by: the reference's own error, and at least that of one rounding of so many elements."""
    least = lines.SMALLEST_ERROR_OF_FEW if target.elements < lines.FEWEST_ELEMENTS else lines.SMALLEST_ERROR
    return max(reference.eta or 0.0, least * target.unit)


def _variance_line(numbers: SideNumbers) -> float:
    """Return the line of the variance by itself: the fewer the elements, the more of it is luck."""
    luck = lines.VARIANCE_LUCK * lines.VARIANCE_SPREAD / math.sqrt(max(numbers.elements, 1))
    return max(lines.VARIANCE_ALONE, min(12.0 * lines.UNITS_OFF**2, lines.VARIANCE_USUAL + luck))


def _rounding_of_few(numbers: SideNumbers) -> float:
    """Return the variance that one rounding of so few elements may show."""
    return min(lines.ROUNDING_MOST, 1.0 + lines.VARIANCE_LUCK * lines.ROUNDING_SPREAD / math.sqrt(max(numbers.elements, 1)))


def _read_residue(numbers: SideNumbers, name: str) -> float:
    """Return a residue; slope and curve in units of the errors' own scatter."""
    if name in _DIRECTED:
        value: float = getattr(numbers, name)
        return value / math.sqrt(max(numbers.variance, 1.0))
    return _read_size(numbers, name)


def _read_size(numbers: SideNumbers, name: str) -> float:
    """Return a residue as it was measured; in units of the rounding of inner terms where these are known."""
    value: float = numbers.inner[name] if name in numbers.inner else getattr(numbers, name)
    return value


def _line_of(evaluated: Evaluated) -> float:
    return lines.INTRODUCED_MATMUL if evaluated.kind in _ADDING else lines.INTRODUCED


def _make(evaluated: Evaluated, measure: str, value: float, line: float, *, is_systematic: bool = False) -> IntroducedError:
    reference, target = evaluated.sides["reference"], evaluated.sides["target"]
    note = ""
    if evaluated.kind == MATMUL and measure == "rho" and lines.REDUCED < value <= line:
        how = "rounds towards zero" if abs(target.cosine) > lines.TRUNCATION_COSINE else "has shortened operands"
        note = f"adds up with less precision ({value:.3g} times the reference's error): the accumulator {how}"
    return IntroducedError(
        call=evaluated.call,
        index=evaluated.index,
        kind=evaluated.kind,
        rho=value,
        share=math.inf if math.isnan(value) or not line else value / line,  # NaN would lose against any other output's share
        measure=measure,
        is_fault=not value <= line,  # NaN is a fault
        is_systematic=is_systematic,
        note=note,
        is_reference_off=(reference.eta or 0.0) > _line_of(evaluated) * lines.SMALLEST_ERROR * reference.unit > 0,
        eta_reference=reference.eta or 0.0,
        eta_target=target.eta or 0.0,
        factor_share=_measure_factor_share(evaluated, reference, target),
    )


def _measure_factor_share(evaluated: Evaluated, reference: SideNumbers, target: SideNumbers) -> float:
    """Return what one factor leaves of the target's error, over the most that rounding may leave; 0 if nothing was measured.

    The part of an error that points along the output is a factor; the rest stands at right angles to it.
    """
    if target.eta is None or reference.eta is None or not target.unit:
        return 0.0
    least = _own_error(reference, target)
    rest = target.eta * math.sqrt(max(0.0, 1.0 - target.cosine**2)) / least
    if -math.log2(target.unit) >= lines.FINE_DIGITS:
        return rest / _line_of(evaluated)
    adds = evaluated.kind in _ROUNDING_INSIDE
    return rest / (_line_of_sums(target, "eta", least) if adds else math.sqrt(lines.VARIANCE_ALONE))


def find_classes(operators: Mapping[str, str], named: Iterable[str]) -> dict[str, str]:
    """Return operator -> a text such as ``all 12 calls of linear`` for operators whose calls are nearly all named.

    Args:
        operators: Call -> its operator, of every call that could be evaluated.
        named: The calls that introduce an error.
    """
    every = Counter(operators.values())
    wrong = Counter(operators[call] for call in set(named) if call in operators)
    classes = {}
    for operator, count in wrong.items():
        total = every[operator]
        if count >= lines.CLASS_MEMBERS and count >= lines.CLASS_SHARE * total:
            classes[operator] = f"{'all' if count == total else f'{count} of'} {total} calls of {operator}"
    return classes


def group_by_call(found: Sequence[IntroducedError]) -> dict[str, IntroducedError]:
    """Return, for each call, what its worst output says."""
    by_call: dict[str, list[IntroducedError]] = defaultdict(list)
    for one in found:
        by_call[one.call].append(one)
    return {call: max(outputs, key=lambda output: output.share) for call, outputs in by_call.items()}
