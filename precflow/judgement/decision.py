"""The status of one record: guards first, then every condition that applies to it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from precflow.comparison.measures import Measure
from precflow.config.schema import Tolerance
from precflow.dumps.dtypes import coarsest
from precflow.judgement.accepted import AcceptedDifferences
from precflow.judgement.limits import Condition, Use, conditions, described, is_blind, lacking, uses
from precflow.judgement.patterns import matches
from precflow.judgement.standards import Standard
from precflow.judgement.verdicts import Judged
from precflow.metrics import find_metric

OF_CLASSES = {  # counts of elements that fail a record whatever its limits are: words for one element, and for several
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
_NONE: frozenset[Condition] = frozenset()


class Asked(NamedTuple):
    """Conditions that apply to a record, in order and as a set."""

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
    """

    reference_dtype: str
    target_dtype: str
    standards: Sequence[Standard]
    tolerance: Tolerance
    _known: dict[tuple[str, int], Asked] = field(default_factory=dict, compare=False, repr=False)  # by type and rule

    def asked(self, dtype: str, rule: int) -> Asked:
        """Return the conditions of records of a type that a rule speaks of, by its number; -1 where none does.

        A run has few kinds of records and very many records, which share these.
        """
        if (dtype, rule) not in self._known:
            common = [condition for standard in self.standards for condition in standard.limits.get(dtype, ())]
            common += conditions(self.tolerance, "tolerance")
            chosen = self.tolerance.rules[rule] if rule >= 0 else None
            own = conditions(chosen, chosen.match, chosen.because) if chosen else []
            replaced = {find_metric(condition.metric).family for condition in own}
            every = own + [condition for condition in common if find_metric(condition.metric).family not in replaced]
            self._known[dtype, rule] = Asked(every, frozenset(every))
        return self._known[dtype, rule]


@dataclass(frozen=True, slots=True)
class Decision:
    """One record's status and conditions.

    Attributes:
        judged: The status.
        failed: Conditions that it fails; none where the failure is accepted.
        asked: Conditions that apply to it.
        held: Those of them whose metric has a meaning for it and is known.
        undecided: Those of them that what was kept of it does not decide.
    """

    judged: Judged
    failed: frozenset[Condition] = frozenset()
    asked: frozenset[Condition] = frozenset()
    held: frozenset[Condition] = frozenset()
    undecided: frozenset[Condition] = frozenset()


def deciding_dtype(measure: Measure, terms: Terms) -> str:
    """Return the coarsest of both runs' and both records' floating point types: it sets the limits of standards.

    float32 where none of them is a type that has limits.
    """
    return _coarsest(terms.reference_dtype, terms.target_dtype, measure.reference_dtype, measure.target_dtype)


@functools.lru_cache(maxsize=1024)
def _coarsest(*names: str) -> str:
    return coarsest(names) or "float32"


def applicable(measure: Measure, terms: Terms) -> Asked:
    """Return the conditions of a record: those of the first rule that matches, and all others on metrics it does not name."""
    rules = enumerate(terms.tolerance.rules)
    rule = next((number for number, rule in rules if matches(measure, rule.match, rule.phase)), -1)
    return terms.asked(deciding_dtype(measure, terms), rule)


def decide(measure: Measure, terms: Terms, accepted: AcceptedDifferences) -> Decision:
    """Return the status of one record; nothing is passed that was not compared."""
    early = _without_numbers(measure, terms)
    if early is not None:
        return Decision(early)
    accepted.see(measure)
    asked = applicable(measure, terms)
    used, unknown = uses(measure, asked.conditions), lacking(measure, asked.conditions)
    decision = _by_limits(measure, terms, used, unknown, accepted)
    held = [use.condition for use in used if not use.is_open]
    undecided = [*(use.condition for use in used if use.is_open), *unknown]
    return Decision(
        decision.judged,
        decision.failed,
        asked=asked.together,
        held=asked.together if len(held) == len(asked.conditions) else frozenset(held),
        undecided=frozenset(undecided) if undecided else _NONE,
    )


def _by_limits(
    measure: Measure, terms: Terms, used: Sequence[Use], unknown: Sequence[Condition], accepted: AcceptedDifferences
) -> Decision:
    """Return the status that the limits give, and what fails."""
    failing = [use for use in used if use.fails]
    if failing or fails_by_class(measure):
        return _failed(measure, failing or used, accepted)
    if unknown or any(use.is_open for use in used):
        return Decision(_undecided(measure, [use for use in used if use.is_open], unknown))
    dtype = deciding_dtype(measure, terms)
    telling = [use for use in used if not is_blind(use.condition.metric, use.condition.limit, dtype)]
    judged = _tightest(measure, telling or used)
    if not telling:
        return Decision(replace(judged, status="blind", reason=_why_blind(used)))
    return Decision(judged)


