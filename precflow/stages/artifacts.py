"""Artifacts of stages on disk: typed values as JSON, lists as JSON lines, written so that a reader never sees half a file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import cattrs
from cattrs.gen import make_dict_structure_fn

from precflow.agent import intake
from precflow.agent.contract import CHECKSUM, DIGEST_SIZE, checksum_of
from precflow.comparison.scaled import Scaled
from precflow.dumps.header import reason_of
from precflow.errors import StoreError

SEAL_FILE = "sealed.json"  # beside the artifacts of a finished stage instance
LARGEST = 1 << 34  # bytes of an artifact

Value = TypeVar("Value")
_CONVERTER = cattrs.Converter()
_CONVERTER.register_structure_hook(Scaled, lambda pair, _: Scaled(float(pair[0]), int(pair[1])))  # a tuple: no types are seen


@_CONVERTER.register_structure_hook_factory(dataclasses.is_dataclass)
def _exactly(kind: type[Any]) -> Callable[[Any, Any], Any]:
    """Return what makes a dataclass of a map with all of its keys and no others: none has a default that nobody wrote."""
    structured = make_dict_structure_fn(kind, _CONVERTER)
    names = {one.name for one in dataclasses.fields(kind)}

    def structure(plain: Any, _: Any) -> Any:
        if not isinstance(plain, dict) or plain.keys() != names:
            raise ValueError(f"expected the keys {sorted(names)}")
        return structured(plain, kind)

    return structure


def write_value(path: Path, value: object) -> None:
    """Write one dataclass (or plain data) as JSON, through a temporary file."""
    _replace(path, json.dumps(_CONVERTER.unstructure(value), ensure_ascii=False, indent=1) + "\n")


def read_value(path: Path, kind: type[Value]) -> Value:
    """Read back what :func:`write_value` wrote.

    Raises:
        StoreError: The file is missing, not what was sealed, or not such a value.
    """
    return _structured(_parsed(path, _text(path)), kind, str(path))


def write_lines(path: Path, values: Iterable[object]) -> None:
    """Write one JSON line a value, through a temporary file."""
    _replace(path, "".join(json.dumps(_CONVERTER.unstructure(value), ensure_ascii=False) + "\n" for value in values))


def read_lines(path: Path, kind: type[Value]) -> list[Value]:
    """Read back what :func:`write_lines` wrote.

    Raises:
        StoreError: The file is missing or not what was sealed, or a line is not such a value.
    """
    lines = enumerate(_text(path).split("\n"), start=1)
    return [_structured(_parsed(path, line, number), kind, f"{path}:{number}") for number, line in lines if line]


def read_plain(path: Path) -> Any:
    """Read plain JSON.

    Raises:
        StoreError: The file is missing, not what was sealed, or not JSON.
    """
    try:
        return intake.parse_json(_text(path))
    except ValueError as error:
        raise StoreError(f"{path} is damaged: {error}", next_step=_AGAIN) from error


def read_seal(folder: Path) -> dict[str, Any]:
    """Return what ``sealed.json`` says of the stage instance in a folder.

    Raises:
        OSError: There is none, or it cannot be read.
        ValueError: It is not what was written.
    """
    plain = intake.read_json(folder / SEAL_FILE)
    if not isinstance(plain, dict) or plain.get(CHECKSUM) != checksum_of(plain):
        raise ValueError(f"{SEAL_FILE} does not have the checksum that it was written with")
    return plain


def checksum_of_file(path: Path) -> str:
    """Return the checksum of a file's bytes as seals have it, BLAKE2b-128 in hex.

    Raises:
        OSError: It cannot be read, or is no regular file.
    """
    digest = hashlib.blake2b(digest_size=DIGEST_SIZE)
    for piece in intake.pieces(path, 1 << 20):
        digest.update(piece)
    return digest.hexdigest()


def _structured(data: Any, kind: type[Value], place: str) -> Value:
    try:
        return _CONVERTER.structure(data, kind)
    except Exception as error:
        raise StoreError(f"{place} is not a {kind.__name__} as this precflow writes it", next_step=_AGAIN) from error


def _text(path: Path) -> str:
    """Return the text of an artifact, once it is clear that it is the one that was sealed; one that is being made has no seal.

    Raises:
        StoreError: It is not, or it cannot be read.
    """
    try:
        data = intake.read_bytes(path, LARGEST)
        if (path.parent / SEAL_FILE).exists():
            _check(data, read_seal(path.parent)["files"][path.name])
        return data.decode("utf-8")
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}", next_step=_AGAIN) from error
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} is damaged: {reason_of(error)}", next_step=_AGAIN) from error


def _check(data: bytes, sealed: Mapping[str, Any]) -> None:
    if sealed[CHECKSUM] != hashlib.blake2b(data, digest_size=DIGEST_SIZE).hexdigest():
        raise ValueError("it does not have the checksum that it was sealed with")


def _parsed(path: Path, text: str, number: int = 0) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        place = f"{path}:{number}" if number else str(path)
        raise StoreError(f"{place} is damaged: {error}", next_step=_AGAIN) from error


def _replace(path: Path, text: str) -> None:
    """Write a text; what is half a surrogate pair is written as JSON escapes it."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.writing")
    temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
    temporary.replace(path)


_AGAIN = "remove the folder it is in and run the same command again; other stages are kept"
