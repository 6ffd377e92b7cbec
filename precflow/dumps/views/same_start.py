"""Two dumps up to the first input from outside that differs between them.

What is computed from other data says nothing about a device, and what was computed before does::

    step 0   x, timestep 1000            the same
    step 1   x, timestep 955.18 / 956    the model's call is given another timestep: nothing from here on is compared

Inputs that the model itself had made are no data (:mod:`precflow.dumps.batches`), and cut nothing off. Nor do calls that one
side makes more of its models (:mod:`precflow.dumps.views.aligned_model_calls`): the others are compared. Weights in
another type, of values that are equal after rounding, count as the same (:mod:`precflow.dumps.starting_weights`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from precflow.dumps.batches import NOTHING_GIVEN, GivenInputs, align_entries, compare_given
from precflow.dumps.header import ContentEntries, Header
from precflow.dumps.origins import Origins, parse_name
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call
from precflow.dumps.starting_weights import align_weights, compare_weights
from precflow.dumps.views.aligned_model_calls import NOTHING_FURTHER, ModelCalls, RenumberedModelCalls, pair_model_calls
from precflow.dumps.views.common_records import see_common
from precflow.dumps.views.derived import DerivedDump

INPUTS = "inputs"


class End(NamedTuple):
    """Where a dump ends: with a call of one rank; of the other ranks, before the step of that call."""

    rank: int
    step: int
    order: int

    def keeps(self, call: Call) -> bool:
        """Tell whether a call comes before the end."""
        return call.step < self.step or (call.step == self.step and call.rank == self.rank and call.order <= self.order)


class SameStart(DerivedDump):
    """A dump with inputs that are seen as the other side's where they are the same, without the calls that other data reached.

    Args:
        whole: The dump.
        header: Its header, or the target's with the entries of the reference.
        given: What the models of both sides were given.
        end: The last call that is kept; ``None`` keeps all.
        model_calls: How calls of the target's models are numbered, where one side makes more of them.
    """

    def __init__(
        self, whole: Dump, header: Header, given: GivenInputs, end: End | None = None, model_calls: ModelCalls = NOTHING_FURTHER
    ) -> None:
        super().__init__(RenumberedModelCalls(whole, model_calls) if model_calls.modules else whole, header)
        self.model_calls = model_calls
        self.given = given
        self.is_cut = end is not None
        self._end = end

    def _derive_calls(self) -> list[Call]:
        """Return the calls before the end."""
        calls = self.whole.calls()
        return calls if self._end is None else [call for call in calls if self._end.keeps(call)]


def see_same_start(reference: Dump, target: Dump, same: Sequence[str]) -> tuple[Dump, Dump]:
    """Return both dumps up to the first input from outside that differs; the dumps themselves if none does.

    Where the first call of a model was given other data already, both are whole: then nothing can be compared.

    Args:
        reference: The reference's dump.
        target: The target's.
        same: What has to be the same on both sides; without ``inputs`` in it, nothing is cut off.
    """
    reference, target = see_common(reference, target)
    here, there = reference.header, target.header
    differ = [one.digest and two.digest and one.digest != two.digest for one, two in _pair_contents(here, there)]
    if not any(differ):
        return reference, target
    given, header, calls = NOTHING_GIVEN, there, NOTHING_FURTHER
    if differ[0]:
        calls = pair_model_calls(reference, target)
        given = compare_given(reference, target, calls)
        inputs = align_entries(reference, target, given, calls)
        here = here if inputs[0] is here.inputs else replace(here, inputs=inputs[0])
        header = replace(header, inputs=inputs[1])
    if differ[1]:
        given = replace(given, weights=compare_weights(reference, target))
        header = replace(header, weights=align_weights(reference, target, given.weights))
    sides = ((reference, here.inputs, NOTHING_FURTHER), (target, header.inputs, calls))
    ends = [_find_end(dump, inputs, given, own) for dump, inputs, own in sides] if INPUTS in same else [None, None]
    if ends[0] is None or ends[1] is None:
        first = reference if here is reference.header else SameStart(reference, here, given)
        return first, SameStart(target, header, given, model_calls=calls)
    step = ends[0].step
    return (
        SameStart(reference, _cut_losses(here, step), given, ends[0]),
        SameStart(target, _cut_losses(header, step), given, ends[1], calls),
    )


def _pair_contents(here: Header, there: Header) -> list[tuple[ContentEntries, ContentEntries]]:
    return [(here.inputs, there.inputs), (here.weights, there.weights)]


def _find_end(dump: Dump, inputs: ContentEntries, given: GivenInputs, calls: ModelCalls) -> End | None:
    """Return where a dump ends; ``None`` if no input differs, or none of its models' calls comes before the first that does."""
    start = given.start
    parts = parse_name(start.name) if start is not None else None
    if start is None or parts is None:
        return None
    entry = inputs.entries.get(start.name)
    order = -1 if entry is None else Origins(dump, calls.numbers).find_start(start.name, entry)
    end = End(parts.rank, parts.step, order)
    names = [other for name in inputs.entries if (other := parse_name(name)) is not None]
    before = any(other.step < parts.step or (other.rank == parts.rank and other[1:3] < parts[1:3]) for other in names)
    return end if before and any(map(end.keeps, dump.calls())) else None


def _cut_losses(header: Header, step: int) -> Header:
    """Return a header with the losses of the steps before a step."""
    losses = {number: loss for number, loss in header.loss_of_step.items() if number < step}
    return replace(header, losses=tuple(losses.values()), loss_steps=tuple(losses))
