"""What must hold in ``capture`` beyond keys and types."""

from __future__ import annotations

from collections.abc import Iterator

from precflow.agent.sampling import parse_slices
from precflow.config.documents import DottedPath
from precflow.config.schema import Capture, CaptureRule, RunConfig
from precflow.config.words import ESCALATING

_RECORDED_AT = {"backward": ("module", "operator"), "gradient": ("module",), "optimizer": ("module",)}
_NARROWING = ("match", "class_", "operator", "level", "phase", "step", "rank")


def problems(config: RunConfig) -> Iterator[tuple[DottedPath, str]]:
    """Yield ``(path, message)`` for everything that makes the section unusable."""
    capture = config.capture
    yield from _rules(capture)
    yield from _ranks(config)
    yield from _phases(capture)
    if capture.keep_last < 0:
        yield ("capture", "keep_last"), "is a number of steps: 0 keeps all"
    given = next((side for side in ("reference", "target") if getattr(config, side).dump), "")
    if capture.detail == ESCALATING and given:
        yield ("capture", "detail"), f"escalating runs both sides a second time, and {given}.dump is given: use capture=tensors"
    if capture.detail == ESCALATING and capture.keep_last:
        yield ("capture", "keep_last"), "and escalating exclude each other: the second pass looks into steps of the first"


def _phases(capture: Capture) -> Iterator[tuple[DottedPath, str]]:
    """Refuse what no level that was asked for records: nothing of it would be compared, and nobody told."""
    for phase, levels in _RECORDED_AT.items():
        if phase in capture.phase and capture.level and not set(levels) & set(capture.level):
            told = f"{phase} is recorded at level {' or '.join(levels)}, and capture.level has {', '.join(capture.level)} only"
            yield ("capture", "phase"), f"{told}: capture.level=[{','.join((levels[0], *capture.level))}]"


def _rules(capture: Capture) -> Iterator[tuple[DottedPath, str]]:
    last = ""  # the rule that takes everything, behind which none counts
    for number, rule in enumerate(capture.rules):
        path: DottedPath = ("capture", "rules", str(number))
        if last:
            yield path, f"never counts: {last} matches everything, and the first match counts"
        yield from ((path, text) for text in _contradictions(rule))
        if not 0 < rule.sample <= 1:
            yield (*path, "sample"), "is a share above 0 and at most 1, such as 1%"
        if not any(getattr(rule, key) for key in _NARROWING):
            last = f"rules[{number}]"
        yield from _slices(rule, path)


def _contradictions(rule: CaptureRule) -> Iterator[str]:
    parts = rule.slices or float(rule.sample) != 1.0
    if not (rule.detail or parts):
        yield "changes nothing: give it a detail (digest, statistics, sketch, tensors, none), slices or a sample"
    if rule.detail == "none" and parts:
        yield "keeps nothing of what it matches (detail: none), so slices and sample mean nothing"


def _slices(rule: CaptureRule, path: DottedPath) -> Iterator[tuple[DottedPath, str]]:
    if rule.slices:
        try:
            parse_slices(rule.slices)
        except ValueError as error:
            yield (*path, "slices"), str(error)


def _ranks(config: RunConfig) -> Iterator[tuple[DottedPath, str]]:
    ranks = max(config.reference.ranks, config.target.ranks)
    named: list[tuple[DottedPath, tuple[int, ...]]] = [(("capture", "rank"), config.capture.rank)]
    named += [(("capture", "rules", str(number), "rank"), rule.rank) for number, rule in enumerate(config.capture.rules)]
    for path, wanted in named:
        beyond = [rank for rank in wanted if rank >= ranks]
        if beyond:
            yield path, f"names rank {beyond[0]}; there are {ranks}, counted from 0"
