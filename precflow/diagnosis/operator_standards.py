"""Published standards for operators, applied where they belong: to operators that were computed again in float64.

Such a standard asks how far an operator's output y may be from a golden g at the same inputs. Applied to the records of a whole
network it fails correct runs, because what arrived wrong counts as the operator's own error. Stage ``introduced`` has what it
takes: for each call that both sides stored whole, float64 at that side's own inputs, and the errors that a standard asks for
(:mod:`precflow.agent.replay.errors`).

Data movement and integers have to be equal. What the evaluation itself does not reproduce is invalid, never a pass.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from precflow.config.sections.standard_sections import Benchmark, OperatorLimits
from precflow.diagnosis.introduced import MOVEMENT, RANDOM, Evaluated
from precflow.dumps.dtypes import is_floating
from precflow.judgement.coverage import tally
from precflow.judgement.standards import Standard
from precflow.judgement.verdicts import Judged, Verdict, describe_not_applied

_KEPT = frozenset({"accepted", "unreadable", "shape", "dtype", "nonfinite", "fail"})  # statuses that say more already
_GOLDEN = "float64 at its own inputs"
_SEED = 1  # of the bootstrap, so that a run gives the same answer each time


@dataclass(frozen=True, slots=True)
class Held:
    """One output of a call, held to a standard.

    Attributes:
        call: The call.
        index: Index of the output.
        outcome: ``met``, ``failed``, ``open`` (over a ratio, and too few calls to judge it again), ``invalid`` (the reference
            proves nothing here) or ``unlimited`` (the standard has no numbers for it, or it could not be evaluated).
        metric: What uses most of its limit.
        value: Its value.
        limit: Its limit.
        text: Why it is not met, in words.
    """

    call: str
    index: str
    outcome: Literal["met", "failed", "open", "invalid", "unlimited"]
    metric: str = ""
    value: float = 0.0
    limit: float = 0.0
    text: str = ""

    @property
    def share(self) -> float:
        """How much of the limit is used; above 1 it is exceeded."""
        return self.value / self.limit if self.limit else (math.inf if self.value else 0.0)


_MET = Held("", "", "met")


@dataclass(frozen=True, slots=True)
class HeldOutputs:
    """All outputs that were held to one standard, whose name is in ``dated`` with its date."""

    standard: str
    outputs: Sequence[Held] = field(default_factory=list)
    dated: str = ""

    def select(self, *outcomes: str) -> list[Held]:
        """Return those with these outcomes."""
        return [output for output in self.outputs if output.outcome in outcomes]


def list_asked(standards: Sequence[Standard]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Return what the agent has to measure, by element type; see :mod:`precflow.agent.replay.errors`."""
    asked: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(lambda: {"within": {}, "small": {}})
    for standard in standards:
        for dtype, limits in standard.operators.items():
            within = asked[dtype]["within"]
            if limits.share is not None:
                within[standard.name] = [limits.atol, limits.rtol]
        for dtype, border in (standard.benchmark.small if standard.benchmark else {}).items():
            asked[dtype]["small"][standard.name] = [border.below, border.error]
    return dict(asked)


def hold_all(
    standard: Standard, evaluated: Sequence[Evaluated], operators: Mapping[str, str], *, golden: str = _GOLDEN
) -> HeldOutputs:
    """Hold every evaluated output to a standard.

    Args:
        standard: One that judges operators.
        evaluated: As the agent wrote it, with the errors that :func:`list_asked` named.
        operators: Call -> its operator.
        golden: What the errors were measured against, in words.
    """
    held = [_hold(standard, output, operators.get(output.call, ""), golden) for output in evaluated]
    if standard.benchmark:
        held = _judge_again(standard.benchmark, held, evaluated, operators)
    return HeldOutputs(standard.name, held, standard.dated)


def _hold(standard: Standard, evaluated: Evaluated, operator: str, golden: str) -> Held:  # noqa: PLR0911  one guard clause a kind
    call, index = evaluated.call, evaluated.index
    if not evaluated.evaluated or evaluated.kind == RANDOM:
        return Held(call, index, "unlimited", text=evaluated.why or "it draws random numbers")
    reference, target = evaluated.sides["reference"], evaluated.sides["target"]
    if evaluated.kind == MOVEMENT or not is_floating(target.dtype):
        if not reference.equal:
            return Held(call, index, "invalid", text="the reference itself is not equal to what the evaluation gives")
        if target.equal:
            return Held(call, index, "met", "bitwise_equal")
        return Held(
            call, index, "failed", "bitwise_equal", 1.0, 0.0, "it is not equal, and data movement and integers have to be"
        )
    if target.misplaced > reference.misplaced:
        text = f"{target.misplaced} elements are NaN, Inf or a mask's fill value on one side of float64 only"
        return Held(call, index, "failed", "misplaced", float(target.misplaced), 0.0, text)
    if not target.errors:
        return Held(call, index, "unlimited", text=f"{standard.name} has no limits for {target.dtype}")
    if not target.errors["count"]:
        return Held(call, index, "unlimited", text="it has no finite element")
    if standard.benchmark:
        return _hold_to_ratios(standard, evaluated, operator)
    limits = standard.operators.get(target.dtype)
    if limits is None:
        return Held(call, index, "unlimited", text=f"{standard.name} has no limits for {target.dtype}")
    return _hold_to_limits(replace(_MET, call=call, index=index), standard.name, limits, target.errors, golden)


