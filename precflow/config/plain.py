"""Configuration as plain data: for keys, requests and files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


def key_of(field: str) -> str:
    """Return the key that a field stands for: a field ``class_`` is the key ``class``, which no field of Python can be named.

    >>> key_of("class_"), key_of("keep_last")
    ('class', 'keep_last')
    """
    return field.rstrip("_")


def plain(value: Any) -> Any:
    """Return dicts, lists and scalars for any configuration value; dataclass fields in the order of their declaration.

    Tuples become lists and mappings become dicts with text keys, so ``json.dumps`` takes the result as it is.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {key_of(field.name): plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
