"""From measures and limits to the status of every record and the verdict of the run."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from precflow.comparison.measures import Measure
from precflow.config.schema import Rule, RunConfig
from precflow.judgement import standards
from precflow.judgement.accepted import AcceptedDifferences
from precflow.judgement.coverage import (
    Tally,
    blind_phases,
    empty_ends,
    estimated,
    in_part,
    other_types,
    records,
    remedy,
    sampled,
    tally,
    unjudged,
)
from precflow.judgement.decision import Decision, Terms, decide
from precflow.judgement.limits import Condition, conditions
from precflow.judgement.patterns import matches
from precflow.judgement.verdicts import Judged, Verdict
from precflow.judgement.zero_gradients import may_be_rounding, told_apart

_FAILURES = {  # of one record, of several
    "fail": ("exceeds its limit", "exceed their limits"),
    "nonfinite": ("has NaN or Inf on one side only", "have NaN or Inf on one side only"),
    "shape": ("has another shape", "have another shape"),
    "dtype": ("has a type that the recipe does not imply", "have a type that the recipe does not imply"),
}
_GAPS = {
    "unpaired_reference": "the target lacks {} that the reference has",
    "unpaired_target": "the target has {} that the reference lacks",
}
_NOTHING = ("no tensor was compared",)
_FROM_VALUES = frozenset({"fail", "nonfinite"})  # what a drift of one side can cause; another shape or type it cannot


def judge(  # noqa: PLR0913 - each is a fact of its own, named at the call
    measures: Sequence[Measure],
    config: RunConfig,
    *,
    reference_dtype: str,
    target_dtype: str,
    blockers: Sequence[str] = (),
    unrepeatable: Sequence[str] = (),
    second_pass: bool = False,
    today: datetime.date,
    folders: Sequence[Path] = (),
) -> tuple[list[Judged], Verdict]:
    """Judge a run.

    Args:
        measures: Every record, in order.
        config: Its tolerance, accepted differences and coverage count here, and its capture where a record stays undecided.
        reference_dtype: Floating point type of the reference's run.
        target_dtype: Floating point type of the target's run.
        blockers: What makes any verdict but "misaligned" impossible, in words.
        unrepeatable: ``side: identity`` of records that changed between two equal runs of one side. Such a record proves
            nothing by failing: where no other record fails, the run is inconclusive.
        second_pass: The measures are those after the second pass of escalating capture.
        today: Decides which accepted differences have expired.
        folders: Folders with standards besides the shipped ones.

    Returns:
        One status a measure, in the same order, and the verdict.

    Raises:
        ConfigError: A standard is not known or not usable.
    """
    loaded = [standards.load(name, folders) for name in config.tolerance.standards]
    terms = Terms(reference_dtype, target_dtype, loaded, config.tolerance)
    accepted = AcceptedDifferences(config.accepted, today)
    decisions = told_apart(measures, [decide(measure, terms, accepted) for measure in measures])
    judged = [decision.judged for decision in decisions]
    counted = tally(judged)
    failures = _failures(measures, judged, unrepeatable)
    statuses = list(zip(measures, judged, strict=True))
    open_ = _undecided(statuses, config, second_pass=second_pass)
    missing = _gaps(statuses, counted, config.coverage.minimum, open_) if measures or not blockers else _NOTHING
    looked_at = sampled(measures, judged)
    gaps = [*blockers, *_drift(unrepeatable), *missing, *_unseen(looked_at, config.coverage.elements)]
    phases = blind_phases(measures, judged)
    gaps += [*other_types(measures, reference_dtype, target_dtype), *_unheld(decisions)]
    gaps += [*empty_ends(measures, judged), *(phases if counted.compared and not counted.could_fail else [])]
    return judged, Verdict(
        verdict="misaligned" if failures else "inconclusive" if gaps else "aligned",
        reasons=(*failures, *gaps),
        counts=counted.counts,
        coverage=counted.coverage,
        compared=counted.compared,
        total=counted.total,
        could_fail=counted.could_fail,
        estimated=estimated(measures, judged),
        sampled=looked_at,
        standards=_met(config, decisions, counted),
        closest=_closest(judged),
        warnings=(*accepted.warnings(), *_idle(measures, config.tolerance.rules), *phases, *_warnings(measures, judged)),
    )


def _idle(measures: Sequence[Measure], rules: Sequence[Rule]) -> list[str]:
    """Warn of rules that no record was held to: a misspelt one that was to be stricter changes nothing in silence."""
    return [
        f"tolerance.rules {rule.match!r}{f' ({rule.phase})' if rule.phase else ''} matches no record"
        for rule in rules
        if measures and not any(matches(measure, rule.match, rule.phase) for measure in measures)
    ]


def _warnings(measures: Sequence[Measure], judged: Sequence[Judged]) -> list[str]:
    """Say what a reader must know of the records, though it changes no verdict."""
    return [*_of_rounding(judged), *in_part(measures, judged), *_equal_nonfinite(measures, judged), *unjudged(measures)]


def _of_rounding(judged: Sequence[Judged]) -> list[str]:
    """Warn of gradients that fail and may be zero but for rounding."""
    found = may_be_rounding(judged)
    return [f"{records(len(found))} over their limits may be zero but for rounding, first {found[0]}"] if found else []


def _failures(measures: Sequence[Measure], judged: Sequence[Judged], unrepeatable: Sequence[str]) -> list[str]:
    """Say what makes the run misaligned, by status, each with the first record in order."""
    drifting = {_side_and_record(entry)[1] for entry in unrepeatable}
    texts = []
    for status, words in _FAILURES.items():
        found = [measure for measure, record in zip(measures, judged, strict=True) if record.status == status]
        if all(measure.record in drifting for measure in found) and status in _FROM_VALUES:
            continue
        texts += [f"{records(len(found))} {words[len(found) > 1]}, first {found[0].name}"] if found else []
    return texts


def _side_and_record(entry: str) -> tuple[str, str]:
    side, found, record = entry.partition(": ")
    return (f"the {side}", record) if found else ("a side", entry)


def _drift(unrepeatable: Sequence[str]) -> list[str]:
    """Say which sides do not repeat themselves."""
    by_side: dict[str, list[str]] = {}
    for side, record in map(_side_and_record, unrepeatable):
        by_side.setdefault(side, []).append(record)
    return [
        f"{side} does not repeat itself: {records(len(found))} differ{'s' * (len(found) == 1)} between two equal runs, "
        f"first {found[0]}"
        for side, found in by_side.items()
    ]


def _gaps(statuses: Sequence[tuple[Measure, Judged]], counted: Tally, minimum: float, open_: Sequence[str]) -> list[str]:
    """Say what is missing for a verdict; ``open_`` is about the undecided records."""
    if not statuses:
        return ["nothing was compared: neither side holds a record; capture.scope, level, phase and rules say what is recorded"]
    if not counted.total:
        return ["nothing was compared: there is no floating point output to judge"]
    texts = _first(statuses, "unreadable", "cannot be read")
    texts += [text.format(records(counted.counts[status])) for status, text in _GAPS.items() if counted.counts.get(status)]
    texts += open_
    if counted.coverage < minimum or not counted.compared:
        texts += _first(statuses, "sampled_out", "cannot be compared")
    if not counted.compared:
        texts.append(f"nothing was compared of {records(counted.total)}")
    elif counted.coverage < minimum:
        texts.append(f"{counted.compared} of {counted.total} records were compared; coverage.minimum asks for {minimum:.6g}")
    return texts


def _unseen(looked_at: float, wanted: float) -> list[str]:
    """Say that too small a share of the elements was looked at."""
    told = f"{looked_at:.3g} of the elements of what was compared were looked at; coverage.elements asks for {wanted:.6g}"
    return [told] if looked_at < wanted else []


def _undecided(statuses: Sequence[tuple[Measure, Judged]], config: RunConfig, *, second_pass: bool) -> list[str]:
    """Say what was kept too little of to be judged, the reason of the first, and what would decide it."""
    found = [(measure, record) for measure, record in statuses if record.status == "undecided"]
    if not found:
        return []
    measure, record = found[0]
    helps = remedy([one for one, _ in found], config, second_pass=second_pass)
    kept = f"by what was kept; {helps}" if helps else "by what was kept"  # ahead of the reason, which screens may cut
    return [f"{records(len(found))} cannot be decided {kept}; first {measure.name}: {record.reason}"]


def _first(statuses: Sequence[tuple[Measure, Judged]], status: str, words: str) -> list[str]:
    """Say how many records have a status, and the reason of the first one."""
    found = [measure for measure, record in statuses if record.status == status]
    return [f"{records(len(found))} {words}, first {found[0].name}: {found[0].reason}"] if found else []


def _met(config: RunConfig, decisions: Sequence[Decision], counted: Tally) -> Mapping[str, bool]:
    """Say which standards and plain limits every record keeps; none is met that no record was held to."""
    failed = _every(chain.from_iterable((decision.failed, decision.undecided) for decision in decisions))
    held = _every(decision.held for decision in decisions)
    kept = {condition.source for condition in held} - {condition.source for condition in failed}
    met = {name: name in kept for name in config.tolerance.standards}
    met |= {condition.text: condition in held - failed for condition in conditions(config.tolerance, "tolerance")}
    return {name: is_kept and counted.compared > 0 for name, is_kept in met.items()}


def _unheld(decisions: Sequence[Decision]) -> list[str]:
    """Name the conditions that apply to records and have a meaning for none of them, in words."""
    held = _every(chain.from_iterable((decision.held, decision.undecided) for decision in decisions))
    kinds = dict.fromkeys(decision.asked for decision in decisions)
    asked = dict.fromkeys(condition for kind in kinds for condition in sorted(kind, key=str))
    return [
        f"no record could be held to {condition.text} ({condition.source}): that metric has a meaning for none"
        for condition in asked
        if condition not in held
    ]


def _every(parts: Iterable[frozenset[Condition]]) -> set[Condition]:
    """Return all conditions of some sets, of which very many are the same."""
    return {condition for part in set(parts) for condition in part}


def _closest(judged: Sequence[Judged]) -> str:
    passing = [record for record in judged if record.status == "pass"]
    return max(passing, key=lambda record: record.ratio).record if passing else ""


def _equal_nonfinite(measures: Sequence[Measure], judged: Sequence[Judged]) -> list[str]:
    """Warn of NaN and Inf that both sides share: they pass, and somebody should know."""
    passed = [
        measure
        for measure, record in zip(measures, judged, strict=True)
        if record.status in {"pass", "blind", "accepted"} and measure.counts.get("nonfinite", 0)
    ]
    masked = [measure for measure in passed if measure.counts.get("infinity_for_sentinel", 0)]
    equal = [measure for measure in passed if measure not in masked]
    told = ((equal, "NaN or Inf equal on both sides"), (masked, "-inf on one side where the other has a mask's fill value"))
    return [f"{records(len(found))} {_hold(found)} {what}, first {found[0].name}" for found, what in told if found]


def _hold(found: Sequence[Measure]) -> str:
    return "hold" if len(found) > 1 else "holds"
