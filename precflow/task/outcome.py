"""What is said about a task metric: its values, the test over its samples, and the smallest effect that these could have shown.

A metric is *within* its limit only if that is shown: its value is, and values as good as these would come about by chance at
most once in twenty times if the true one were beyond. It is *beyond* if its value is; where each side has a value of its own,
such as accuracy, only if the test shows as well that the target is worse, for either side is lucky at times. Everything else
is *not told*.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from precflow import numbers
from precflow.config.schema import TaskMetric
from precflow.config.sections.task_metrics_section import LABELLED, kind_of
from precflow.dumps.protocol import Dump
from precflow.errors import DumpError
from precflow.task import paired
from precflow.task.outputs import NotComputableError, leave_out_padding, read_batches, read_labels
from precflow.task.pictures import Shown
from precflow.task.scores import Kind, Scores, Text, score

WITHIN, BEYOND, NOT_TOLD, NOT_COMPUTED, NO_LIMIT = STATES = ("within", "beyond", "not told", "not computed", "no limit")
MOST_SAMPLES = 10_000  # whose values are kept one by one
_CHANCE = f"{paired.LEVEL:.0%}".replace("%", " %")
_SHOWN = {
    "psnr": ("dB", "at_least"),
    "ssim": ("", "at_least"),
    "class_agreement": ("share", "at_least"),
    "token_agreement": ("share", "at_least"),
    "accuracy": ("share", "at_least"),
    "mean_abs_error": ("", "at_most"),
    "mean_rel_error": ("", "at_most"),
    "perplexity": ("", "at_most"),
    "bleu": ("", "at_least"),
    "chrf": ("", "at_least"),
    "clip_score": ("", "at_least"),
}
_SEEN = f"{paired.POWER:.0%}".replace("%", " %")


@dataclass(frozen=True)
class TaskOutcome:
    """What is said about a task metric.

    Attributes:
        name: Its name in the recipe.
        kind: One of ``TASK_KINDS``, or ``own``.
        output: What it reads.
        state: One of ``STATES``.
        why: Why it is in that state, in words; ``""`` if the numbers say so.
        unit: ``dB``, ``share`` or ``""``.
        direction: ``at_least`` or ``at_most``: which values are good.
        limit: The limit; ``None`` without one.
        value: Value of the pair; ``None`` if each side has its own. Infinite for the PSNR of equal pictures.
        reference: The reference's own value.
        target: The target's.
        worse: How much worse the target is than the reference, in the unit of the limit, if each side has a value.
        sample: What a sample is called.
        samples: How many there are.
        worst: Value of the worst sample; ``None`` if each side has its own.
        worst_sample: Its number, from 0.
        equal: Everything that was read is equal on both sides.
        test: Name of the test.
        chance: How often values as good as these come about by chance; of ``beyond``, as bad. ``None`` without a test.
        effect: Smallest effect that the samples could have shown: in the unit of the metric, or a share of samples.
            ``None`` if there is none.
        effect_shown: That with its unit; ``""`` if there is none.
        effect_text: That in a sentence; a metric without it proves nothing.
        notes: What a reader has to know of the numbers.
        each: One row a sample: its value, or those of reference and target; the first ``MOST_SAMPLES``.
        shown: The worst pictures, side by side.
        texts: Texts side by side, those that differ first.
    """

    name: str
    kind: str
    output: str
    state: str
    why: str = ""
    unit: str = ""
    direction: str = ""
    limit: float | None = None
    value: float | None = None
    reference: float | None = None
    target: float | None = None
    worse: float | None = None
    sample: str = "sample"
    samples: int = 0
    worst: float | None = None
    worst_sample: int = 0
    equal: bool = False
    test: str = ""
    chance: float | None = None
    effect: float | None = None
    effect_shown: str = ""
    effect_text: str = ""
    notes: tuple[str, ...] = ()
    each: tuple[tuple[float, ...], ...] = ()
    shown: tuple[Shown, ...] = ()
    texts: tuple[Text, ...] = ()


@dataclass(frozen=True)
class TaskValue:
    """A task metric of one run among several, in short.

    Attributes:
        name: Its name in the recipe.
        shown: Its value with its unit; the target's own where each side has one. ``""`` if there is none.
        state: One of ``STATES``.
        why: Why it was not computed, in words.
    """

    name: str
    shown: str
    state: str
    why: str = ""


def examine(  # noqa: PLR0913  two dumps, a metric, and what only some metrics have
    name: str,
    metric: TaskMetric,
    reference: Dump,
    target: Dump,
    *,
    function: Callable[..., Any] | None = None,
    forced: bool = False,
) -> TaskOutcome:
    """Return what is said about a metric of two dumps.

    Args:
        name: Its name in the recipe.
        metric: Its section.
        reference: Dump of the reference.
        target: Dump of the target.
        function: The user's own function, where it is one.
        forced: The target went on with the reference's tokens.
    """
    kind = kind_of(name, metric)
    unit, direction = _SHOWN.get(kind, ("", metric.direction))
    nothing = TaskOutcome(name, kind, metric.output, NOT_COMPUTED, limit=metric.limit, unit=unit, direction=direction)
    try:
        labels = read_labels(reference, target, metric.labels) if kind in LABELLED and metric.labels else []
        labels, hidden = leave_out_padding(reference, metric.labels, labels) if kind == "perplexity" else (labels, 0)
        batches = read_batches(reference, target, metric.output, metric.index)
        scores = score(kind, metric, batches, labels=labels, function=function, forced=forced)
        if hidden:
            scores.notes.append(f"{numbers.plural(hidden, 'token')} of padding left out, by the attention mask")
    except NotComputableError as error:
        return replace(nothing, why=str(error))
    except DumpError as error:
        return replace(nothing, why=error.message)
    return judge_scores(name, kind, metric, scores)


def judge_scores(name: str, kind: str, metric: TaskMetric, scores: Scores) -> TaskOutcome:
    """Return what is said about the amounts of all samples."""
    shape = scores.kind
    mean = math.fsum(scores.target) / len(scores.target)
    effect, shown, text = find_effect(scores, mean)
    outcome = TaskOutcome(
        name,
        kind,
        metric.output,
        NO_LIMIT,
        unit=shape.unit,
        direction="at_least" if shape.at_least else "at_most",
        limit=metric.limit,
        sample=shape.sample,
        samples=len(scores.target),
        equal=scores.is_equal,
        effect=effect,
        effect_shown=shown,
        effect_text=text,
        notes=tuple(scores.notes),
        each=_list_values(scores),
        shown=tuple(scores.shown),
        texts=tuple(scores.texts),
    )
    if shape.each_side:
        before = math.fsum(scores.reference) / len(scores.reference)
        outcome = replace(outcome, reference=shape.show(before), target=shape.show(mean), worse=shape.change(mean - before))
    else:
        worst = max(range(len(scores.target)), key=scores.target.__getitem__)
        outcome = replace(outcome, value=shape.show(mean), worst=shape.show(scores.target[worst]), worst_sample=worst)
    if metric.limit is None:
        return outcome
    return _hold(outcome, scores, shape.bound(metric.limit))


def _hold(outcome: TaskOutcome, scores: Scores, bound: float) -> TaskOutcome:
    """Return a metric with what the test over its samples says of a largest mean amount."""
    shape = scores.kind
    apart = (
        [there - here for here, there in zip(scores.reference, scores.target, strict=True)]
        if shape.each_side
        else scores.target
    )
    mean = math.fsum(apart) / len(apart)
    if mean > bound:
        if not shape.each_side:
            return replace(outcome, state=BEYOND)
        test, chance = _test_worse(apart, bounded=shape.bounded)
        outcome = replace(outcome, test=test, chance=chance)
        if chance <= paired.LEVEL:
            return replace(outcome, state=BEYOND)
        why = (
            f"the target is worse than the limit allows, and by chance it would be so in {describe_chance(chance)} of all runs"
        )
        return replace(outcome, state=NOT_TOLD, why=why)
    test, chance = _test_within(apart, bound, bounded=shape.bounded)
    outcome = replace(outcome, test=test, chance=chance)
    if chance <= paired.LEVEL and outcome.effect is not None:
        return replace(outcome, state=WITHIN)
    few = numbers.plural(outcome.samples, outcome.sample)
    if chance > paired.LEVEL:
        why = f"{few} could be this good by chance ({describe_chance(chance)}) though the true value is beyond the limit"
    else:
        why = f"{few} cannot show any effect"
    return replace(outcome, state=NOT_TOLD, why=why)


def _test_within(apart: Sequence[float], bound: float, *, bounded: bool) -> tuple[str, float]:
    """Test whether the true mean is below a bound."""
    if bounded:
        exact = all(amount in {-1, 0, 1} for amount in apart)
        # What has become better is counted as unchanged, which is on the safe side.
        return "binomial" if exact else "Hoeffding", paired.bound_share([max(amount, 0.0) for amount in apart], bound)
    return "sign flips", paired.flip_signs([bound - amount for amount in apart])


def _test_worse(apart: Sequence[float], *, bounded: bool) -> tuple[str, float]:
    """Test whether the target is worse than the reference."""
    if bounded:
        worse, better = sum(amount > 0 for amount in apart), sum(amount < 0 for amount in apart)
        return "McNemar", paired.compare_changes(worse, better)
    return "sign flips", paired.flip_signs(apart)


def find_effect(scores: Scores, mean: float) -> tuple[float | None, str, str]:
    """Return the smallest effect that the samples could have shown: the number, with its unit, and in a sentence.

    Args:
        scores: The samples.
        mean: Mean amount of the target.
    """
    shape, count = scores.kind, len(scores.target)
    seen = f"(level {_CHANCE}, power {_SEEN})"
    if shape.bounded:
        hits = paired.FEWEST if shape.each_side else 1
        what = "a loss of" if shape.each_side else "a difference of"
        return _describe_share(shape, count, hits, what, seen)
    if count < paired.FEWEST:
        return None, "", _describe_too_few(shape, count, paired.FEWEST)
    apart = (
        [there - here for here, there in zip(scores.reference, scores.target, strict=True)]
        if shape.each_side
        else scores.target
    )
    shift = paired.find_smallest_shift(apart)
    if shift is None:  # nothing scatters, so only how many samples an effect reaches can be told
        return _describe_share(shape, count, 1, "a change in", f"(power {_SEEN})")
    effect = shape.change(shift) if shape.each_side else abs(shape.show(mean + shift) - shape.show(mean))
    shown = describe_amount(effect, shape)
    return effect, shown, f"{numbers.plural(count, shape.sample)} could have shown a change of {shown} {seen}."


def _describe_share(shape: Kind, count: int, hits: int, what: str, seen: str) -> tuple[float | None, str, str]:
    share = paired.find_smallest_share(count, hits)
    if share is None:
        return None, "", _describe_too_few(shape, count, hits)
    shown = numbers.share(share)
    text = f"{numbers.plural(count, shape.sample)} could have shown {what} at least {shown} of all {shape.sample}s {seen}."
    return share, f"{shown} of them", text


def _describe_too_few(shape: Kind, count: int, least: int) -> str:
    return f"{numbers.plural(count, shape.sample)} cannot show any effect: at least {least} are needed."


def _list_values(scores: Scores) -> tuple[tuple[float, ...], ...]:
    show = scores.kind.show
    target = scores.target[:MOST_SAMPLES]
    if scores.kind.each_side:
        return tuple((show(here), show(there)) for here, there in zip(scores.reference, target, strict=False))
    return tuple((show(amount),) for amount in target)


def describe_amount(value: float, shape: Kind) -> str:
    """Return a change with its unit; of the perplexity, and of whatever is a share, in percent."""
    if shape.unit == "share" or shape.change is math.expm1:
        return numbers.share(value)
    return f"{numbers.number(value)} {shape.unit}".rstrip()


def describe_chance(chance: float) -> str:
    """Return a probability in percent.

    >>> describe_chance(0.03125), describe_chance(1e-9)
    ('3.1 %', 'less than 0.1 %')
    """
    return "less than 0.1 %" if chance < 0.001 else f"{100 * chance:.2g} %"


def describe_value(outcome: TaskOutcome) -> str:
    """Return the value of a metric with its unit, of each side where both have one; ``""`` if there is none."""
    if outcome.value is not None:
        return _with_unit(outcome.value, outcome.unit)
    if outcome.reference is None or outcome.target is None:
        return ""
    return f"{_with_unit(outcome.reference, outcome.unit)} → {_with_unit(outcome.target, outcome.unit)}"


def describe_limit(outcome: TaskOutcome) -> str:
    """Return the limit of a metric in words; ``""`` without one."""
    if outcome.limit is None:
        return ""
    if outcome.reference is not None or outcome.kind in LABELLED:
        how = numbers.share(outcome.limit) if outcome.kind in LABELLED else numbers.number(outcome.limit)
        return f"at most {how} {'higher' if outcome.direction == 'at_most' or outcome.kind == 'perplexity' else 'lower'}"
    return f"{outcome.direction.replace('_', ' ')} {_with_unit(outcome.limit, outcome.unit)}".lstrip()


def _with_unit(value: float, unit: str) -> str:
    return numbers.share(value) if unit == "share" else f"{numbers.number(value)} {unit}".rstrip()


def summarize(outcome: TaskOutcome) -> str:
    """Return a metric in a line: value, limit, state, and what its samples could have shown."""
    state = {NOT_TOLD: "cannot tell", NO_LIMIT: "no limit"}.get(outcome.state, outcome.state)
    held = ", ".join(filter(None, [describe_value(outcome), describe_limit(outcome)]))
    if outcome.state == NOT_COMPUTED:
        return f"{held}: {state}, {outcome.why}" if held else f"{state}, {outcome.why}"
    few = numbers.plural(outcome.samples, outcome.sample)
    seen = f"{few}: {outcome.effect_shown} would show" if outcome.effect_shown else f"{few}: too few"
    return f"{held}: {state} ({seen})"


def shorten(outcome: TaskOutcome) -> TaskValue:
    """Return what a table of several runs shows of a metric."""
    value = outcome.value if outcome.value is not None else outcome.target
    shown = "" if value is None else _with_unit(value, outcome.unit)
    return TaskValue(outcome.name, shown, outcome.state, outcome.why if outcome.state == NOT_COMPUTED else "")


def describe_changed(before: Sequence[TaskValue], after: Sequence[TaskValue]) -> str:
    """Return the metrics of two runs in words; ``""`` without any.

    >>> describe_changed([TaskValue("psnr", "41 dB", WITHIN)], [TaskValue("psnr", "infinity dB", WITHIN)])
    'psnr 41 dB -> infinity dB'
    """
    earlier = {one.name: one for one in before}
    changes = [
        f"{one.name} {earlier[one.name].shown or NOT_COMPUTED} -> {one.shown or NOT_COMPUTED}"
        for one in after
        if one.name in earlier
    ]
    return ", ".join(changes)


def is_in_doubt(outcome: TaskOutcome) -> bool:
    """Tell whether a metric that is not told is worse than its limit, which may be chance."""
    is_worse = outcome.worse is not None and outcome.limit is not None and outcome.worse > outcome.limit
    return outcome.state == NOT_TOLD and is_worse
