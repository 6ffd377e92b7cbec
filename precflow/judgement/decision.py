"""The status of one record: what can be said without a limit first, then every limit that applies to it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from precflow.comparison.measure import Measure
from precflow.config.schema import Tolerance
from precflow.dumps.dtypes import coarsest, is_floating
from precflow.judgement.accepted import AcceptedDifferences
from precflow.judgement.floors import MAIN_METRIC, Floor
from precflow.judgement.limits import (
    Condition,
    Use,
    describe_undecided,
    find_unavailable,
    is_blind,
    list_conditions,
    measure_uses,
)
from precflow.judgement.patterns import matches
from precflow.judgement.standards import Standard
from precflow.judgement.verdicts import BY_BITS, Judged
from precflow.metrics import find_metric

CLASS_FAILURES = {  # counts of elements that fail a record whatever its limits are: words for one element, and for several
    "sentinel_mismatch": (
        "1 mask fill value stands against an ordinary number",
        "{} mask fill values stand against ordinary numbers",
    ),
    "other_fill": (
        "1 mask fill value is another constant than the reference's",
        "{} mask fill values are other constants than the reference's",
    ),
    "saturated_mismatch": (
        "1 element has the largest value of its type on one side only",
        "{} elements have the largest value of their type on one side only",
    ),
}
EXACT = "exact"
"""Stands in place of a standard at integers and booleans, which no limit applies to."""
_NEED_NOT_BE_EQUAL = "integers or booleans that need not be equal"
_NONE: frozenset[Condition] = frozenset()
_NO_METRICS: frozenset[str] = frozenset()


class ZeroGradient(Enum):
    """How a gradient that is zero but for rounding decided a status (see :mod:`precflow.judgement.zero_gradients`)."""

    CERTAIN = "the record is such a gradient: blind"
    POSSIBLE = "the record may be such a gradient: it fails, and an accepted difference may say so"
    STEP = "the record is a weight that the optimizer changed by such a gradient: blind"


class Applicable(NamedTuple):
    """The conditions that apply to a record, in order and as a set."""

    conditions: Sequence[Condition]
    together: frozenset[Condition]


@dataclass(frozen=True, slots=True)
class Terms:
    """What a run is judged by.

    Attributes:
        reference_dtype: Floating point type of the reference's run.
        target_dtype: Floating point type of the target's run.
        standards: All of them must pass.
        tolerance: Plain limits and rules.
        floors: Identity text -> noise floor. Standards that measure their limits hold a record without one to fixed limits.
        carried: Identity text -> the coarsest type that its values went through, where that is coarser than its own.
    """

    reference_dtype: str
    target_dtype: str
    standards: Sequence[Standard]
    tolerance: Tolerance
    floors: Mapping[str, Floor] = field(default_factory=dict)
    carried: Mapping[str, str] = field(default_factory=dict)
    _known: dict[tuple[str, int, frozenset[str]], Applicable] = field(default_factory=dict, compare=False, repr=False)

    def conditions_for(self, dtype: str, rule: int, floored: frozenset[str] = _NO_METRICS) -> Applicable:
        """Return the conditions of records of one kind.

        A run has very many records and few kinds of them, so each kind's conditions are made once and shared.

        Args:
            dtype: Element type.
            rule: Number of the rule that they match; -1 for none.
            floored: Metrics that they have a noise floor in.
        """
        if (dtype, rule, floored) not in self._known:
            common = [condition for standard in self.standards for condition in _choose_limits(standard, dtype, floored)]
            common += list_conditions(self.tolerance, "tolerance")
            chosen = self.tolerance.rules[rule] if rule >= 0 else None
            own = list_conditions(chosen, chosen.match, chosen.because) if chosen else []
            # A rule replaces the limits that it names and leaves all others in force.
            replaced = {find_metric(condition.metric).family for condition in own}
            # The measured limits on the worst row and the worst element go with that on relative L2: a rule that allows a
            # record 5 % would otherwise be of no use.
            every = own + [
                condition
                for condition in common
                if find_metric(condition.metric if condition.least is None else MAIN_METRIC).family not in replaced
            ]
            self._known[dtype, rule, floored] = Applicable(every, frozenset(every))
        return self._known[dtype, rule, floored]


def _choose_limits(standard: Standard, dtype: str, floored: frozenset[str]) -> Sequence[Condition]:
    """Return the measured limits of a standard for records that have a floor, else its fixed ones."""
    measured = standard.measured.get(dtype, ()) if MAIN_METRIC in floored else ()
    return [condition for condition in measured if condition.metric in floored] or standard.limits.get(dtype, ())


@dataclass(frozen=True, slots=True)
class Decision:
    """One record's status and conditions.

    Attributes:
        judged: The status.
        failed: Conditions that it fails; none if the failure is accepted.
        applicable: Conditions that apply to it.
        decided: Those of them that could be decided: their metric has a meaning for the record and is known well enough.
        undecided: Those of them that what was kept of the record does not decide.
        zero_gradient: Set where a gradient that is zero but for rounding decided the status.
    """

    judged: Judged
    failed: frozenset[Condition] = frozenset()
    applicable: frozenset[Condition] = frozenset()
    decided: frozenset[Condition] = frozenset()
    undecided: frozenset[Condition] = frozenset()
    zero_gradient: ZeroGradient | None = None


def deciding_dtype(measure: Measure, terms: Terms) -> str:
    """Return the coarsest of both runs' and both records' floating point types: a standard's limits for it apply.

    A record without a noise floor counts as of the coarsest type that its values went through on the reference. float32 if none
    of all these is a type that has limits.
    """
    floor = terms.floors.get(measure.record)
    carried = "" if floor is not None and MAIN_METRIC in floor.metrics else terms.carried.get(measure.record, "")
    return _find_coarsest(terms.reference_dtype, terms.target_dtype, measure.reference_dtype, measure.target_dtype, carried)


@functools.lru_cache(maxsize=1024)  # asked for every record, and a run has a handful of combinations
def _find_coarsest(*names: str) -> str:
    return coarsest(names) or "float32"


def find_conditions(measure: Measure, terms: Terms) -> Applicable:
    """Return the conditions of a record: those of the first rule that matches, and all others on metrics it does not name."""
    rules = enumerate(terms.tolerance.rules)
    rule = next((number for number, rule in rules if matches(measure, rule.match, rule.phase)), -1)
    return terms.conditions_for(deciding_dtype(measure, terms), rule, _find_floored(measure, terms.floors.get(measure.record)))


def _find_floored(measure: Measure, floor: Floor | None) -> frozenset[str]:
    """Return the metrics in which a record is held to its noise floor.

    The worst row and the worst element count only where they are known exactly: bounds on them would leave most sketches
    undecided.
    """
    if floor is None or MAIN_METRIC not in floor.metrics:
        return _NO_METRICS
    exact = measure.metrics.keys() - measure.ranges.keys()
    return frozenset(name for name in floor.metrics if name == MAIN_METRIC or name in exact)


def decide(measure: Measure, terms: Terms, accepted: AcceptedDifferences) -> Decision:
    """Return the status of one record. A record that was not compared never passes."""
    early = _decide_without_limits(measure, terms)
    if early is not None:
        return Decision(early)
    accepted.note(measure)  # before it is known to fail: an entry that matches a passing record is "not needed any more"
    if measure.exact:
        return Decision(_decide_exactly(measure, accepted))
    applicable = find_conditions(measure, terms)
    floor = terms.floors.get(measure.record)
    uses = measure_uses(measure, applicable.conditions, floor.metrics if floor else {})
    unavailable = find_unavailable(measure, applicable.conditions)
    decision = _decide_by_limits(measure, terms, uses, unavailable, accepted)
    decided = [use.condition for use in uses if not use.is_undecided]
    undecided = [*(use.condition for use in uses if use.is_undecided), *unavailable]
    # Most records are decided by every condition of their kind. They share one set object, so that `judge._unite` meets a few
    # different sets and not one for each of a million records.
    return Decision(
        decision.judged,
        decision.failed,
        applicable=applicable.together,
        decided=applicable.together if len(decided) == len(applicable.conditions) else frozenset(decided),
        undecided=frozenset(undecided) if undecided else _NONE,
    )


def find_class_failures(measure: Measure) -> list[str]:
    """Return the counts of ``CLASS_FAILURES`` by which a record fails."""
    return [name for name in CLASS_FAILURES if measure.counts.get(name, 0)]


def _decide_without_limits(measure: Measure, terms: Terms) -> Judged | None:
    """Return the status if it needs no limit, else ``None``."""
    # The order matters: without a partner there is no type to compare, and NaN on one side fails even a record that has nothing
    # else in it.
    if not (measure.judged or measure.exact):
        return Judged(measure.record, "not_judged", reason="data movement" if measure.movement else _NEED_NOT_BE_EQUAL)
    if measure.join != "paired":
        return Judged(measure.record, measure.join, reason=measure.reason)
    if wrong := _describe_wrong_dtype(measure, terms):
        return Judged(measure.record, "dtype", reason=wrong)
    if mismatch := measure.counts.get("nonfinite_mismatch", 0):
        return Judged(measure.record, "nonfinite", reason=f"{mismatch} NaN or Inf on one side only, or of another kind")
    counts = measure.counts
    if not measure.ordinary_elements + counts.get("measured_fills", 0) and not find_class_failures(measure):
        empty = "it has no element" if not counts.get("elements", 0) else "every element is NaN, Inf or a mask's fill value"
        return Judged(measure.record, "blind", reason=f"nothing ordinary to compare: {empty}")
    return None


def _decide_exactly(measure: Measure, accepted: AcceptedDifferences) -> Judged:
    """Return the status of integers or booleans: they are equal on both sides, or they fail."""
    equal = 1.0 if measure.equal else measure.metrics.get("bitwise_equal")
    if equal == 1:
        return Judged(measure.record, "pass", "bitwise_equal", 1.0, 1.0, 0.0, EXACT)
    apart, between = measure.metrics.get("max_abs_error", 0.0), measure.ranges.get("max_abs_error")
    if equal is None and not (between[0] if between else apart):
        return Judged(measure.record, "undecided", reason="what was kept of it does not show whether its values are equal")
    is_accepted, why = accepted.decide(measure, {"bitwise_equal"})
    known = apart and not between and measure.reference_dtype != "bool"
    far = f", by at most {apart:g}" if known else ""
    reason = f"{measure.reference_dtype} values differ{far}; they have to be equal"
    status = "accepted" if is_accepted else "fail"
    text = why if is_accepted else "; ".join(filter(None, (reason, why)))
    return Judged(measure.record, status, "bitwise_equal", 0.0, 1.0, 1.0, EXACT, text)


def _describe_wrong_dtype(measure: Measure, terms: Terms) -> str:
    """Say that the target's type is not the one that the recipe implies, ``""`` if it is.

    A record in the reference's own type may become the target's own type (float32 to bfloat16). Any other record, such as a
    softmax that a bfloat16 model computes in float32, has to keep its type. Where an operator inside the model gives whole
    numbers on one side only, their values decide: a count of tokens is float32 on the CPU and int32 on an NPU, and neither is
    less precise.
    """
    one_is_whole = is_floating(measure.reference_dtype) != is_floating(measure.target_dtype)
    if one_is_whole and measure.operator and "max_abs_error" in measure.metrics:
        return ""
    expected = {measure.reference_dtype}
    if measure.reference_dtype == terms.reference_dtype:
        expected.add(terms.target_dtype)
    if measure.target_dtype in expected:
        return ""
    wanted = " or ".join(sorted(expected))
    return f"{measure.target_dtype} on the target, {measure.reference_dtype} on the reference; the recipe implies {wanted}"


def _decide_by_limits(
    measure: Measure, terms: Terms, uses: Sequence[Use], unavailable: Sequence[Condition], accepted: AcceptedDifferences
) -> Decision:
    """Return the status that the limits give, and what fails.

    Failing comes first: one limit that is exceeded for certain fails the record, whatever is unknown about the others.
    """
    failing = [use for use in uses if use.fails]
    if failing or find_class_failures(measure):
        return _fail(measure, failing or uses, accepted)
    undecided = [use for use in uses if use.is_undecided]
    if unavailable or undecided:
        reasons = [describe_undecided(use, measure) for use in undecided]
        reasons += [f"{condition.metric} is unavailable: {measure.absent[condition.metric]}" for condition in unavailable]
        return Decision(replace(_pass_by_tightest(measure, undecided), status="undecided", reason="; ".join(reasons)))
    dtype = deciding_dtype(measure, terms)
    # A limit that nothing plausible could fail proves nothing by passing. A record with such limits alone counts as blind.
    blind = [use for use in uses if is_blind(use.condition.metric, use.limit, dtype)]
    # Where rounding moves the tensor as a whole, the measured limits on its worst row and element prove nothing either.
    drowned = any(use.floor is not None and use.condition.metric == MAIN_METRIC for use in blind)
    able_to_fail = [use for use in uses if use not in blind and not (drowned and use.floor is not None)]
    judged = _pass_by_tightest(measure, able_to_fail or uses)
    if able_to_fail:
        return Decision(judged)
    if uses and (measure.equal or measure.metrics.get("bitwise_equal") == 1):
        return Decision(replace(judged, reason=BY_BITS))
    wide = ", ".join(dict.fromkeys(_describe_limit(use) for use in uses))
    reason = f"its limits are so wide that nothing could fail: {wide}" if uses else "no limit applies to it"
    return Decision(replace(judged, status="blind", reason=reason))


def _fail(measure: Measure, uses: Sequence[Use], accepted: AcceptedDifferences) -> Decision:
    """Return the status of a record that exceeds a limit or fails by a class of elements: ``fail`` or ``accepted``."""
    judged = _pass_by_tightest(measure, uses)  # names the limit that is exceeded most
    failing = frozenset(use.condition for use in uses if use.fails)
    classes = find_class_failures(measure)
    # An accepted difference of relative L2 covers the measured limits on the worst row and the worst element too.
    metrics = {condition.metric if condition.least is None else MAIN_METRIC for condition in failing}
    is_accepted, why = accepted.decide(measure, metrics | set(classes))
    if is_accepted:
        return Decision(replace(judged, status="accepted", reason=why))
    counted = [CLASS_FAILURES[name][measure.counts[name] > 1].format(measure.counts[name]) for name in classes]
    excess = _describe_excess(max(uses, key=lambda use: use.share)) if failing else ""
    reason = "; ".join(text for text in (*counted, excess, why) if text)
    return Decision(replace(judged, status="fail", reason=reason), failing)


def _pass_by_tightest(measure: Measure, uses: Sequence[Use]) -> Judged:
    """Return a passing status that names the condition that is used up most; callers replace the status."""
    if not uses:
        return Judged(measure.record, "pass")
    most = max(uses, key=lambda use: use.share)
    condition = most.condition
    return Judged(
        measure.record, "pass", condition.metric, most.value, most.limit, most.share, condition.source, floor=most.floor
    )


def _describe_excess(use: Use) -> str:
    limit, is_least = use.limit, find_metric(use.condition.metric).at_least
    bound = "at most " if is_least else "at least "  # even the bound nearest to the perfect value exceeds the limit
    name = f"{use.condition.metric} {'about ' if use.guessed else bound if use.bounded else ''}"
    if is_least:
        return f"{name}{use.value:.6g} is below its limit {limit:.6g} ({use.condition.source})"
    floor = "" if use.floor is None else f", {use.condition.limit:.3g} times its noise floor"
    return f"{name}{use.value:.3g} is {use.share:.3g} times its limit {limit:.3g}{floor} ({use.condition.source})"


def _describe_limit(use: Use) -> str:
    """Return a limit for a list of limits; of a measured one, what it was made of."""
    if use.floor is None:
        return use.condition.text
    return f"{use.condition.metric} <= {use.limit:.3g} (rounding alone changes it by {use.floor:.2g})"
