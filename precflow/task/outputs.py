"""Finds the outputs that a task metric reads, on both sides, call by call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from precflow.agent.contract import FORWARD, ROOT_MODULE
from precflow.config.suggestions import did_you_mean
from precflow.dumps.protocol import Array, Dump
from precflow.dumps.record_names import name_place
from precflow.dumps.records import Call, Record
from precflow.errors import DumpError

_MASK = "attention_mask"  # what models of transformers call it


class NotComputableError(Exception):
    """A task metric has no value; its text says why, and such a metric is never met."""


@dataclass(frozen=True)
class Batch:
    """One call on both sides: as many samples as its axis of samples is long.

    Attributes:
        reference: What the reference returned.
        target: What the target returned, of the same shape.
        run: Step and rank of the call.
        number: Which call of its run it is, from 0.
        calls: How many the run has.
    """

    reference: Array
    target: Array
    run: tuple[int, int] = (0, 0)
    number: int = 0
    calls: int = 1


def read_batches(reference: Dump, target: Dump, output: str, index: str) -> Iterator[Batch]:
    """Yield the calls of an output one after the other; only one is read at a time.

    Args:
        reference: Dump of the reference.
        target: Dump of the target.
        output: A module, ``module / operator``, or ``(model)``.
        index: Which of its outputs; ``""`` if it has one.

    Raises:
        NotComputableError: A side does not have it, has other calls or another shape, or did not keep the tensor.
    """
    found = [_find_outputs(dump, output, index, side) for dump, side in ((reference, "reference"), (target, "target"))]
    if len(found[0]) != len(found[1]):
        raise NotComputableError(
            f"{output} was called {len(found[0])} times on the reference and {len(found[1])} on the target"
        )
    runs = [(record.whose.step, record.whose.rank) for record in found[0]]
    calls = Counter(runs)
    done: Counter[tuple[int, int]] = Counter()
    for run, here, there in zip(runs, *found, strict=True):
        values = [_read(reference, here, "reference"), _read(target, there, "target")]
        if values[0].shape != values[1].shape:
            here_and_there = " on the reference and ".join(str(list(value.shape)) for value in values)
            turned = "pairing.rules can join, cut or turn axes"
            raise NotComputableError(f"{output} has shape {here_and_there} on the target; {turned}")
        yield Batch(values[0], values[1], run, done[run], calls[run])
        done[run] += 1


def read_labels(reference: Dump, target: Dump, name: str) -> list[Array]:
    """Return what is true, an input or output of the model, step by step.

    Raises:
        NotComputableError: A side does not have it, or the sides have others.
    """
    found = []
    for dump, side in ((reference, "reference"), (target, "target")):
        records = [record for record in _list_of_model(dump) if record.index == name]
        if not records:
            known = ", ".join(dict.fromkeys(record.index for record in _list_of_model(dump))) or "none"
            raise NotComputableError(f"the {side} has no input or output {name} of the model; it has: {known}")
        found.append([_read(dump, record, side) for record in records])
    if len(found[0]) != len(found[1]) or any(
        here.shape != there.shape or not (here == there).all() for here, there in zip(*found, strict=True)
    ):
        raise NotComputableError(
            f"{name} is not the same on both sides, so that they were not asked the same; of a model that writes, "
            "whatif=[reference_choice] lets the target go on with the reference's tokens"
        )
    return found[0]


def leave_out_padding(reference: Dump, name: str, labels: Sequence[Array]) -> tuple[list[Array], int]:
    """Return the tokens of texts with -1 in place of those that the model's attention mask hides, and how many these are.

    The first token behind padding on the left is left out too: it is foretold by nothing. Nothing is left out of tokens that
    the model has written, and where it has no input ``attention_mask`` of their shape.

    Args:
        reference: Dump of the reference; the inputs of both sides are the same.
        name: The input or output of the model that the tokens are.
        labels: Its values, step by step, ``[texts, tokens]`` each.
    """
    inputs = [
        record
        for call in reference.calls()
        if call.module == ROOT_MODULE and not call.operator and call.phase == FORWARD
        for record in call.inputs
    ]
    masks = [record for record in inputs if record.index == _MASK]
    if len(masks) != len(labels) or name not in {record.index for record in inputs}:
        return list(labels), 0
    kept, hidden = [], 0
    for words, record in zip(labels, masks, strict=True):
        mask = _read(reference, record, "reference")
        if mask.shape != words.shape or words.ndim != 2:
            return list(labels), 0
        seen = mask.astype(bool)
        told = seen.copy()
        told[:, 1:] &= seen[:, :-1]
        hidden += int((~told[:, 1:] & (words[:, 1:] >= 0)).sum())
        kept.append(np.where(told, words, -1))
    return kept, hidden


def _list_of_model(dump: Dump) -> Sequence[Record]:
    """Return outputs, then inputs of the model itself."""
    calls = [call for call in dump.calls() if call.module == ROOT_MODULE and not call.operator and call.phase == FORWARD]
    return [record for call in calls for record in (*call.outputs, *call.inputs)]


def _find_outputs(dump: Dump, output: str, index: str, side: str) -> list[Record]:
    calls = [call for call in dump.calls() if call.phase == FORWARD and _place(call) == output]
    if not calls:
        modules = dict.fromkeys(_place(call) for call in dump.calls() if call.phase == FORWARD and not call.operator)
        meant = did_you_mean(output, modules)
        known = f".{meant}" if meant else f"; its modules are {_list_some(modules)}"
        raise NotComputableError(f"the {side} has recorded no call of {output}{known}")
    records = []
    for call in calls:
        fitting = [record for record in call.outputs if not index or record.index == index]
        if len(fitting) != 1:
            known = _list_some(record.index for record in call.outputs)
            many = f"has no output {index}" if index else f"has {len(call.outputs)} outputs"
            raise NotComputableError(f"{output} {many} on the {side}; choose one by index: {known}")
        records += fitting
    return records


def _place(call: Call) -> str:
    return name_place(call.module, 0, call.operator)


def _list_some(names: Iterable[str], most: int = 6) -> str:
    every = list(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "") or "none"


def _read(dump: Dump, record: Record, side: str) -> Array:
    if record.part or not (record.stored or dump.locate(record)):
        raise NotComputableError(
            f"the {side} did not keep the whole tensor of {record.name}; capture=tensors does, or a capture rule for it"
        )
    try:
        return dump.tensor(record)
    except DumpError as error:
        raise NotComputableError(f"{record.name} of the {side} cannot be read: {error.message}") from error