def _hold_to_limits(held: Held, name: str, limits: OperatorLimits, errors: Mapping[str, Any], golden: str) -> Held:
    """Hold one output to limits of its error. MERE and MARE stay below their limits, the others may reach them."""
    uses: list[tuple[str, float, float, bool]] = []  # metric, value, limit, kept
    for metric in ("mere", "mare"):
        limit = getattr(limits, metric)
        if limit is not None:
            uses.append((metric, errors[metric], limit, errors[metric] < limit))
    if limits.share is not None:
        outside, allowed = 1 - errors["within"][name], 1 - limits.share
        uses.append(("share_outside", outside, allowed, errors["within"][name] >= limits.share))
    if limits.largest is not None:
        limit = max(limits.largest, limits.largest_ulps * errors["ulp"])
        uses.append(("largest_difference", errors["largest"], limit, errors["largest"] <= limit))
    failed = [use for use in uses if not use[3]]
    metric, value, limit, kept = max(failed or uses, key=lambda use: _divide(use[1], use[2]))
    text = "" if kept else f"{metric} {value:.3g} against {golden}; its limit is {limit:.3g}"
    return replace(held, outcome="failed" if failed else "met", metric=metric, value=value, limit=limit, text=text)


def _hold_to_ratios(standard: Standard, evaluated: Evaluated, operator: str) -> Held:
    """Hold one output to ratios of the target's error and the reference's. What exceeds one stays open for now."""
    call, index = evaluated.call, evaluated.index
    reference, target, benchmark = evaluated.sides["reference"], evaluated.sides["target"], standard.benchmark
    assert benchmark is not None
    if reference.dtype != target.dtype:
        text = f"the reference computes in {reference.dtype}, and its errors compare with the target's only in {target.dtype}"
        return Held(call, index, "invalid", text=text)
    if reference.eta is None or not reference.eta <= benchmark.invalid:
        text = f"the reference's own error is {reference.eta or math.nan:.3g}, more than {benchmark.invalid:g}"
        return Held(call, index, "invalid", text=text)
    if standard.name not in target.errors["small"] or standard.name not in reference.errors.get("small", {}):
        return Held(call, index, "unlimited", text=f"{standard.name} has no limits for {target.dtype}")
    level = benchmark.find_level(operator.removeprefix("aten."))
    ratios = find_ratios(reference.errors["small"][standard.name], target.errors["small"][standard.name])
    limits = {metric: limit for metric, limit in benchmark.ratios[level].items() if metric in ratios}
    if not limits:
        return Held(call, index, "unlimited", text=f"{standard.name} has no ratio for level {level}")
    metric = max(limits, key=lambda name: _divide(ratios[name], limits[name]))
    value, limit = ratios[metric], limits[metric]
    if value <= limit:
        return Held(call, index, "met", f"{metric}_ratio", value, limit)
    text = f"{metric} is {value:.3g} times the reference's; level {level} allows {limit:g} times"
    return Held(call, index, "open", f"{metric}_ratio", value, limit, text)


def find_ratios(reference: Mapping[str, float], target: Mapping[str, float]) -> dict[str, float]:
    """Return the ratios of a dual benchmark: ``mare``, ``mere``, ``rmse`` and ``small``.

    Two errors of 0 have the ratio 1; an error over none is infinite. Small values are counted, and one error on the reference
    is always allowed for.

    >>> find_ratios({"mare": 2.0, "mere": 0.0, "rmse": 0.0, "wrong": 0}, {"mare": 3.0, "mere": 0.0, "rmse": 1.0, "wrong": 2})
    {'mare': 1.5, 'mere': 1.0, 'rmse': inf, 'small': 2.0}
    """
    ratios = {}
    for name in ("mare", "mere", "rmse"):
        ratios[name] = 1.0 if target[name] == reference[name] else _divide(target[name], reference[name])
    return {**ratios, "small": target["wrong"] / max(reference["wrong"], 1)}


