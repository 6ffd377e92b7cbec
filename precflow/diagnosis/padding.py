"""Records that differ in rows of padding alone: rows that no real token reads, which two implementations fill as they like.

A model that is given prompts of several lengths is given a mask as well, which is 0 where a prompt has ended. A kernel that
skips these rows leaves in them what another one computes::

    step0.attention_mask    1 1 1 0 0      hidden states of tokens 0 to 2 agree, those of 3 and 4 do not

If the real tokens of a failing record are within its limits, it passes. What reads padding nevertheless, such as a mean over
all tokens, is a record of its own. Without a mask among the inputs nothing is taken for padding, for a text encoder hands its
padding on. If one side alone hides the padding, real tokens of the other side read it. That is a fault, even where their own
numbers hardly show it.

A sketch cannot be cut to the real tokens. If the norms of their rows agree and those of padding do not, the record neither
fails nor passes: it is no evidence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from precflow.comparison.fused.value_classes import Floats
from precflow.comparison.measure import Measure
from precflow.diagnosis.evidence.tensors import read_row_norms
from precflow.dumps.header import ContentEntry
from precflow.dumps.origins import parse_name
from precflow.dumps.protocol import Array, Dump
from precflow.dumps.records import Call, Record
from precflow.dumps.views.derived import DerivedDump, MadeTensor
from precflow.errors import DumpError
from precflow.judgement.artefacts import PADDING
from precflow.judgement.inputs import JudgeInput
from precflow.judgement.verdicts import Judged

_MASK = re.compile(r"(.*_)?mask")
_SCORES = 4  # axes of the scores of an attention: prompts, heads, tokens, tokens
_NOTHING = 60.0  # a score so far below the largest one has a weight of e**-60
_FAILING = frozenset({"fail", "nonfinite", "undecided"})
_WITHIN = frozenset({"pass", "blind", "accepted"})
_OF_ROWS = frozenset({"relative_l2", "worst_row_error"})


class Mask(NamedTuple):
    """Which tokens are real.

    Attributes:
        name: Name of the input.
        real: Booleans, ``[prompts, tokens]``.
    """

    name: str
    real: npt.NDArray[np.bool_]


class RealTokens(DerivedDump):
    """A dump, with records that are cut to the real tokens for whoever asks for them (:meth:`cut`)."""

    def _derive_calls(self) -> list[Call]:
        return self.whole.calls()

    def cut(self, record: Record, mask: Mask) -> Record | None:
        """Return a record of the real tokens alone; ``None`` if its tensor was not kept or is not made of tokens."""
        if not record.stored or record.part:
            return None
        part = take_real(np.broadcast_to(np.zeros((), np.bool_), record.shape), mask.real)
        if part is None:
            return None
        made = MadeTensor((record,), lambda arrays: _take(arrays, mask.real))
        return self._make(record, made, part.shape, mask.name)


def _take(arrays: Sequence[Array], real: npt.NDArray[np.bool_]) -> Array:
    part = take_real(arrays[0], real)
    assert part is not None, "cut() has tried it with the shape"
    return part


def take_real(array: Array, real: npt.NDArray[np.bool_]) -> Array | None:
    """Return the elements of a tensor that belong to real tokens; ``None`` if it is not made of tokens.

    Args:
        array: ``[prompts, tokens, ...]``, ``[prompts, heads, tokens, ...]``, the scores of an attention, or
            ``[prompts * tokens, ...]``.
        real: ``[prompts, tokens]``.

    >>> take_real(np.arange(6).reshape(2, 3), np.array([[True, True, False], [True, False, False]]))
    array([0, 1, 3])
    """
    prompts, tokens = real.shape
    shape = array.shape
    if shape[:2] == (prompts, tokens):
        return array[real]
    if len(shape) > 2 and (shape[0], shape[2]) == (prompts, tokens):
        pairs = real[:, :, None] & real[:, None, :]
        is_scores = len(shape) == _SCORES and shape[3] == tokens
        return np.moveaxis(array, 1, -1)[pairs] if is_scores else np.moveaxis(array, 1, 2)[real]
    if shape and shape[0] == prompts * tokens:
        return array[real.reshape(-1)]
    return None


def hides_padding(scores: Array, real: npt.NDArray[np.bool_]) -> bool:
    """Tell whether the padding weighs nothing in what real tokens attend to.

    Args:
        scores: ``[prompts, heads, tokens, tokens]``, before a softmax or behind it.
        real: ``[prompts, tokens]``, at least one of each prompt.
    """
    wide = scores.astype(np.float64)
    keys = real[:, None, None, :]
    shown, hidden = (np.where(which, wide, -np.inf).max(-1) for which in (keys, ~keys))
    zero = ((wide == 0) | keys).all(-1)
    return bool((zero | (hidden <= shown - _NOTHING))[np.broadcast_to(real[:, None, :], zero.shape)].all())


def find_masks(reference: Dump, target: Dump) -> dict[tuple[int, int], Mask]:
    """Return rank and step -> the mask that both models are given there, if it has rows of padding."""
    given = (record for call in reference.calls() for record in call.inputs)
    places = {(call.rank, call.step) for call in reference.calls()}  # the inputs of a workload are those of all
    kept: dict[str, Record] | None = None
    masks = dict[tuple[int, int], Mask]()
    for name, entry in reference.header.inputs.entries.items():
        parts = parse_name(name)
        if not _may_be_mask(name, entry) or target.header.inputs.entries.get(name) != entry:
            continue
        if kept is None:
            kept = {record.content: record for record in given if record.stored and record.content and not record.part}
        record = kept.get(entry.content)
        try:
            values = None if record is None else reference.tensor(record)
        except DumpError:
            continue  # its record says so
        if values is not None and set(np.unique(values).tolist()) == {0, 1}:
            mask = Mask(name, values.astype(np.bool_))
            for place in places if parts is None else [(parts.rank, parts.step)]:
                masks.setdefault(place, mask)
    return masks


def _may_be_mask(name: str, entry: ContentEntry) -> bool:
    return len(entry.shape) == 2 and _MASK.fullmatch(name.rpartition(".")[2]) is not None


def mark_padding(
    reference: Dump, target: Dump, make_judge: Callable[[Dump, Dump], JudgeInput]
) -> Callable[[Sequence[Measure], Sequence[Judged]], list[Judged]]:
    """Return a function that judges failing records by their real tokens where rows of padding alone differ.

    It reads failing records in order, and stops at the first that is wrong for real tokens too: what is behind it may be so
    because of that.

    Args:
        reference: The reference's dump.
        target: The target's.
        make_judge: Returns what judges a record of two dumps by the limits of the run.
    """

    def mark(measures: Sequence[Measure], judged: Sequence[Judged]) -> list[Judged]:
        """Return the statuses, those of such records by their real tokens."""
        failing = {one.record: one for one in judged if one.status in _FAILING}
        masks = find_masks(reference, target) if failing else {}
        if not masks:
            return list(judged)
        views = RealTokens(reference), RealTokens(target)
        judge = make_judge(*views)
        sides = [_index_outputs(dump, failing.keys()) for dump in (reference, target)]
        marked: dict[str, Judged] = {}
        for measure in sorted((one for one in measures if one.record in failing), key=lambda one: one.order):
            left, right = (side.get(measure.record) for side in sides)
            mask = masks.get((left.whose.rank, left.whose.step)) if left is not None else None
            if mask is None or left is None or right is None:
                break
            of_real = _judge_real_tokens(views, (left, right), mask, judge, failing[measure.record])
            if of_real is None:
                break
            marked[measure.record] = of_real
        return [marked.get(one.record, one) for one in judged]

    return mark


def _judge_real_tokens(
    views: tuple[RealTokens, RealTokens], pair: tuple[Record, Record], mask: Mask, judge: JudgeInput, failing: Judged
) -> Judged | None:
    """Return the status of a failing record by its real tokens; ``None`` if more than the padding differs, or nobody knows."""
    if failing.status == "nonfinite":  # NaN times a weight of 0 is NaN in every real token
        return None
    reason = f"{PADDING}, where {mask.name} is 0"
    left, right = (view.cut(record, mask) for view, record in zip(views, pair, strict=True))
    if left is None or right is None:
        norms = [read_row_norms(view.whole, record) for view, record in zip(views, pair, strict=True)]
        agree = _differ_in_padding(norms[0], norms[1], mask, failing)
        return Judged(failing.record, "artefact", reason=f"{reason}: of real tokens, norms agree") if agree else None
    of_real = judge(left, right)
    if of_real.status not in _WITHIN:
        return None
    if _is_of_scores(pair[0], mask):
        hidden = [hides_padding(view.whole.tensor(record), mask.real) for view, record in zip(views, pair, strict=True)]
        if hidden[0] != hidden[1]:
            return None
    return replace(of_real, record=failing.record, reason=reason)


def _differ_in_padding(left: Floats | None, right: Floats | None, mask: Mask, judged: Judged) -> bool:
    """Tell whether norms of rows are within the limit of a record for all real tokens, and not for the padding."""
    if left is None or right is None or left.shape != right.shape or judged.metric not in _OF_ROWS:
        return False
    is_within = np.abs(left - right) <= judged.limit * left
    of_real = take_real(is_within, mask.real)
    return of_real is not None and bool(of_real.all()) and not is_within.all()


def _is_of_scores(record: Record, mask: Mask) -> bool:
    prompts, tokens = mask.real.shape
    return len(record.shape) == _SCORES and (record.shape[0], *record.shape[2:]) == (prompts, tokens, tokens)


def _index_outputs(dump: Dump, wanted: Container[str]) -> Mapping[str, Record]:
    return {record.text: record for call in dump.calls() for record in call.outputs if record.text in wanted}
