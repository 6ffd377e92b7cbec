"""Artifacts of stages on disk: typed values as JSON, lists as JSON lines, written so that a reader never sees half a file.

Reading is strict: the file must have the checksum of its seal, every key must be there, no unknown one may be, and every value
must have its type. There may be a million lines: they are read piece by piece, and what they have in common is kept once.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from precflow.agent import intake
from precflow.agent.contract import CHECKSUM, DIGEST_SIZE, checksum_of
from precflow.comparison.metric_values import MetricValues
from precflow.dumps.garbage import collector_off
from precflow.dumps.header import describe_error
from precflow.errors import StoreError
from precflow.files import replacing

SEAL_FILE = "sealed.json"  # beside the artifacts of a finished stage instance
LARGEST = 1 << 34  # bytes of an artifact
_PIECE = 1 << 20  # bytes of lines that are decoded at a time
_SHARED = 1 << 12  # different values of one field that are kept once; a field with more of them has little in common
_AGAIN = "remove the folder it is in and run the same command again; other stages are kept"

Value = TypeVar("Value")
_cache: dict[tuple[object, Path], Any] | None = None


@contextmanager
def cache_reads() -> Iterator[None]:
    """Keep what :func:`read_once` has read until the outermost such block ends; outside of one, nothing is kept.

    The stages of a run read the same 200 000 measures one after the other. The values are frozen, so they can be shared.
    """
    global _cache  # noqa: PLW0603  one process runs one recipe
    outer = _cache
    _cache = {} if outer is None else outer
    try:
        yield
    finally:
        _cache = outer


def read_once(read: Callable[[Path], Value], path: Path) -> Value:
    """Return ``read(path)``. Within :func:`cache_reads` it is the same object each time, so no caller may change it.

    ``read`` is part of what a value is found by: pass a function of a module, never a lambda, which is a new object each time.
    """
    if _cache is None:
        return read(path)
    key = (read, path)
    if key not in _cache:
        _cache[key] = read(path)
    value: Value = _cache[key]
    return value


def keep_read(read: Callable[[Path], Value], path: Path, value: Value) -> None:
    """Let :func:`read_once` return a value that is there already; outside of :func:`cache_reads`, nothing is kept."""
    if _cache is not None:
        _cache.setdefault((read, path), value)


def write_value(path: Path, value: object) -> None:
    """Write one dataclass (or plain data) as JSON, through a temporary file; one line per key, so that people can read it."""
    plain = _plain(value)
    if isinstance(plain, dict) and plain:
        lines = [f" {_dump(key)}: {_dump(item)}" for key, item in plain.items()]
        _replace(path, ["{\n", ",\n".join(lines), "\n}\n"])
    else:
        _replace(path, [_dump(plain), "\n"])


def read_value(path: Path, kind: type[Value]) -> Value:
    """Read back what :func:`write_value` wrote.

    Raises:
        StoreError: The file is missing, not what was sealed, or not such a value.
    """
    data = _parse(path, _text(path))
    try:
        value = msgspec.convert(data, kind)
        whole = _has_keys_of(_plain(value), data)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _wrong_content_error(str(path), kind) from error
    if not whole:
        raise _wrong_content_error(str(path), kind)
    return value


def write_lines(path: Path, values: Iterable[object]) -> None:
    """Write one line of JSON per value, through a temporary file."""
    _replace(path, map(_dump_line, values))


def read_lines(path: Path, kind: type[Value]) -> list[Value]:
    """Read back what :func:`write_lines` wrote, for a dataclass whose fields hold no other dataclass.

    Raises:
        StoreError: The file is missing or not what was sealed, or a line is not such a value.
    """
    decoder = _line_decoder(kind)  # type: ignore[arg-type]  # classes are hashable
    keep = _Keeper(kind)
    values: list[Value] = []
    number = 1
    # The garbage collector starts after every so many new objects, and would look through all lines again each time.
    with collector_off() as made:
        for piece in _read_pieces(path):
            try:
                lines = decoder.decode_lines(piece)
            except (
                msgspec.MsgspecError,
                UnicodeDecodeError,
            ):  # NaN or infinity, which Python's json reads and msgspec does not; or damage, and then the error names the line
                lines = _parse_lines(path, piece, number, decoder.type, kind)
            number += piece.count(b"\n")
            values += [kind(*keep(msgspec.structs.astuple(line))) for line in lines]
        made.append(len(values))
    return values


def read_json_lines(path: Path) -> list[Any]:
    """Read plain JSON, one value a line.

    Raises:
        StoreError: The file is missing, not what was sealed, or a line is not JSON.
    """
    data = _bytes(path)
    try:
        return _PLAIN.decode_lines(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):  # as in `read_lines`
        lines = _decode(path, data).split("\n")
        return [_parse(f"{path}:{number}", line) for number, line in enumerate(lines, start=1) if line]


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
    """Return the content of ``sealed.json``, the seal of the stage instance in a folder.

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
    for piece in intake.read_pieces(path, 1 << 20):
        digest.update(piece)
    return digest.hexdigest()


