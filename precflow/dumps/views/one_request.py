"""One request of a batch: a dump of which only the tokens of one request are seen.

An engine that serves packs the tokens of many requests behind each other, and another implementation pads them to a rectangle.
What both computed for one request can be compared all the same. A pairing rule says where its tokens are on each side::

    pairing:
      rules:
        - pair_by: request
          reference_batch: [3, 77]        three prompts, padded to 77 tokens
          reference_slices: "[0, :7]"     the first prompt, which has 7
          batch: [31]                     31 tokens of several requests behind each other
          slices: "[12:19]"               of this one

A tensor is cut where it has the sizes of the batch: in its first axes (``[3, 77, 768]``), with heads in between
(``[3, 12, 77, 64]``), twice for the scores of an attention (``[3, 12, 77, 77]``), or with prompts and tokens in one axis
(``[231, 768]``). Everything else, such as weights, stays as it is.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from precflow.agent.sampling import parse_slices
from precflow.config.schema import PairingRule
from precflow.dumps.digest import content_id
from precflow.dumps.foreign import enter
from precflow.dumps.header import ContentEntries, ContentEntry
from precflow.dumps.protocol import Array, Dump
from precflow.dumps.records import Call, Record
from precflow.dumps.views.derived import DerivedDump, MadeTensor
from precflow.errors import ConfigError, DumpError

REQUEST = "request"
_TOKENS_AND_PROMPTS = 2
_SCORES = 3  # axes of an attention's scores over packed tokens: heads, tokens, tokens
Index = tuple[Any, ...]


def find_request(rules: Sequence[PairingRule]) -> PairingRule | None:
    """Return the rule that pairs by request; ``None`` if there is none."""
    return next((rule for rule in rules if rule.pair_by == REQUEST), None)


def see_request(reference: Dump, target: Dump, rule: PairingRule) -> tuple[Dump, Dump]:
    """Return both dumps with the tokens of one request.

    Raises:
        ConfigError: No tensor of a side has the sizes of its batch.
    """
    sides = (
        ("reference_batch", OneRequest(reference, rule.reference_batch, rule.reference_slices)),
        ("batch", OneRequest(target, rule.batch, rule.slices)),
    )
    for key, side in sides:
        if not side.is_cut_anywhere:
            raise ConfigError(
                f"no tensor of {side.path} has the sizes of {key}, {list(side.batch)}",
                next_step="precflow inspect DUMP shows the shapes of what was recorded",
            )
    return sides[0][1], sides[1][1]


class OneRequest(DerivedDump):
    """A dump of which only one request is seen.

    Args:
        whole: The dump.
        batch: Sizes of the batch: prompts and tokens, or the number of tokens that are packed.
        slices: The part of the batch that is the request's, as an index of it.

    Attributes:
        batch: As given.
    """

    def __init__(self, whole: Dump, batch: Sequence[int], slices: str) -> None:
        super().__init__(whole)
        self.batch = tuple(batch)
        self._picked: Index = parse_slices(slices)
        self._how = f"{list(batch)} {slices}"
        self.header = replace(self.header, inputs=self._cut_inputs(whole.header.inputs))

    @property
    def is_cut_anywhere(self) -> bool:
        """Some tensor has the sizes of the batch."""
        return any(record.mark in self._made for call in self._calls for record in (*call.inputs, *call.outputs))

    def _derive_calls(self) -> list[Call]:
        return [
            msgspec.structs.replace(
                call, inputs=tuple(map(self._cut, call.inputs)), outputs=tuple(map(self._cut, call.outputs))
            )
            for call in self.whole.calls()
        ]

    def _cut(self, record: Record) -> Record:
        index = None if record.weight else find_index(record.shape, self.batch, self._picked)
        if index is None:
            return record
        # Without the record's name: what one call returns and another one reads is known by its bits alone.
        text = f"{record.known} {record.part} {self._how}"
        mark = f"made-{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"
        if mark not in self._made or (record.stored and not self._made[mark].sources[0].stored):
            self._made[mark] = MadeTensor((record,), functools.partial(_take, index=index))
        return msgspec.structs.replace(
            record,
            shape=_find_shape(record.shape, index),
            content="",
            mark=mark,
            stored=record.stored and not record.part,
            statistics=None,
            row_norms=None,
        )

    def _cut_inputs(self, inputs: ContentEntries) -> ContentEntries:
        """Return what the model was given of the request.

        An input whose tensor was not kept cannot be cut: it stays whole, and so counts as another one than the other side's.
        """
        given = (record for call in self.whole.calls() for record in call.inputs)
        kept = {record.content: record for record in given if record.stored and record.content}
        entries = dict[str, ContentEntry]()
        for name, entry in inputs.entries.items():
            index = find_index(entry.shape, self.batch, self._picked)
            if index is None:
                entries[name] = entry
                continue
            record = kept.get(entry.content)
            try:
                part = None if record is None else _take([self.whole.tensor(record)], index)
            except DumpError:
                part = None  # its record says so
            entries[name] = entry if part is None else ContentEntry(content_id(part), entry.dtype, part.shape)
        return enter(entries)


def find_index(shape: Sequence[int], batch: Sequence[int], picked: Index) -> Index | None:
    """Return the index of a request in a tensor; ``None`` for a tensor that is not made of the batch.

    Args:
        shape: Sizes of the tensor.
        batch: Sizes of the batch.
        picked: The request, as an index of the batch.

    >>> find_index((3, 77, 8), (3, 77), (0, slice(None, 7)))
    (0, slice(None, 7, None), slice(None, None, None))
    >>> find_index((3, 2, 77, 77), (3, 77), (0, slice(None, 7)))
    (0, slice(None, None, None), slice(None, 7, None), slice(None, 7, None))
    >>> find_index((8, 8), (3, 77), (0, slice(None, 7))) is None
    True
    """
    index: list[Any] = [slice(None)] * len(shape)
    if len(batch) == _TOKENS_AND_PROMPTS:
        prompts, tokens = batch
        rest = list(shape[1:])
        if shape and shape[0] == prompts and tokens in rest[:2]:
            first = 1 + rest.index(tokens)
            index[0], index[first] = picked
            if first == 2 and tuple(shape[2:]) == (tokens, tokens):
                index[3] = picked[1]
            return tuple(index)
        if shape and shape[0] == prompts * tokens:
            index[0] = np.arange(prompts * tokens).reshape(prompts, tokens)[picked].reshape(-1)
            return tuple(index)
        return None
    (tokens,) = batch
    axis = next((axis for axis in (0, 1) if axis < len(shape) and shape[axis] == tokens), None)
    if axis is None:
        return None
    index[axis] = picked[0]
    if len(shape) == _SCORES and tuple(shape[1:]) == (tokens, tokens):
        index[1] = index[2] = picked[0]
    return tuple(index)


def _find_shape(shape: Sequence[int], index: Index) -> tuple[int, ...]:
    return tuple(np.broadcast_to(np.zeros((), np.uint8), tuple(shape))[index].shape)


def _take(arrays: Sequence[Array], index: Index) -> Array:
    return np.ascontiguousarray(arrays[0][index])
