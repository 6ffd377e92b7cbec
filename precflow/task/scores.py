"""What each kind of task metric reads of a sample, as an amount that is larger the worse the target is.

Amounts can be averaged, and tested: the mean squared error for the PSNR, one minus the SSIM, 1 for a token that differs, minus
the logarithm of its probability for the perplexity. :class:`Kind` says how a mean of them is shown, and which mean a limit is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.comparison.fused.value_classes import widen
from precflow.config.schema import TaskMetric
from precflow.config.sections.task_metrics_section import PICTURES, TARGET, TEXTS, count_axes
from precflow.dumps.dtypes import is_floating, name_of
from precflow.dumps.protocol import Array
from precflow.task import libraries, own_function, pictures
from precflow.task.outputs import Batch, NotComputableError

Floats = npt.NDArray[np.float64]
MOST_PICTURES = 3
MOST_TEXTS = 8
MOST_TOKENS = 48
_LEAST_OF_RANGE = 0.02  # that the reference's pictures have to fill; less is another range
_ROUNDED_OUT = 1e-3  # of the range: so far values may lie outside because they were rounded
_ALIKE = 100.0  # BLEU and chrF of texts that are the same
_IGNORED = 0  # labels below it are left out, as cross entropy leaves out -100


@dataclass(frozen=True)
class Text:
    """The tokens of one sample on both sides.

    Attributes:
        sample: Its number, from 0.
        start: Place of the first token that is shown.
        reference: Tokens of the reference from there on.
        target: Tokens of the target.
        first: Place of the first token that differs, ``None`` if none does.
        length: How many tokens the longer side has.
    """

    sample: int
    start: int
    reference: tuple[int, ...]
    target: tuple[int, ...]
    first: int | None
    length: int


@dataclass(frozen=True)
class Kind:
    """How amounts of a metric are shown and held to a limit.

    Attributes:
        sample: What a sample is called.
        unit: ``dB``, ``share``, or ``""``.
        at_least: Large values are good.
        each_side: Each side has a value of its own, and the limit is how much worse the target may be.
        bounded: Amounts are from 0 to 1.
        show: Mean amount -> value.
        bound: Limit -> largest mean amount; of ``each_side`` largest difference of the means.
        change: Of ``each_side``: difference of mean amounts -> how much worse the target is, in the unit of the limit.
    """

    sample: str
    unit: str
    at_least: bool
    each_side: bool = False
    bounded: bool = False
    show: Callable[[float], float] = float
    bound: Callable[[float], float] = float
    change: Callable[[float], float] = float


@dataclass
class Scores:
    """The amounts of all samples, and what is shown of the first or worst ones.

    Attributes:
        kind: What they are.
        target: One amount a sample; of ``each_side`` the target's.
        reference: The reference's, of ``each_side`` alone.
        shown: Pictures.
        texts: Tokens.
        notes: What a reader has to know of the numbers.
        is_equal: Everything that was read is equal on both sides.
    """

    kind: Kind
    target: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)
    shown: list[pictures.Shown] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_equal: bool = True


def score(  # noqa: PLR0913  the outputs, and what only some kinds have
    kind: str,
    metric: TaskMetric,
    batches: Iterable[Batch],
    *,
    labels: Sequence[Array] = (),
    function: Callable[..., Any] | None = None,
    forced: bool = False,
) -> Scores:
    """Return the amounts of every sample.

    Args:
        kind: One of ``TASK_KINDS``, or ``own``.
        metric: Its section of the recipe.
        batches: The outputs, call by call.
        labels: What is true, step by step.
        function: Of ``own``: the function.
        forced: The target went on with the reference's tokens, so that each token is a sample of its own.

    Raises:
        NotComputableError: There are no samples, or something in them has no such metric; the text says which and why.
    """
    watched = Scores(Kind("sample", "", at_least=False))
    batches = _watch(batches, watched)
    if kind in PICTURES:
        found = _score_pictures(kind, metric, batches)
    elif kind == "accuracy":
        found = _score_accuracy(metric, batches, labels)
    elif kind == "token_agreement":
        found = _score_tokens(metric, batches, forced=forced)
    elif kind in TEXTS:
        found = _score_texts(kind, metric, batches, forced=forced)
    elif kind == "perplexity":
        found = _score_words(batches, labels)
    elif function is not None:
        found = _score_by_function(metric, batches, function)
    else:
        found = _score_samples(kind, metric, batches)
    if not found.target:
        raise NotComputableError("its outputs have no sample")
    found.is_equal = watched.is_equal
    return found


def _watch(batches: Iterable[Batch], into: Scores) -> Iterator[Batch]:
    """Yield batches, and note whether they are all equal."""
    for batch in batches:
        into.is_equal = into.is_equal and bool(np.array_equal(batch.reference, batch.target))
        yield batch


def _split(batch: Batch, axis: int, before: int) -> Iterator[tuple[int, Floats, Floats]]:
    """Yield the samples of a batch, with the axis of samples, widened: number, reference, target.

    Raises:
        NotComputableError: It has no such axis, is complex, or has NaN or infinities.
    """
    dims = batch.reference.ndim
    if not -dims <= axis < dims:
        raise NotComputableError(f"it has shape {list(batch.reference.shape)}, and no axis {axis} of samples")
    for place in range(batch.reference.shape[axis]):
        cut = [slice(None)] * dims
        cut[axis] = slice(place, place + 1)
        sample = before + place
        yield (
            sample,
            _widen(batch.reference[tuple(cut)], sample, "reference"),
            _widen(batch.target[tuple(cut)], sample, "target"),
        )


def _widen(values: Array, sample: int, side: str) -> Floats:
    if values.dtype.kind == "c":
        raise NotComputableError(f"it is complex ({name_of(values.dtype)}): no kind reads that, a function of your own can")
    wide = widen(np.ascontiguousarray(values)) if is_floating(name_of(values.dtype)) else values.astype(np.float64)
    broken = wide.size - int(np.count_nonzero(np.isfinite(wide)))
    if broken:
        raise NotComputableError(f"sample {sample} of the {side} has {broken} of {wide.size} values that are NaN or infinite")
    return wide


def _score_pictures(kind: str, metric: TaskMetric, batches: Iterable[Batch]) -> Scores:
    low, high = metric.range
    scores = Scores(_shape_pictures(kind, high - low))
    measure = _choose_measure(kind, metric)
    axis = count_axes(metric).get("N", -1)
    least, most = math.inf, -math.inf
    for batch in batches:
        if axis < 0:
            batch = Batch(batch.reference[None], batch.target[None])  # noqa: PLW2901  a batch of one
        elif batch.reference.ndim != len(metric.layout):
            raise NotComputableError(
                f"it has shape {list(batch.reference.shape)}, and layout {metric.layout} names {len(metric.layout)} axes"
            )
        for sample, reference, target in _split(batch, max(axis, 0), len(scores.target)):
            sides = [pictures.split_pictures(side[0] if axis < 0 else side, metric)[0] for side in (reference, target)]
            least, most = min(least, float(sides[0].min())), max(most, float(sides[0].max()))
            amounts = measure(sides[0], sides[1], sample)
            scores.target.append(amounts[-1])
            scores.reference += amounts[:-1]
            _keep_worst(scores, sides[0], sides[1], (low, high), sample)
    _check_range(least, most, (low, high))
    if kind == "clip_score" and len(metric.prompts) != len(scores.target):
        raise NotComputableError(f"there are {len(metric.prompts)} prompts, and {len(scores.target)} pictures")
    return scores


def _shape_pictures(kind: str, width: float) -> Kind:
    if kind == "psnr":
        return Kind(
            "picture",
            "dB",
            at_least=True,
            show=lambda mean: 10 * math.log10(width**2 / mean) if mean else math.inf,
            bound=lambda limit: width**2 / 10 ** (limit / 10),
        )
    if kind == "ssim":
        return Kind("picture", "", at_least=True, show=lambda mean: 1 - mean, bound=lambda limit: 1 - limit)
    return Kind("picture", "", at_least=True, each_side=True, show=lambda mean: -mean)


def _choose_measure(kind: str, metric: TaskMetric) -> Callable[[Floats, Floats, int], tuple[float, ...]]:
    """Return what measures a picture: its number in the run in, one amount, or that of either side, out."""
    width = metric.range[1] - metric.range[0]
    if kind == "psnr":
        return lambda reference, target, _: (pictures.mean_square(reference, target),)
    if kind == "ssim":
        return lambda reference, target, _: (1 - pictures.structural_similarity(reference, target, width),)
    score = libraries.load_pictures(metric)
    return lambda reference, target, sample: tuple(-value for value in score(reference, target, sample))


def _keep_worst(scores: Scores, reference: Floats, target: Floats, bounds: tuple[float, float], sample: int) -> None:
    """Keep the pictures that are furthest apart, in the order of samples."""
    kept = scores.shown
    if len(kept) == MOST_PICTURES:
        best = min(kept, key=lambda one: scores.target[one.sample])
        if scores.target[best.sample] >= scores.target[sample]:
            return
        kept.remove(best)
    kept.append(pictures.show(reference, target, bounds, sample))


def _check_range(least: float, most: float, bounds: tuple[float, float]) -> None:
    """Refuse a range that is not that of the reference's pictures: PSNR and SSIM would be too good or too bad by far.

    Raises:
        NotComputableError: Values lie outside, or fill next to nothing of it.
    """
    low, high = bounds
    slack = _ROUNDED_OUT * (high - low)
    if least > most:
        return
    found = f"the reference has values from {least:.4g} to {most:.4g}"
    stated = f"the range [{low:g}, {high:g}] that the recipe states"
    if least < low - slack or most > high + slack:
        raise NotComputableError(f"{found}, outside of {stated}")
    if most - least < _LEAST_OF_RANGE * (high - low):
        raise NotComputableError(f"{found} only, {(most - least) / (high - low):.1%} of {stated}: is it another one?")


def _score_samples(kind: str, metric: TaskMetric, batches: Iterable[Batch]) -> Scores:
    """Return the amounts of a kind that reads one sample after the other."""
    if kind == "class_agreement":
        shape = Kind("sample", "share", at_least=True, bounded=True, show=lambda mean: 1 - mean, bound=lambda limit: 1 - limit)
    else:
        shape = Kind("sample", "", at_least=False)
    scores = Scores(shape)
    for batch in batches:
        for sample, reference, target in _split(batch, metric.axis, len(scores.target)):
            if kind == "class_agreement":
                classes = [_choose(side, batch.reference) for side in (reference, target)]
                amount = float(np.mean(classes[0] != classes[1]))
            else:
                amount = float(np.mean(np.abs(reference - target)))
                if kind == "mean_rel_error" and amount:
                    size = float(np.mean(np.abs(reference)))
                    if not size:
                        raise NotComputableError(f"sample {sample} of the reference is 0 everywhere: nothing is relative to it")
                    amount /= size
            scores.target.append(amount)
    return scores


def _choose(values: Floats, batch: Array) -> npt.NDArray[Any]:
    """Return the classes that are chosen: the largest of logits along the last axis; integers are classes themselves."""
    return np.argmax(values, axis=-1) if is_floating(name_of(batch.dtype)) else values


def _score_accuracy(metric: TaskMetric, batches: Iterable[Batch], labels: Sequence[Array]) -> Scores:
    scores = Scores(Kind("sample", "share", at_least=True, each_side=True, bounded=True, show=lambda mean: 1 - mean))
    truth = np.asarray(metric.classes) if metric.classes else np.concatenate([np.ravel(each) for each in labels])
    place = 0
    for batch in batches:
        for sample, reference, target in _split(batch, metric.axis, place):
            chosen = [np.ravel(_choose(side, batch.reference)) for side in (reference, target)]
            size = chosen[0].size
            true = truth[place * size : (place + 1) * size]
            if true.size != size:
                raise NotComputableError(f"there are {truth.size} labels, and none for sample {sample}")
            place += 1
            for one, here, there in zip(true, *chosen, strict=True):
                if one >= _IGNORED:
                    scores.reference.append(float(here != one))
                    scores.target.append(float(there != one))
    if place and truth.size % place:
        raise NotComputableError(f"there are {truth.size} labels for {place} samples")
    if place and truth.size > place * size:
        raise NotComputableError(f"there are {truth.size} labels, and {place * size} outputs")
    return scores


def _score_tokens(metric: TaskMetric, batches: Iterable[Batch], *, forced: bool) -> Scores:
    """Return for each token whether it differs, or for each text which share does if a side has read what it wrote itself."""
    agreement = {"at_least": True, "bounded": True, "show": lambda mean: 1 - mean, "bound": lambda limit: 1 - limit}
    scores = Scores(Kind("token" if forced else "text", "share", **agreement))  # type: ignore[arg-type]
    for here, there in _gather_texts(metric, batches, scores):
        differ = [one != other for one, other in zip(here, there, strict=True)]
        if forced:
            scores.target += [float(one) for one in differ]
        elif differ:
            scores.target.append(sum(differ) / len(differ))
    if not forced:
        scores.notes.append("each side has read its own tokens, so that all behind the first other one are consequences of it")
    return scores


def _score_texts(kind: str, metric: TaskMetric, batches: Iterable[Batch], *, forced: bool) -> Scores:
    """Return how far the text that the target wrote is from that of the reference, text by text."""
    scores = Scores(Kind("text", "", at_least=True, show=lambda mean: _ALIKE - mean, bound=lambda limit: _ALIKE - limit))
    measure = libraries.load_texts(kind, metric)
    scores.target = [_ALIKE - measure(here, there) for here, there in _gather_texts(metric, batches, scores) if here]
    if not metric.tokenizer:
        scores.notes.append("without a tokenizer, each token is a word")
    if forced:
        scores.notes.append(
            "the target went on with the reference's tokens: each word is the one that it would have written next"
        )
    return scores


def _gather_texts(metric: TaskMetric, batches: Iterable[Batch], scores: Scores) -> list[tuple[list[int], list[int]]]:
    """Return the tokens of each text on both sides, and keep for the report the texts that differ first.

    Raises:
        NotComputableError: They are no integers.
    """
    written: dict[tuple[tuple[int, int], int], tuple[list[int], list[int]]] = {}
    for batch in batches:
        if is_floating(name_of(batch.reference.dtype)) or is_floating(name_of(batch.target.dtype)):
            kind = name_of(batch.reference.dtype)
            raise NotComputableError(f"it is {kind}, and tokens are integers: class_agreement reads logits")
        for place, reference, target in _split(batch, metric.axis, 0):
            sides = written.setdefault((batch.run, place), ([], []))
            for side, values in zip(sides, (reference, target), strict=True):
                side += [int(token) for token in np.ravel(values)]
    for sample, (here, there) in enumerate(written.values()):
        first = next((place for place, (one, other) in enumerate(zip(here, there, strict=True)) if one != other), None)
        start = max(0, (first or 0) - MOST_TOKENS // 3)
        part = slice(start, start + MOST_TOKENS)
        scores.texts.append(Text(sample, start, tuple(here[part]), tuple(there[part]), first, len(here)))
    scores.texts = sorted(scores.texts, key=lambda text: text.first is None)[:MOST_TEXTS]
    return list(written.values())


def _score_words(batches: Iterable[Batch], labels: Sequence[Array]) -> Scores:
    """Return minus the logarithm of the probability of each token of the text that both sides have read."""
    scores = Scores(Kind("token", "", at_least=False, each_side=True, show=math.exp, bound=math.log1p, change=math.expm1))
    runs: list[tuple[int, int]] = []
    for batch in batches:
        if batch.run not in runs:
            runs.append(batch.run)
        if len(runs) > len(labels):
            raise NotComputableError(f"there are labels of {len(labels)} runs of the model, and logits of more")
        words = labels[len(runs) - 1]
        logits = batch.reference
        if words.ndim != 2 or logits.ndim != 3 or words.shape[0] != logits.shape[0]:
            shapes = f"logits have shape {list(logits.shape)} and labels {list(words.shape)}"
            raise NotComputableError(f"{shapes}; expected [texts, tokens, words] and [texts, tokens]")
        if words.shape[1] == batch.calls:  # written token by token: the last logits of each call are those of the next token
            rows, true = slice(-1, None), words[:, batch.number : batch.number + 1]
        elif batch.calls == 1 and words.shape[1] == logits.shape[1]:  # read at once: each token is foretold by those before it
            rows, true = slice(0, -1), words[:, 1:]
        else:
            calls = f"{batch.calls} calls gave logits of {logits.shape[1]} tokens"
            raise NotComputableError(f"{calls}, and there are {words.shape[1]} labels")
        if true.size and int(true.max()) >= logits.shape[2]:
            raise NotComputableError(f"a label is {int(true.max())}, and there are {logits.shape[2]} words")
        for text in range(logits.shape[0]):
            scores.reference += _surprise(_widen(logits[text, rows], text, "reference"), true[text])
            scores.target += _surprise(_widen(batch.target[text, rows], text, "target"), true[text])
    return scores


def _surprise(logits: Floats, true: Array) -> list[float]:
    """Return minus the logarithm of the probability of each true word; labels below 0 are left out.

    Args:
        logits: ``[tokens, words]``.
        true: The words, of shape ``[tokens]``.
    """
    highest = logits.max(axis=-1, initial=-np.inf)
    sums = highest + np.log(np.exp(logits - highest[:, None]).sum(axis=-1))
    counted = np.flatnonzero(true >= _IGNORED)
    return [float(sums[place] - logits[place, int(true[place])]) for place in counted]


def _score_by_function(metric: TaskMetric, batches: Iterable[Batch], function: Callable[..., Any]) -> Scores:
    sign = -1.0 if metric.direction == "at_least" else 1.0
    arguments = {key: value for key, value in metric.function.items() if key != TARGET}
    scores = Scores(Kind("sample", "", at_least=sign < 0))
    sides = 0
    for batch in batches:
        integers = not is_floating(name_of(batch.reference.dtype))
        for sample, *pair in _split(batch, metric.axis, len(scores.target)):
            given = [np.squeeze(side, axis=metric.axis) for side in pair]
            if integers:
                given = [side.astype(batch.reference.dtype) for side in given]
            values = own_function.call(function, arguments, given[0], given[1], sample)
            if sides not in {0, len(values)}:
                raise NotComputableError(f"the function returned {sides} numbers before, and {len(values)} at sample {sample}")
            sides = len(values)
            scores.target.append(sign * values[-1])
            scores.reference += [sign * values[0]] if sides == 2 else []
    scores.kind = Kind(
        "sample",
        "",
        at_least=sign < 0,
        each_side=sides == 2,
        show=lambda mean: sign * mean,
        bound=float if sides == 2 else lambda limit: sign * limit,
    )
    return scores
