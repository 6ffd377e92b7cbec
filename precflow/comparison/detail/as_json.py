"""Turns descriptions and details into plain data for strict JSON, which has no NaN and infinity: these become texts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from precflow.comparison.detail.description import Description
from precflow.comparison.detail.detail import Detail
from precflow.comparison.detail.extent import mean, norm
from precflow.comparison.detail.record import RecordDetail

_WORDS = {math.inf: "Infinity", -math.inf: "-Infinity"}


def plain_description(of: Description) -> dict[str, Any]:
    """Return the description of a tensor as plain data, with mean and norm instead of sums."""
    extent = {name: value for name, value in plain(of.extent).items() if name not in {"total", "square"}}
    # Without ordinary elements, minimum and maximum are infinities: the neutral values of min and max.
    extremes = {} if of.extent.ordinary else {"minimum": None, "maximum": None}
    averages = {
        "ordinary": of.extent.ordinary,
        "mean": plain(mean(of.extent)) if of.extent.ordinary else None,
        "norm": plain(norm(of.extent)),
    }
    return {**plain(of), "extent": {**extent, **averages, **extremes}}


def plain_detail(of: Detail) -> dict[str, Any]:
    """Return the detail of a pair of tensors as plain data."""
    return {**plain(of), "reference": plain_description(of.reference), "target": plain_description(of.target)}


def plain_record(of: RecordDetail) -> dict[str, Any]:
    """Return everything about one record of both sides as plain data; ``None`` (JSON ``null``) for what is missing."""
    sides = {"reference": of.reference, "target": of.target}
    alone = {side: plain_description(tensor) if tensor else None for side, tensor in sides.items()}
    return {**plain(of), **alone, "detail": plain_detail(of.detail) if of.detail else None}


def plain(value: Any) -> Any:
    """Return dataclasses as dictionaries, sequences as lists, and numbers that JSON lacks as texts.

    >>> plain((1.5, math.nan, {"a": -math.inf}))
    [1.5, 'NaN', {'a': '-Infinity'}]
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else _WORDS.get(value, "NaN")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(inner) for inner in value]
    return value
