"""Artifacts of stages on disk: typed values as JSON, lists as JSON lines, written so that a reader never sees half a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import cattrs

from precflow.comparison.scaled import Scaled
from precflow.errors import StoreError

Value = TypeVar("Value")
_CONVERTER = cattrs.Converter()
_CONVERTER.register_structure_hook(Scaled, lambda pair, _: Scaled(float(pair[0]), int(pair[1])))  # a tuple: no types are seen


def write_value(path: Path, value: object) -> None:
    """Write one dataclass (or plain data) as JSON, through a temporary file."""
    _replace(path, json.dumps(_CONVERTER.unstructure(value), ensure_ascii=False, indent=1) + "\n")


def read_value(path: Path, kind: type[Value]) -> Value:
    """Read back what :func:`write_value` wrote.

    Raises:
        StoreError: The file is missing or is not such a value.
    """
    return _structured(_parsed(path, _text(path)), kind, path)


def write_lines(path: Path, values: Iterable[object]) -> None:
    """Write one JSON line a value, through a temporary file."""
    _replace(path, "".join(json.dumps(_CONVERTER.unstructure(value), ensure_ascii=False) + "\n" for value in values))


def read_lines(path: Path, kind: type[Value]) -> list[Value]:
    """Read back what :func:`write_lines` wrote.

    Raises:
        StoreError: The file is missing, or a line is not such a value.
    """
    return [_structured(_parsed(path, line), kind, path) for line in _text(path).split("\n") if line]


def read_plain(path: Path) -> Any:
    """Read plain JSON.

    Raises:
        StoreError: The file is missing or is not JSON.
    """
    return _parsed(path, _text(path))


def _structured(data: Any, kind: type[Value], path: Path) -> Value:
    try:
        return _CONVERTER.structure(data, kind)
    except Exception as error:
        raise StoreError(f"{path} is not a {kind.__name__} as this precflow writes it", next_step=_AGAIN) from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}", next_step=_AGAIN) from error


def _parsed(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise StoreError(f"{path} is damaged: {error}", next_step=_AGAIN) from error


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.writing")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


_AGAIN = "remove the folder it is in and run the same command again; other stages are kept"
