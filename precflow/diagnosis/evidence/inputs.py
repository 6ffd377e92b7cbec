"""Evidence about what both sides start from: how inputs differ, and what sort of data they are; weights by type and ties."""

from __future__ import annotations

import re
from typing import Any

from precflow.dumps.batches import CHOICE, ELSEWHERE, DifferentInput, Given
from precflow.dumps.dtypes import is_floating
from precflow.environment.reproduction import describe_further, describe_tied

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


def gather(given: Given) -> dict[str, Any]:
    """Return the evidence by the names of ``names.EVIDENCE``; empty if nothing differs."""
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
    return found | {
        "inputs_described": [f"{each.name}: {each.words}" for each in given.different if each.words][:_SHOWN],
        "input_words": first.words,
        "input_kind": tell_kind(first),
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
