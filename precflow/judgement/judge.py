"""From measures and limits to the status of every record and the verdict of the run."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from precflow.comparison.measure import Measure
from precflow.config.schema import PairingRule, RunConfig, ToleranceRule
from precflow.config.sections.whatifs import REFERENCE_CHOICE, can_give_choices
from precflow.curves.outcome import LOSS, CurveOutcome
from precflow.dumps.loss_parts import NO_PARTS, LossParts
from precflow.dumps.warm_up import WarmUp
from precflow.judgement import standards
from precflow.judgement.accepted import AcceptedDifferences
from precflow.judgement.artefacts import describe_artefacts, mark_warm_ups
from precflow.judgement.carried import NOTHING_CARRIED, CarriedTypes
from precflow.judgement.copies import mark_copies
from precflow.judgement.coverage import (
    Tally,
    count_estimated,
    describe_blind_phases,
    describe_empty_ends,
    describe_not_judged,
    describe_other_types,
    describe_partly_judged,
    records_in_words,
    share_sampled,
    suggest_remedy,
    tally,
)
from precflow.judgement.covered import mark_covered
from precflow.judgement.curves import LossOutcome, collect_curves, find_narrow_losses, judge_first_loss, judge_losses
from precflow.judgement.decision import Decision, Terms, ZeroGradient, decide
from precflow.judgement.floors import MAIN_METRIC, Floor
from precflow.judgement.given_gradients import mark_given
from precflow.judgement.limits import Condition, list_conditions
from precflow.judgement.loss_parts import mark_loss_parts
from precflow.judgement.patterns import matches
from precflow.judgement.second_moments import pass_second_moments
from precflow.judgement.standards import Standard
from precflow.judgement.verdicts import MISALIGNED_STATUSES, Judged, Verdict, describe_not_applied
from precflow.judgement.zero_gradients import mark_zero_gradients

Rows = Sequence[tuple[Measure, Judged]]
SettleChoices = Callable[[Sequence[Measure], Sequence[Judged]], Sequence[Judged]]
"""Takes measures and statuses, and returns the statuses with near ties and what depends on them marked."""

_FAILURES = {  # of one record, of several
    "fail": ("exceeds its limit", "exceed their limits"),
    "unequal": ("has other integers or booleans", "have other integers or booleans"),  # status "fail" too
    "nonfinite": ("has NaN or Inf on one side only", "have NaN or Inf on one side only"),
    "shape": ("has another shape", "have another shape"),
    "dtype": ("has a type that the recipe does not imply", "have a type that the recipe does not imply"),
}
_GAPS = {
    "unpaired_reference": "the target lacks {} that the reference has",
    "unpaired_target": "the target has {} that the reference lacks",
}
NOT_EVALUATED = (
    "it judges operators at equal inputs, and none was computed again in float64;"
    " capture.detail=tensors with capture.level=[api] or [operator] keeps what that takes"
)
UPDATES = "the same parameters are updated"
"""Stands among the standards if a parameter moves on one side only."""
SAME_STEP = "inputs that the model makes come from the same step"
"""Stands among the standards if they do not."""
CLEARED = "gradients are cleared before each step"
"""Stands among the standards if those of one side are not."""
FIRST_LOSS = "the loss of the first step"
"""Stands among the standards if that loss fails by the line that it is held to without any."""
_NOTHING_COULD_FAIL = "no record that differs could have failed: its limits are too wide to prove anything"
_BY_LIMITS = frozenset({"pass", "fail", "blind", "accepted", "undecided"})
_FROM_VALUES = frozenset(
    {"fail", "unequal", "nonfinite"}
)  # a side that does not repeat itself causes these, and no other shape


@dataclass(frozen=True)
class Circumstances:
    """What is known of the runs of both sides before any record is judged, and decides with them.

    Attributes:
        today: Decides which accepted differences have expired.
        blockers: What makes any verdict but "misaligned" impossible, in words.
        amounts: What one side ran more of than the other, in words. Everything is judged as ever, and the run is not aligned.
        unseen: What ran in compiled code, in words: it stands beside the verdict.
        unrepeatable: ``side: identity`` of records that changed between two equal runs of one side. Such a record proves
            nothing by failing: if no other record fails, the run is inconclusive.
        other_settings: ``name: reference / target`` of settings that the optimizers of both sides have with other values. Such
            a run is not aligned, however little its steps show of it: the floor of Adam's first step hides another rate. To
            each the records of the steps that have it, which may be accepted.
        stale: Inputs that the model made in different steps on the two sides, in words. Such a run is misaligned.
        still: Parameters that one side does not update, in words, and the records of their steps, which may be accepted. Such a
            run is misaligned, whatever was recorded of it.
        uncleared: Which side does not clear its gradients, in words. Such a run is misaligned, however little is left of them.
        second_pass: The measures are those after the second pass of escalating capture.
        fused: Module that one side computes inside of another one -> that one.
        regrouped: Record of a collective that the other side makes in other groups -> records of what comes of it.
        repeated: Record of a gradient that one side reduces more often -> records of what the optimizer makes of it.
        given: Record of an optimizer's step -> the status of the gradient that it was given, where that fails.
        warm_ups: Calls in which everything that a side computed is 0. What differs there is no fault; the run is not aligned.
        loss_parts: What the losses of both sides are computed by, outside of every module.
    """

    today: datetime.date
    blockers: Sequence[str] = ()
    amounts: Sequence[str] = ()
    unseen: Sequence[str] = ()
    unrepeatable: Sequence[str] = ()
    other_settings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    stale: Sequence[str] = ()
    still: Mapping[str, Sequence[str]] = field(default_factory=dict)
    uncleared: str = ""
    second_pass: bool = False
    fused: Mapping[str, str] = field(default_factory=dict)
    regrouped: Mapping[str, Sequence[str]] = field(default_factory=dict)
    repeated: Mapping[str, Sequence[str]] = field(default_factory=dict)
    given: Mapping[str, Judged] = field(default_factory=dict)
    warm_ups: Sequence[WarmUp] = ()
    loss_parts: LossParts = NO_PARTS


@dataclass(frozen=True)
class Floors:
    """How far rounding alone carries, for standards that measure their limits.

    Attributes:
        measured: Identity text -> noise floor.
        missing: Why there are none, in words.
        carried: The coarsest types that values went through on the reference, for records without a floor.
    """

    measured: Mapping[str, Floor] = field(default_factory=dict)
    missing: str = ""
    carried: CarriedTypes = NOTHING_CARRIED


@dataclass(frozen=True)
class TrainingCourse:
    """How the training of both sides went.

    Attributes:
        losses: Step -> its loss, on the reference and on the target. Standards may judge them, and a loss that differs although
            the forward before it agrees is wrong without one.
        curves: What is said about the curves of the run, which have limits of their own.
    """

    losses: tuple[Mapping[int, float], Mapping[int, float]] = ({}, {})
    curves: Sequence[CurveOutcome] = ()


_NO_FLOORS = Floors()
_NO_TRAINING = TrainingCourse()


def judge(  # noqa: PLR0913  all but two go by name
    measures: Sequence[Measure],
    config: RunConfig,
    *,
    dtypes: tuple[str, str],
    known: Circumstances,
    folders: Sequence[Path] = (),
    floors: Floors = _NO_FLOORS,
    settle_choices: SettleChoices | None = None,
    training: TrainingCourse = _NO_TRAINING,
) -> tuple[list[Judged], Verdict]:
    """Judge a run.

    Args:
        measures: Every record, in order.
        config: Its tolerance, accepted differences and coverage decide; its capture tells what would decide the undecided.
        dtypes: Floating point types of the runs of reference and target.
        known: What is known of the runs before any record is judged.
        folders: Folders with standards besides the shipped ones.
        floors: The noise floors.
        settle_choices: Marks choices that are near ties and what depends on them; without it they fail.
        training: Losses and curves.

    Returns:
        One status a measure, in the same order, and the verdict.

    Raises:
        ConfigError: A standard is not known or not usable.
    """
    carried, losses = floors.carried, training.losses
    loaded = [standards.load(name, folders) for name in config.tolerance.standards]
    measuring = [standard.name for standard in loaded if standard.measured]
    terms = Terms(*dtypes, loaded, config.tolerance, floors.measured if measuring else {}, carried.outputs)
    accepted = AcceptedDifferences(config.accepted, known.today)
    decisions = mark_zero_gradients(measures, [decide(measure, terms, accepted) for measure in measures], carried.outputs)
    decisions = pass_second_moments(measures, decisions)
    decisions = mark_given(measures, decisions, known.given)
    if settle_choices is not None:
        settled = settle_choices(measures, [decision.judged for decision in decisions])
        decisions = [_settle(decision, new) for decision, new in zip(decisions, settled, strict=True)]
    decisions = mark_covered(measures, decisions, known.fused, known.regrouped, known.repeated)
    decisions = mark_loss_parts(measures, decisions, known.loss_parts, losses, dtypes)
    decisions = mark_copies(measures, decisions)
    decisions = mark_warm_ups(measures, decisions, known.warm_ups)
    decisions, open_settings = _accept_settings(measures, decisions, known.other_settings, accepted)
    decisions, not_updated = _accept_settings(measures, decisions, known.still, accepted)
    judged = [decision.judged for decision in decisions]
    rows = list(zip(measures, judged, strict=True))
    counted = tally(judged)
    by_losses = {standard.name: judge_losses(standard.losses, *losses) for standard in loaded if standard.losses}
    logged = collect_curves(training.curves)
    is_limited = _limits_first_loss(config, loaded, folders)
    loss = LossOutcome() if is_limited or known.blockers else judge_first_loss(rows, *losses, dtypes)
    not_applied = {standard.name: NOT_EVALUATED for standard in loaded if standard.judges_operators}
    not_applied |= {name: outcome.missing for name, outcome in by_losses.items() if outcome.missing}
    failures = [*_describe_failures(rows, known.unrepeatable), *known.stale, *not_updated, *filter(None, [known.uncleared])]
    failures += [
        f"{standard.dated}: {text}"
        for standard in loaded
        if standard.name in by_losses
        for text in by_losses[standard.name].failed
    ]
    failures += [*loss.failed, *logged.failed]
    sampled = share_sampled(measures, judged)
    not_run, idle = describe_artefacts(measures, judged, known.warm_ups)
    # If a blocker stood in the way, nothing was read on purpose: the blocker is the reason, and not a missing record.
    if measures or not known.blockers:
        missing = _describe_missing(rows, counted, config, sampled, second_pass=known.second_pass)
    else:
        missing = ["no tensor was compared"]
    blind_phases = describe_blind_phases(measures, judged)
    gaps = [
        *known.blockers,
        *known.amounts,
        *not_run,
        *_describe_unrepeatable(known.unrepeatable),
        *([f"the optimizers have other settings: {'; '.join(open_settings)}"] if open_settings else []),
        *missing,
        *describe_other_types(measures, *dtypes),
        *_describe_unapplied(decisions),
        *(describe_not_applied(name, why) for name, why in not_applied.items()),
        *describe_empty_ends(measures, judged),
        *([loss.missing] if loss.missing else []),
        *logged.missing,
        # As long as any record could have failed, they are a warning only.
        *((blind_phases or [_NOTHING_COULD_FAIL]) if counted.compared and not counted.could_fail else []),
    ]
    warnings = [
        *accepted.warnings(),
        *(_describe_missing_floors(rows, floors.measured, measuring[0], floors.missing) if measuring else ()),
        *(
            []
            if any("near tie" in text for text in missing)
            else _describe_near_ties(rows, given=REFERENCE_CHOICE in config.whatif)
        ),
        *(
            f"{standard.name} also asks for what is not checked: {'; '.join(standard.unchecked)}"
            for standard in loaded
            if standard.unchecked
        ),
        *_describe_idle_rules(measures, config.tolerance.rules),
        *_describe_idle_pairings(measures, config.pairing.rules),
        *blind_phases,
        *idle,
        *_describe_zero_gradients(decisions),
        *describe_partly_judged(measures, judged),
        *_describe_shared_nonfinite(rows),
        *describe_not_judged(measures),
        *([f"the {narrow[0]} alone computes its loss in {narrow[1]}"] if (narrow := find_narrow_losses(*losses)) else []),
        *logged.warnings,
    ]
    passing = (record for record in judged if record.status == "pass")
    closest = max(passing, key=lambda record: record.ratio, default=Judged(record="", status="pass"))
    # A record over its limit is wrong, whatever else is missing. Without one, a gap leaves open whether all would have passed.
    return judged, Verdict(
        verdict="misaligned" if failures else "inconclusive" if gaps else "aligned",
        reasons=(*failures, *gaps),
        counts=counted.counts,
        coverage=counted.coverage,
        compared=counted.compared,
        total=counted.total,
        could_fail=counted.could_fail,
        estimated=count_estimated(measures, judged),
        sampled=sampled,
        standards=_find_met(config, decisions, counted)
        | {standard.name: False for standard in loaded if not standard.judges_records}
        | {name: outcome.is_met for name, outcome in by_losses.items()}
        | ({UPDATES: False} if not_updated else {})
        | ({SAME_STEP: False} if known.stale else {})
        | ({CLEARED: False} if known.uncleared else {})
        | ({FIRST_LOSS: False} if loss.failed else {})  # else whoever explains the failing records would explain it away
        | dict(logged.met),
        not_applied=not_applied,
        sources={standard.name: standard.origin for standard in loaded if standard.date},
        closest=closest.record,
        unseen=tuple(known.unseen),
        warnings=tuple(warnings),
    )


def _accept_settings(
    measures: Sequence[Measure],
    decisions: Sequence[Decision],
    other_settings: Mapping[str, Sequence[str]],
    accepted: AcceptedDifferences,
) -> tuple[list[Decision], list[str]]:
    """Accept steps of optimizers with other settings, which need not exceed a limit; return the settings that remain."""
    rows = {measure.record: measure for measure in measures}
    records = {record for each in other_settings.values() for record in each if record in rows}
    reasons = {record: why for record in records for taken, why in [accepted.decide(rows[record], ())] if taken}
    marked = [
        replace(one, judged=replace(one.judged, status="accepted", reason=reasons[one.judged.record]))
        if one.judged.record in reasons and one.judged.status in {"pass", "blind"}
        else one
        for one in decisions
    ]
    recorded = {text: set(those) & rows.keys() for text, those in other_settings.items()}
    remaining = [text for text, those in recorded.items() if not those or not reasons.keys() >= those]
    return marked, remaining


def _limits_first_loss(config: RunConfig, loaded: Sequence[Standard], folders: Sequence[Path]) -> bool:
    """Tell whether the user limits the loss of the first step, which says more than a fixed line; a mean does not."""
    curve = config.curves.get(LOSS)
    held = [*loaded, *([standards.load(curve.standard, folders)] if curve and curve.standard else [])]
    plain = curve and (curve.first_abs_error, curve.first_rel_error, curve.max_abs_error, curve.max_rel_error)
    return any(one.losses and one.losses.first for one in held) or any(limit is not None for limit in plain or ())


def _settle(decision: Decision, judged: Judged) -> Decision:
    """Return a decision with the status that its choice, or the one it depends on, was given: no limit failed then."""
    if judged is decision.judged:
        return decision
    return replace(decision, judged=judged, failed=frozenset(), undecided=frozenset())


def _describe_failures(rows: Rows, unrepeatable: Sequence[str]) -> list[str]:
    """Say what makes the run misaligned, by status, each with the first record in order."""
    drifting = {_side_and_record(entry)[1] for entry in unrepeatable}
    texts = []
    kinds = [(measure, "unequal" if measure.exact and record.status == "fail" else record.status) for measure, record in rows]
    for status, words in _FAILURES.items():
        failing = [measure for measure, kind in kinds if kind == status]
        # If every one of them changes between two equal runs of one side, the failures say nothing about the other side.
        if all(measure.record in drifting for measure in failing) and status in _FROM_VALUES:
            continue
        if failing:
            texts.append(f"{records_in_words(len(failing))} {words[len(failing) > 1]}, first {failing[0].name}")
    return texts


def _describe_unrepeatable(unrepeatable: Sequence[str]) -> list[str]:
    """Say which sides do not repeat themselves."""
    by_side: dict[str, list[str]] = {}
    for side, record in map(_side_and_record, unrepeatable):
        by_side.setdefault(side, []).append(record)
    return [
        f"{side} does not repeat itself: {records_in_words(len(records))} differ{'s' * (len(records) == 1)}"
        f" between two equal runs, first {records[0]}"
        for side, records in by_side.items()
    ]


def _side_and_record(entry: str) -> tuple[str, str]:
    side, colon, record = entry.partition(": ")
    return (f"the {side}", record) if colon else ("a side", entry)


def _describe_missing(rows: Rows, counted: Tally, config: RunConfig, sampled: float, *, second_pass: bool) -> list[str]:
    """Say what is missing for a verdict: records, limits that can be decided, or elements that were looked at."""
    minimum, elements = config.coverage.minimum, config.coverage.elements
    if not rows:
        return ["nothing was compared: neither side holds a record; capture.scope, level, phase and rules say what is recorded"]
    if not counted.total:
        return ["nothing was compared: there is no output to judge"]
    texts = _describe_status(rows, "unreadable", "cannot be read")
    texts += [
        text.format(records_in_words(counted.counts[status])) for status, text in _GAPS.items() if counted.counts.get(status)
    ]
    texts += _describe_undecided(rows, config, second_pass=second_pass)
    if counted.coverage < minimum or not counted.compared:
        again = "record both sides again with " if config.reference.dump or config.target.dump else ""
        texts += [
            f"{text}; {again}capture.detail=tensors {'to keep' if again else 'keeps'} it"
            for text in _describe_status(rows, "sampled_out", "cannot be compared")
        ]
        texts += _describe_dependent(rows, config)
    if not counted.compared:
        texts.append(f"nothing was compared of {records_in_words(counted.total)}")
    elif counted.coverage < minimum:
        covered = f" and {counted.covered} covered by their modules" if counted.covered else ""
        texts.append(
            f"{counted.compared} of {counted.total} records were compared{covered}; coverage.minimum asks for {minimum:.6g}"
        )
    if sampled < elements:
        texts.append(
            f"{sampled:.3g} of the elements of what was compared were looked at; coverage.elements asks for {elements:.6g}"
        )
    return texts


def _describe_dependent(rows: Rows, config: RunConfig) -> list[str]:
    """Say how many records depend on choices that differ, what would compare them, and which choice is the first."""
    dependent = sum(record.status == "not_comparable" for _, record in rows)
    if not dependent:
        return []
    verb = "is" if dependent == 1 else "are"
    ties = [(measure, record) for measure, record in rows if record.status == "near_tie"]
    # An undecided choice is named as such elsewhere; else it is one between blind values.
    on_what = _count_ties(len(ties)) if ties else "a choice that is undecided or blind"
    text = f"{records_in_words(dependent)} depend{'s' * (dependent == 1)} on {on_what} and {verb} not comparable"
    if can_give_choices(config) and REFERENCE_CHOICE not in config.whatif:  # ahead of the reason, which screens may cut
        text += f"; whatif=[{REFERENCE_CHOICE}] compares {'it' if dependent == 1 else 'them'}, at the reference's choices"
    return [f"{text}. First {measure.name}: {record.reason}" for measure, record in ties[:1]] or [text]


def _describe_near_ties(rows: Rows, *, given: bool) -> list[str]:
    """Warn of near ties: they are no fault, and somebody should know, also where the reference's choices were given."""
    ties = [(measure, record) for measure, record in rows if record.status == "near_tie"]
    if not ties:
        return []
    measure, record = ties[0]
    dependent = sum(record.status == "not_comparable" for _, record in rows)
    behind = f"; {records_in_words(dependent)} after it not comparable" if dependent else ""
    what = f"{_count_ties(len(ties))}{', and the target went on with the choices of the reference' if given else ''}"
    return [f"{what}, first {measure.name}: {record.reason}{behind}"]


