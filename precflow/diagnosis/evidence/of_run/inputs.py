"""Evidence about what both sides start from: how inputs differ, and what sort of data they are; weights by type and ties."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from precflow.comparison.estimated.kept_evidence import load_kept
from precflow.diagnosis.evidence.input_changes import LARGEST, InputChange, find_input_change
from precflow.diagnosis.evidence.input_sketches import find_scaled_sketch
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.dumps.batches import CHOICE, ELSEWHERE, DifferentInput, GivenInputs, find_given, is_whole
from precflow.dumps.dtypes import is_floating
from precflow.environment.reproduction import describe_further, describe_tied
from precflow.errors import DumpError

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison
    from precflow.dumps.records import Record

EVIDENCE = {
    "weights_of_another_type": Evidence(
        "weights of another type", "Up to five, with both types; equal after rounding, in a model whose other weights agree."
    ),
    "weights_of_another_type_count": Evidence("number of weights of another type", "Equal after rounding."),
    "weights_tied": Evidence("weights tied on one side", "Up to five, with the weight that they are tied to."),
    "weights_tied_count": Evidence("of them with other values", "Weights tied on one side that differ in their bits."),
    "inputs_described": Evidence("how these inputs differ", "Up to five, with values and types, the reference's first."),
    "input_words": Evidence("how the first differs", "Values and types, or how far apart; empty if no values were kept."),
    "input_kind": Evidence(
        "sort of data", "pictures, times, tokens, mask or positions, of the first input that differs; empty if unknown."
    ),
    "input_change": Evidence(
        "what gives the first from the reference's",
        "Moved or multiplied values that give all of the target's: exactly, or to rounding where numbers are multiplied.",
    ),
    "input_change_kinds": Evidence(
        "kinds of that change",
        "channels, scale, layout, flip, order, shift, padding, tokens, in the order in which they are done.",
    ),
    "inputs_changed": Evidence("what gives these inputs from the reference's", "Up to three, each with its change."),
    "first_input_kept": Evidence("all of the first was kept", "On both sides, so that its values can be compared."),
    "first_input_is": Evidence(
        "kind of the first difference",
        "data: other data; choice: chosen by the model before; elsewhere: made by another call of it; stale: made in another "
        "step; calls: further calls.",
    ),
    "inputs_chosen": Evidence("inputs that the model chose", "Up to five names; no record leads from the choice to them."),
    "inputs_from_elsewhere": Evidence(
        "inputs that another call made", "Up to five names; the model made them, in another call than on the reference."
    ),
    "inputs_stale": Evidence(
        "inputs that another step made",
        "Up to five, with the calls that made them on both sides; the calls are of different steps.",
    ),
    "further_calls": Evidence(
        "calls of one side alone",
        "Calls of a model in a step that the other side does not make; all other calls are given the same.",
    ),
}

PICTURES, TIMES, TOKENS, MASK, POSITIONS = "pictures", "times", "tokens", "mask", "positions"
_NAMES = (  # the first that fits the last words of an input's name; a name says more than a shape
    (TIMES, re.compile(r"time_?steps?|sigmas?|noise_level|t")),
    (MASK, re.compile(r".*mask")),
    (POSITIONS, re.compile(r".*positions?(_ids)?")),
    (TOKENS, re.compile(r".*(_ids|tokens?|labels?)|ids")),
    (PICTURES, re.compile(r".*(pixel|image|img|picture|frame|video).*")),
)
_CHANNELS = (1, 3, 4)  # of pictures: grey, colours, colours with transparency; latents of 4 channels are not told from these
_SHOWN = 5
_EXPLAINED = 3  # inputs; all of a run are mostly changed alike


def gather(run: Comparison) -> dict[str, Any]:
    """Return how inputs and weights differ that the models of both sides were given."""
    given = find_given(run.target)
    return describe_given(given, _find_changes(run, given))


def _find_changes(run: Comparison, given: GivenInputs) -> dict[str, InputChange]:
    """Return name -> change of the first inputs, as far as each of them is explained."""
    changes: dict[str, InputChange] = {}
    for each in given.different[:_EXPLAINED]:
        try:
            change = _find_change(run, *each.records) if each.records is not None else None
        except DumpError:
            break  # it cannot be read, so nothing is known of it
        if change is None:
            break
        changes[each.name] = change
    return changes


def _find_change(run: Comparison, one: Record, two: Record) -> InputChange | None:
    if max(math.prod(one.shape), math.prod(two.shape)) > LARGEST:
        return None
    if is_whole(one) and is_whole(two):
        return find_input_change(run.reference.tensor(one), run.target.tensor(two))
    return find_scaled_sketch(load_kept(one, run.reference), load_kept(two, run.target))


def describe_given(given: GivenInputs, changes: Mapping[str, InputChange] = MappingProxyType({})) -> dict[str, Any]:
    """Return the evidence by the names of ``EVIDENCE``; empty if nothing differs.

    Args:
        given: What the models of both sides were given.
        changes: Name of an input -> what gives it from the reference's.
    """
    weights = given.weights
    found: dict[str, Any] = {}
    if weights.single:
        found["weights_of_another_type"] = [f"{name}: {' / '.join(weights.retyped[name])}" for name in weights.single[:_SHOWN]]
        found["weights_of_another_type_count"] = len(weights.single)
    if weights.tied:
        found["weights_tied"] = [describe_tied(one) for one in weights.tied[:_SHOWN]]
        found["weights_tied_count"] = sum(not one.is_equal for one in weights.tied)
    if further := [*describe_further(given), *(one.text for one in given.further if not one.placed)]:
        found["further_calls"] = further[:_SHOWN]
    if not given.different:
        return found
    first = given.different[0]
    if change := changes.get(first.name):
        found["input_change"] = change.text
        found["input_change_kinds"] = list(change.kinds)
        found["inputs_changed"] = [f"{name}: {each.text}" for name, each in changes.items()]
    return found | {
        "inputs_described": [f"{each.name}: {each.words}" for each in given.different if each.words][:_SHOWN],
        "input_words": first.words,
        "input_kind": tell_kind(first),
        "first_input_kept": first.records is not None and all(map(is_whole, first.records)),
        "inputs_chosen": [each.name for each in given.different if each.kind == CHOICE][:_SHOWN],
        "inputs_from_elsewhere": [each.name for each in given.different if each.kind == ELSEWHERE][:_SHOWN],
        "inputs_stale": [f"{each.name}: {each.words}" for each in given.stale][:_SHOWN],
        "first_input_is": first.kind,
    }


def tell_kind(given: DifferentInput) -> str:
    """Return what sort of data an input is, by its name, element type and shape; ``""`` if they do not say it.

    >>> tell_kind(DifferentInput("step0.pixel_values", "data", "", "float32", (2, 3, 64, 64)))
    'pictures'
    >>> tell_kind(DifferentInput("step0.input", "data", "", "int64", (2, 9)))
    'tokens'
    """
    name = given.name.rpartition(".")[2].lower()
    kind = next((kind for kind, pattern in _NAMES if pattern.fullmatch(name)), "")
    if kind:
        return kind
    if not is_floating(given.dtype):
        return MASK if given.dtype == "bool" else TOKENS if len(given.shape) in {1, 2} else ""
    if len(given.shape) == 4 and (given.shape[1] in _CHANNELS or given.shape[3] in _CHANNELS):
        return PICTURES
    return ""
