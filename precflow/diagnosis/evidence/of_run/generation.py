"""A model that writes: whether the error starts while it reads the prompt or with which token, and what is left in its cache.

The cache is what the model around it returns at the end, a tensor for each layer: ``keys.0``, ``past_key_values.3.1`` and the
like. What is computed from it is wrong later on and in later layers too, so the first layer that differs is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from precflow.agent.contract import FORWARD, MODULE, parse_identity
from precflow.diagnosis.evidence.cache_slots import AXES, describe_slots, is_pattern
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.diagnosis.generation import DECODE, Written, find_call_of, find_written
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Record
from precflow.errors import DumpError
from precflow.judgement.verdicts import MISALIGNED_STATUSES, Judged

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison

EVIDENCE = {
    "writing_part": Evidence(
        "the error starts in",
        "`prefill` while the model reads the prompt, `decode` while it writes; absent if it does neither.",
    ),
    "writing_token": Evidence(
        "with the token", "Number of the token that the call where it starts chooses, 1 for that behind the prompt."
    ),
    "writing_tokens": Evidence("tokens that were written", "Behind each prompt, on the reference."),
    "cache_slots": Evidence(
        "wrong in the cache",
        "The first layer that differs, and the positions and heads whose slots are missing, old or in other places; absent if"
        " there are none, or no cache was recorded.",
    ),
    "cache_starts": Evidence("the error starts in that layer", "By the number in the name of the module where it starts."),
    "other_tokens": Evidence(
        "tokens that differ", "`token N of prompt P: reference / target`, in the order written; up to five."
    ),
    "other_tokens_count": Evidence("number of tokens that differ", "Of all prompts; 0 if all are the same."),
    "other_tokens_why": Evidence("the first of them is", "`near tie`, `fault` or `not told`."),
}

_SHOWN = 5
_LAYER = re.compile(r"\.(\d+)")
_WORDS = {"near_tie": "near tie", "fail": "fault"}


def gather(run: Comparison) -> dict[str, Any]:
    """Return what is known of a model that writes; nothing for another one, or where nothing was compared."""
    written = [] if run.blockers else find_written(run.reference.calls())
    if not written:
        return {}
    evidence: dict[str, Any] = {"writing_tokens": max(one.token for one in written)}
    if run.region.suspects:
        start = parse_identity(run.region.suspects[0].record)
        inside = find_call_of(written, start.step, run.region.suspects[0].order)
        if inside is not None:
            evidence |= {"writing_part": inside.part, "writing_token": inside.token}
            layer, slots = _describe_cache(run) if inside.part == DECODE else (-1, "")
            number = _LAYER.search(start.module)
            is_there = number is not None and int(number[1]) == layer
            evidence |= {"cache_slots": slots, "cache_starts": is_there} if slots else {}
    statuses = {one.record: one for one in run.judged}
    different = list(_find_other_tokens(run.reference, run.target, written, statuses))
    evidence["other_tokens_count"] = len(different)
    if different:
        evidence |= {"other_tokens": [text for text, _ in different[:_SHOWN]], "other_tokens_why": different[0][1]}
    return evidence


def _describe_cache(run: Comparison) -> tuple[int, str]:
    """Return the first layer of the cache that fails and what is wrong in it; ``""`` unless whole slots are."""
    failing = {one.record for one in run.judged if one.status in MISALIGNED_STATUSES}
    theirs = {record.text: record for call in run.target.calls() for record in call.outputs}
    caches = [
        (int(number[1]), record)
        for call in run.reference.calls()
        if call.level == MODULE and not call.operator and call.phase == FORWARD
        for record in call.outputs
        if record.text in failing and len(record.shape) == AXES and (number := _LAYER.search(record.index))
    ]
    for layer, record in sorted(caches, key=lambda one: one[0]):
        here, there = _read(run.reference, record), _read(run.target, theirs[record.text])
        if here is not None and there is not None:
            slots = describe_slots(here, there)
            return layer, f"{record.index.split('.')[0]} of layer {layer}: {slots}" if is_pattern(slots) else ""
    return -1, ""


def _find_other_tokens(
    reference: Dump, target: Dump, written: Sequence[Written], statuses: Mapping[str, Judged]
) -> Iterator[tuple[str, str]]:
    """Yield each token that the target chose otherwise, in words, and why."""
    makers = {record.content: record for call in reference.calls() for record in call.outputs if record.content}
    theirs = {record.text: record for call in target.calls() for record in call.outputs}
    for one in written:
        made = makers.get(one.tokens.content) if one.part == DECODE else None
        other = theirs.get(made.text) if made is not None else None
        if made is None or other is None or made.shape != other.shape or made.content == other.content:
            continue
        here, there = _read(reference, made), _read(target, other)
        if here is None or there is None:
            continue
        status = statuses.get(made.text)
        why = _WORDS.get(status.status, "not told") if status is not None else "not told"
        for prompt in np.flatnonzero((here != there).any(axis=tuple(range(1, here.ndim)))):
            ours, others = (int(side[prompt].reshape(-1)[0]) for side in (here, there))
            yield f"token {one.token - 1} of prompt {prompt}: {ours} / {others}", why


def _read(dump: Dump, record: Record) -> Any:
    try:
        return dump.tensor(record) if record.stored and record.shape else None
    except DumpError:
        return None