def _count_ties(count: int) -> str:
    return f"{count} near tie{'s' * (count != 1)}"


def _describe_status(rows: Rows, status: str, words: str) -> list[str]:
    """Say how many records have a status, and the reason of the first one."""
    of_status = [measure for measure, record in rows if record.status == status]
    if not of_status:
        return []
    return [f"{records_in_words(len(of_status))} {words}, first {of_status[0].name}: {of_status[0].reason}"]


def _describe_undecided(rows: Rows, config: RunConfig, *, second_pass: bool) -> list[str]:
    """Say how many records are undecided, what would decide them, and the reason of the first."""
    undecided = [(measure, record) for measure, record in rows if record.status == "undecided"]
    if not undecided:
        return []
    measure, record = undecided[0]
    remedy = suggest_remedy([measure for measure, _ in undecided], config, second_pass=second_pass)
    kept = f"by what was kept; {remedy}" if remedy else "by what was kept"  # ahead of the reason, which screens may cut
    return [f"{records_in_words(len(undecided))} cannot be decided {kept}; first {measure.name}: {record.reason}"]


def _describe_unapplied(decisions: Sequence[Decision]) -> list[str]:
    """Name the limits that apply to records although their metric has a meaning for none of them."""
    # Undecided counts as used: the metric has a meaning there, and the record is already named as undecided.
    used = _unite(chain.from_iterable((decision.decided, decision.undecided) for decision in decisions))
    kinds = dict.fromkeys(decision.applicable for decision in decisions)
    applicable = dict.fromkeys(condition for kind in kinds for condition in sorted(kind, key=str))
    return [
        f"no record could be held to {condition.text} ({condition.source}): that metric does not apply to any"
        for condition in applicable
        if condition not in used
    ]