@functools.cache
def _line_decoder(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    """Return a decoder for lines of a dataclass, in which every key has to be there and no other may be."""
    hints = get_type_hints(kind)
    # msgspec would let a key with a default be missing from the dataclass itself. The struct has the same fields, no defaults.
    # gc=False: the garbage collector skips these objects, which are in no reference cycle.
    fields = [(field.name, hints[field.name]) for field in dataclasses.fields(kind)]
    return msgspec.json.Decoder(msgspec.defstruct(kind.__name__, fields, forbid_unknown_fields=True, frozen=True, gc=False))


class _Keeper:
    """Keeps once in memory what the values of one class have in common: texts, shapes, counts.

    Args:
        kind: The class. No caller may change what is in its fields.
    """

    def __init__(self, kind: type[Any]) -> None:
        hints = get_type_hints(kind)
        self._keep = [self._choose(hints[field.name]) for field in dataclasses.fields(kind)]

    def __call__(self, values: tuple[Any, ...]) -> list[Any]:
        """Return the values of all fields; those that an earlier object has too are the same objects."""
        return [value if keep is None else keep(value) for keep, value in zip(self._keep, values, strict=True)]

    @staticmethod
    def _choose(hint: Any) -> Callable[[Any], Any] | None:
        """Return what keeps the values of a field; ``None`` if they have nothing in common."""
        if hint is str:
            return sys.intern
        origin, inside = get_origin(hint), get_args(hint)
        if origin is tuple and inside[0] in {int, str}:
            return functools.partial(_share, {}, tuple)
        if origin is not Mapping:
            return None
        if inside == (str, float):
            return lambda metrics: MetricValues(metrics) if metrics else _EMPTY
        if inside[1] in {int, str, tuple[str, str]}:
            return functools.partial(_share, {}, lambda items: tuple(items.items()))
        return lambda items: items or _EMPTY


_EMPTY: Mapping[str, Any] = {}


def _share(known: dict[Any, Any], key_of: Callable[[Any], Any], value: Any) -> Any:
    """Return the first of equal values, as long as there are few different ones."""
    key = key_of(value)
    return known.get(key, value) if len(known) >= _SHARED else known.setdefault(key, value)


def _parse_lines(path: Path, piece: bytes, number: int, line: type[Any], kind: type[Any]) -> list[Any]:
    """Return lines one by one, the first of which has a number.

    Raises:
        StoreError: One of them is not such a value, or the file is not what was sealed.
    """
    try:
        numbered = enumerate(_decode(path, piece).split("\n"), start=number)
        return [_parse_line(f"{path}:{place}", text, line, kind) for place, text in numbered if text]
    except StoreError:
        _bytes(path)  # where the whole file is another one, that is the error
        raise


def _parse_line(place: str, text: str, line: type[Any], kind: type[Any]) -> Any:
    try:
        return msgspec.convert(_parse(place, text), line)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _wrong_content_error(place, kind) from error


def _plain(value: object) -> Any:
    """Return a value as plain data for JSON; NumPy's numbers become Python's, and metrics a dictionary."""
    return msgspec.to_builtins(value, enc_hook=_make_plain)


def _make_plain(other: Any) -> Any:
    """Return what msgspec does not know as what it knows: metrics, other mappings, numbers of NumPy."""
    if isinstance(other, MetricValues):
        return other.as_dict()
    return dict(other) if isinstance(other, Mapping) else other.item()


def _has_keys_of(plain: Any, data: Any) -> bool:
    """Return whether data has all keys of the value made from it, at every depth, so that none was filled by a default."""
    if isinstance(plain, dict):
        return plain.keys() == data.keys() and all(_has_keys_of(item, data[key]) for key, item in plain.items())
    if isinstance(plain, (tuple, list)):
        return len(plain) == len(data) and all(map(_has_keys_of, plain, data))
    return True


def _wrong_content_error(place: str, kind: type[Any]) -> StoreError:
    return StoreError(f"{place} is not a {kind.__name__} as this precflow writes it", next_step=_AGAIN)


def _bytes(path: Path) -> bytes:
    """Return the bytes of an artifact, after comparing them with the seal; a stage that is still being made has no seal yet.

    Raises:
        StoreError: The file is not the one that was sealed, or it cannot be read.
    """
    return b"".join(_read_checked(path, LARGEST))


def _read_pieces(path: Path) -> Iterator[bytes]:
    """Yield an artifact in pieces of whole lines. The last one comes before the seal is checked: see :func:`_bytes`.

    Raises:
        StoreError: The file is not the one that was sealed, or it cannot be read.
    """
    rest = b""
    for piece in _read_checked(path, _PIECE):
        end = piece.rfind(b"\n") + 1
        if end:
            yield rest + piece[:end]
            rest = piece[end:]
        else:
            rest += piece
    if rest:
        yield rest


def _read_checked(path: Path, size: int) -> Iterator[bytes]:
    """Yield the bytes of an artifact in pieces; after the last one, they are compared with the seal.

    Raises:
        StoreError: The file is not the one that was sealed, or it cannot be read.
    """
    state = hashlib.blake2b(digest_size=DIGEST_SIZE)
    try:
        _check_size(path)
        is_sealed = (path.parent / SEAL_FILE).exists()
        sealed = read_seal(path.parent)["files"][path.name][CHECKSUM] if is_sealed else ""
        for piece in intake.read_pieces(path, size):
            state.update(piece)
            yield piece
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}", next_step=_AGAIN) from error
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} is damaged: {describe_error(error)}", next_step=_AGAIN) from error
    if is_sealed and sealed != state.hexdigest():
        raise StoreError(f"{path} is damaged: it does not have the checksum that it was sealed with", next_step=_AGAIN)


def _check_size(path: Path) -> None:
    if path.stat().st_size > LARGEST:
        raise OSError(errno.EFBIG, f"it has more than {LARGEST} bytes")


def _decode(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StoreError(f"{path} is damaged: {describe_error(error)}", next_step=_AGAIN) from error


def _text(path: Path) -> str:
    return _decode(path, _bytes(path))


def _parse(place: str | Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{place} is damaged: {error}", next_step=_AGAIN) from error


def _dump(plain: Any) -> str:
    return json.dumps(plain, ensure_ascii=False)


def _dump_line(value: object) -> str:
    """Return a value as one line of JSON.

    msgspec is several times as fast as Python's encoder, but writes NaN and infinity as ``null`` and refuses lone surrogates.
    """
    try:
        line = _LINES.encode(value).decode()
    except UnicodeEncodeError:
        line = "null"
    return (_dump(_plain(value)) if "null" in line else line) + "\n"


_LINES = msgspec.json.Encoder(enc_hook=_make_plain)
_PLAIN: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def _replace(path: Path, texts: Iterable[str]) -> None:
    """Write texts one after the other. Lone surrogates, which UTF-8 cannot hold, are written as JSON escapes them."""
    with (
        replacing(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file,
    ):
        file.writelines(texts)