def fails_by_class(measure: Measure) -> list[str]:
    """Return the counts of ``OF_CLASSES`` by which a record fails."""
    return [name for name in OF_CLASSES if measure.counts.get(name, 0)]


def _undecided(measure: Measure, near: Sequence[Use], unknown: Sequence[Condition]) -> Judged:
    """Return the status of a record that cannot be judged from what was kept of it, with the reasons."""
    reasons = [described(use, measure) for use in near]
    reasons += [f"{condition.metric} cannot be had: {measure.absent[condition.metric]}" for condition in unknown]
    return replace(_tightest(measure, near), status="undecided", reason="; ".join(reasons))


def _without_numbers(measure: Measure, terms: Terms) -> Judged | None:
    """Return the status where it follows without a limit, ``None`` where limits decide."""
    if not measure.judged:
        return Judged(
            measure.record, "not_judged", reason="data movement" if measure.movement else "not a floating point output"
        )
    if measure.join != "paired":
        return Judged(measure.record, measure.join, reason=measure.reason)
    if wrong := _wrong_dtype(measure, terms):
        return Judged(measure.record, "dtype", reason=wrong)
    if mismatch := measure.counts.get("nonfinite_mismatch", 0):
        return Judged(measure.record, "nonfinite", reason=f"{mismatch} NaN or Inf on one side only, or of another kind")
    counts = measure.counts
    ordinary = counts.get("elements", 0) - counts.get("sentinel", 0) - counts.get("nonfinite", 0)
    if not ordinary + counts.get("measured_fills", 0) and not fails_by_class(measure):
        empty = "it has no element" if not counts.get("elements", 0) else "every element is NaN, Inf or a mask's fill value"
        return Judged(measure.record, "blind", reason=f"nothing ordinary to compare: {empty}")
    return None


def _wrong_dtype(measure: Measure, terms: Terms) -> str:
    """Say in words that the target's type is not the one that the recipe implies, ``""`` where it is."""
    expected = {measure.reference_dtype}
    if measure.reference_dtype == terms.reference_dtype:
        expected.add(terms.target_dtype)
    if measure.target_dtype in expected:
        return ""
    wanted = " or ".join(sorted(expected))
    return f"{measure.target_dtype} on the target, {measure.reference_dtype} on the reference; the recipe implies {wanted}"


def _tightest(measure: Measure, used: Sequence[Use]) -> Judged:
    """Return a passing status that names the condition of which most is used."""
    if not used:
        return Judged(measure.record, "pass")
    most = max(used, key=lambda use: use.share)
    condition = most.condition
    return Judged(measure.record, "pass", condition.metric, most.value, condition.limit, most.share, condition.source)


def _failed(measure: Measure, used: Sequence[Use], accepted: AcceptedDifferences) -> Decision:
    judged = _tightest(measure, used)
    failing = frozenset(use.condition for use in used if use.fails)
    wrong = fails_by_class(measure)
    names = {condition.metric for condition in failing} | set(wrong)
    taken, words = accepted.decide(measure, names)
    if taken:
        return Decision(replace(judged, status="accepted", reason=words))
    told = [OF_CLASSES[name][measure.counts[name] > 1].format(measure.counts[name]) for name in wrong]
    over = _over(max(used, key=lambda use: use.share)) if failing else ""
    reason = "; ".join(text for text in (*told, over, words) if text)
    return Decision(replace(judged, status="fail", reason=reason), failing)


def _over(use: Use) -> str:
    limit, is_least = use.condition.limit, find_metric(use.condition.metric).at_least
    bound = "at most " if is_least else "at least "
    name = f"{use.condition.metric} {'about ' if use.guessed else bound if use.bounded else ''}"
    if is_least:
        return f"{name}{use.value:.6g} is below its limit {limit:.6g} ({use.condition.source})"
    return f"{name}{use.value:.3g} is {use.share:.3g} times its limit {limit:.3g} ({use.condition.source})"


def _why_blind(used: Sequence[Use]) -> str:
    if not used:
        return "no limit applies to it"
    wide = ", ".join(dict.fromkeys(use.condition.text for use in used))
    return f"its limits are so wide that nothing could fail: {wide}"