def _describe_idle_rules(measures: Sequence[Measure], rules: Sequence[ToleranceRule]) -> list[str]:
    """Warn of rules that match no record: a misspelt one that was to be stricter would change nothing in silence."""
    return [
        f"tolerance.rules {rule.match!r}{f' ({rule.phase})' if rule.phase else ''} matches no record"
        for rule in rules
        if measures and not any(matches(measure, rule.match, rule.phase) for measure in measures)
    ]


def _describe_missing_floors(rows: Rows, floors: Mapping[str, Floor], standard: str, why: str) -> list[str]:
    """Say that records were held to fixed limits although a standard measures its limits."""
    limited = (measure for measure, record in rows if record.status in _BY_LIMITS and not measure.exact)
    compared = [measure for measure in limited if not measure.equal]
    lacking = [measure for measure in compared if MAIN_METRIC not in getattr(floors.get(measure.record), "metrics", ())]
    if not lacking:
        return []
    if len(lacking) == len(compared):
        return [f"no noise floor{f': {why}' * bool(why)}; the fixed limits of {standard} apply"]
    first = f"first {lacking[0].name}"
    return [f"{records_in_words(len(lacking))} without a noise floor, {first}: the fixed limits of {standard} apply"]


def _describe_idle_pairings(measures: Sequence[Measure], rules: Sequence[PairingRule]) -> list[str]:
    """Warn of pairing rules by which no record found a partner."""
    used = {measure.pairing for measure in measures}
    return [
        f"pairing.rules[{number}], {', '.join(rule.target)} on the target, pairs no record"
        for number, rule in enumerate(rules)
        if measures and not rule.pair_by and f"pairing.rules[{number}]" not in used
    ]