def _judge_again(
    benchmark: Benchmark, held: Sequence[Held], evaluated: Sequence[Evaluated], operators: Mapping[str, str]
) -> list[Held]:
    """Return outcomes with exceeded ratios judged again over all recorded calls of the operator, where these are enough."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for one, outcome in zip(evaluated, held, strict=True):
        if outcome.outcome in {"met", "open"} and outcome.metric.endswith("_ratio"):
            errors = [one.sides[side].errors for side in ("reference", "target")]
            ratios[operators.get(one.call, "")].append(
                1.0 if errors[0]["rmse"] == errors[1]["rmse"] else _divide(errors[1]["rmse"], errors[0]["rmse"])
            )
    bounds = {
        operator: bootstrap_lower(found, benchmark.recheck.draws, benchmark.recheck.confidence)
        for operator, found in ratios.items()
        if len(found) >= benchmark.recheck.fewest
    }
    final = []
    for outcome in held:
        operator = operators.get(outcome.call, "")
        if outcome.outcome != "open":
            final.append(outcome)
        elif operator not in bounds:
            fewest, recorded = benchmark.recheck.fewest, len(ratios[operator])
            few = (
                f"to judge it again takes {fewest} calls of {operator}, and {recorded} were recorded; the source fails it then"
            )
            final.append(replace(outcome, text=f"{outcome.text}; {few}"))
        elif bounds[operator] > 1:
            again = f"and the median ratio of {len(ratios[operator])} calls is at least {bounds[operator]:.3g}, above 1"
            final.append(replace(outcome, outcome="failed", text=f"{outcome.text}, {again}"))
        else:
            final.append(replace(outcome, outcome="met", text=""))
    return final


def bootstrap_lower(ratios: Sequence[float], draws: int, confidence: float) -> float:
    """Return the lower end of the confidence interval of the median, by the percentiles of bootstrapped medians.

    >>> bootstrap_lower([1.5] * 300, 100, 0.95)
    1.5
    """
    values = np.asarray(ratios, dtype=np.float64)
    generator = np.random.default_rng(_SEED)
    medians = [float(np.median(generator.choice(values, values.size))) for _ in range(draws)]
    # method "lower" takes one of the medians: interpolation between a number and infinity would give NaN
    return float(np.quantile(medians, (1 - confidence) / 2, method="lower"))


def _divide(value: float, by: float) -> float:
    return value / by if by else math.inf if value else 0.0


def apply(
    held: Sequence[HeldOutputs],
    judged: Sequence[Judged],
    verdict: Verdict,
    *,
    records: Mapping[tuple[str, str], str],
    names: Mapping[str, str],
) -> tuple[list[Judged], Verdict]:
    """Return statuses and verdict with operator standards taken into account.

    A standard never loosens another: what failed stays failed, and an output that fails two is shown with the first.

    Args:
        held: What was held to each standard, in their order.
        judged: Statuses so far.
        verdict: The verdict so far, in which every operator standard counts as not applied.
        records: Call and index of an output -> identity text of its record.
        names: Call -> how it is shown.
    """
    accepted = {record.record for record in judged if record.status == "accepted"}
    failing: dict[str, Judged] = {}
    failures, gaps, warnings = [], [], []
    met, not_applied = dict(verdict.standards), dict(verdict.not_applied)
    before = {describe_not_applied(outputs.standard, not_applied.pop(outputs.standard, "")) for outputs in held}
    for outputs in held:
        wrong = [output for output in outputs.select("failed") if records.get((output.call, output.index)) not in accepted]
        for one in wrong:
            record = records.get((one.call, one.index), "")
            failing.setdefault(record, _fail(record, outputs.standard, one))
        if wrong:
            failures.append(f"{outputs.dated}: {_describe(wrong, 'fails', 'fail', names)}")
        unknown, silent = outputs.select("open", "invalid"), outputs.select("unlimited")
        why = ""
        if not outputs.outputs:
            why = NOTHING_EVALUATED
        elif unknown:
            why = _describe(unknown, "is open or invalid", "are open or invalid", names)
        elif not outputs.select("met", "failed"):
            why = _describe(silent, "could not be held to it", "could not be held to it", names)
        elif silent:
            warnings.append(f"{outputs.standard}: {_describe(silent, 'was not held to it', 'were not held to it', names)}")
        if why:
            not_applied[outputs.standard] = why
            gaps.append(describe_not_applied(outputs.standard, why))
        met[outputs.standard] = not wrong and not why
    reasons = [*failures, *(reason for reason in verdict.reasons if reason not in before), *gaps]
    final = [failing.get(record.record, record) if record.status not in _KEPT else record for record in judged]
    counted = tally(final)
    misaligned = bool(failures) or verdict.verdict == "misaligned"
    return final, replace(
        verdict,
        verdict="misaligned" if misaligned else "inconclusive" if reasons else "aligned",
        reasons=tuple(reasons),
        counts=counted.counts,
        could_fail=counted.could_fail,
        standards=met,
        not_applied=not_applied,
        warnings=(*verdict.warnings, *warnings),
    )


NOTHING_EVALUATED = "neither side kept all tensors of an operator; capture.detail=tensors and capture.level=[api] keep them"


def _fail(record: str, standard: str, held: Held) -> Judged:
    return Judged(
        record,
        "fail",
        metric=held.metric,
        value=min(held.value, 1e300),
        limit=held.limit,
        ratio=min(held.share, 1e300),
        standard=standard,
        reason=f"{held.text} ({standard})",
    )


def _describe(held: Sequence[Held], one: str, several: str, names: Mapping[str, str]) -> str:
    first = max(held, key=lambda output: output.share)
    count = f"{len(held)} outputs of operators {several}" if len(held) > 1 else f"1 output of an operator {one}"
    return f"{count}, {'first' if first is held[0] else 'worst'} {names.get(first.call, first.call)}: {first.text}"
