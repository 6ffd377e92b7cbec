"""Section ``task_metrics`` of a recipe: what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from precflow.config.documents import DottedPath, PathProblems
from precflow.config.schema import RunConfig, TaskMetric
from precflow.config.suggestions import did_you_mean
from precflow.config.vocabulary import TASK_KINDS

TARGET = "_target_"
PICTURES = ("psnr", "ssim", "clip_score")
TEXTS = ("bleu", "chrf")  # from 0 to 100
LABELLED = ("accuracy", "perplexity")
_SHARES = ("ssim", "class_agreement", "token_agreement", "accuracy")  # limits are between 0 and 1
_OWN = "own"
_OF_KINDS = {"tokenizer": TEXTS, "weights": ("clip_score",), "prompts": ("clip_score",)}  # keys that only some kinds read
_NEEDED = {
    "clip_score": ("weights", "prompts"),
    "chrf": ("tokenizer",),  # the letters of what was written
}


def kind_of(name: str, metric: TaskMetric) -> str:
    """Return which metric an entry is: ``own`` for a function of the user's, ``""`` if it is none.

    >>> kind_of("psnr", TaskMetric()), kind_of("nearest", TaskMetric(kind="class_agreement")), kind_of("mine", TaskMetric())
    ('psnr', 'class_agreement', '')
    """
    if metric.function:
        return _OWN
    return metric.kind or (name if name in TASK_KINDS else "")


def find_problems(config: RunConfig) -> PathProblems:
    """Yield task metrics that could not be computed, or that could not fail or pass whatever the outputs are."""
    for name, metric in config.task_metrics.items():
        path, kind = ("task_metrics", name), kind_of(name, metric)
        if not kind:
            known = ", ".join(TASK_KINDS)
            yield path, f"is no metric; give kind (one of {known}) or function.{did_you_mean(name, TASK_KINDS)}"
            continue
        yield from _check_function(path, metric)
        yield from _check_limit(path, kind, metric.limit)
        if kind in PICTURES:
            yield from _check_pictures(path, metric)
        elif metric.range:
            yield (*path, "range"), f"is of pictures ({', '.join(PICTURES)}), and this is {kind}"
        yield from _check_libraries(path, kind, metric)
        if metric.labels and metric.classes:
            yield (*path, "classes"), "and labels exclude each other: both say what is true"
        if kind in LABELLED and not (metric.labels or metric.classes):
            what = "tokens" if kind == "perplexity" else "labels"
            yield (*path, "labels"), f"is needed: {kind} holds outputs to what is true, such as {path[-1]}.labels={what}"
        if kind == "perplexity" and metric.classes:
            yield (*path, "classes"), "has no words: name the tokens by labels"


def _check_function(path: DottedPath, metric: TaskMetric) -> PathProblems:
    if metric.kind and metric.function:
        yield (*path, "kind"), "and function exclude each other"
    if metric.function and TARGET not in metric.function:
        yield (*path, "function"), f"has no `{TARGET}`: the dotted name of a function, such as our_metrics.clip_score"
    if metric.function and not metric.direction:
        yield (*path, "direction"), "is needed: `at_least` if a large value of the function is good, else `at_most`"
    if metric.direction and not metric.function:
        yield (*path, "direction"), "is of a function of your own: a kind has its own"


def _check_libraries(path: DottedPath, kind: str, metric: TaskMetric) -> PathProblems:
    for name, kinds in _OF_KINDS.items():
        if getattr(metric, name) and kind not in kinds:
            yield (*path, name), f"is of {' and '.join(kinds)}, and this is {kind}"
        elif not getattr(metric, name) and name in _NEEDED.get(kind, ()):
            yield (*path, name), f"is needed: {kind} reads it"


def _check_limit(path: DottedPath, kind: str, limit: float | None) -> PathProblems:
    if limit is None:
        return
    if not math.isfinite(limit):
        yield (*path, "limit"), f"is {limit}; expected a number"
    elif kind in _SHARES and not 0 < limit < 1:
        example = "1%" if kind == "accuracy" else "99%. No number of samples shows that all others agree too"
        yield (*path, "limit"), f"is {limit:g}; expected a share above 0 and below 1, such as {example}"
    elif kind in TEXTS and not 0 < limit < 100:
        yield (*path, "limit"), f"is {limit:g}; expected a number above 0 and below 100, which texts that are alike have"
    elif kind not in (*_SHARES, _OWN) and limit <= 0:
        yield (*path, "limit"), f"is {limit:g}; expected a number above 0"


def _check_pictures(path: DottedPath, metric: TaskMetric) -> PathProblems:
    if len(metric.range) != 2 or not metric.range[0] < metric.range[1] or not all(map(math.isfinite, metric.range)):
        given = f"is {list(metric.range)}; expected" if metric.range else "is needed:"
        yield (
            (*path, "range"),
            f"{given} the smallest and the largest value that a picture can have, such as [0, 1] or [0, 255]",
        )
    axes = metric.layout
    if len(set(axes)) != len(axes) or not set("HW") <= set(axes) <= set("NCHW"):
        yield (*path, "layout"), f"is {axes}; expected H and W, and N and C where there are such axes, as NCHW, NHWC or HW"


def count_axes(metric: TaskMetric) -> Mapping[str, int]:
    """Return the place of each axis of a picture.

    >>> dict(count_axes(TaskMetric(layout="HWC")))
    {'H': 0, 'W': 1, 'C': 2}
    """
    return {letter: place for place, letter in enumerate(metric.layout)}