def _describe_zero_gradients(decisions: Sequence[Decision]) -> list[str]:
    """Warn of gradients that fail and may be zero apart from rounding."""
    possible = [decision.judged.record for decision in decisions if decision.zero_gradient is ZeroGradient.POSSIBLE]
    count = records_in_words(len(possible))
    return [f"{count} over their limits may be zero apart from rounding, first {possible[0]}"] if possible else []


def _describe_shared_nonfinite(rows: Rows) -> list[str]:
    """Warn of NaN and Inf that both sides share: they pass, and somebody should know."""
    passed = [
        measure
        for measure, record in rows
        if record.status in {"pass", "blind", "accepted"} and measure.counts.get("nonfinite", 0)
    ]
    masked = [measure for measure in passed if measure.counts.get("infinity_for_sentinel", 0)]
    equal = [measure for measure in passed if measure not in masked]
    kinds = ((equal, "NaN or Inf equal on both sides"), (masked, "-inf on one side where the other has a mask's fill value"))
    return [
        f"{records_in_words(len(holders))} {'hold' if len(holders) > 1 else 'holds'} {what}, first {holders[0].name}"
        for holders, what in kinds
        if holders
    ]


def _find_met(config: RunConfig, decisions: Sequence[Decision], counted: Tally) -> dict[str, bool]:
    """Return which standards and plain limits every record keeps; one that no record could be held to is not met.

    None is met if a record has failed before any limit was asked (NaN on one side, another shape), or if all records are blind.
    """
    failed = _unite(chain.from_iterable((decision.failed, decision.undecided) for decision in decisions))
    unlimited = any(one.judged.status in MISALIGNED_STATUSES and not one.failed for one in decisions)
    decided = _unite(decision.decided for decision in decisions)
    # One condition of a standard that a record fails, or that stays open, is enough for the standard not to be met.
    kept = {condition.source for condition in decided} - {condition.source for condition in failed}
    met = {name: name in kept for name in config.tolerance.standards}
    met |= {condition.text: condition in decided - failed for condition in list_conditions(config.tolerance, "tolerance")}
    return {name: is_kept and counted.could_fail > 0 and not unlimited for name, is_kept in met.items()}


def _unite(sets: Iterable[frozenset[Condition]]) -> set[Condition]:
    """Return the union of very many sets; most are the same ones, so each is looked at only once."""
    return {condition for conditions in set(sets) for condition in conditions}
