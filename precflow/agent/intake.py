"""Reading files that may come from a stranger: only regular files, up to a size, and JSON up to a depth.

A dump, a request, a bundle or a log may be sent by somebody else. Reading it must not hang, fill the memory or exhaust the
stack, and no number may be one that the next line of code cannot compute with. Judge and agent share this module: Python 3.8,
standard library.

A reader of JSON takes :func:`read_json` or :func:`parse_json`; one of JSON lines :func:`parse_lines`; one of text
:func:`read_text`. All of them raise :class:`OSError` where a file cannot be read, and :class:`ValueError` where it is not what
it should be. Sizes and counts in what was read go through :func:`check_count`.
"""

from __future__ import annotations

import codecs
import errno
import io
import json
import math
import os
import stat
from functools import lru_cache
from typing import Any, Dict, FrozenSet, Iterator, List, Tuple, Union

LARGEST = 1 << 30  # bytes of a file that is read as a whole
DEEPEST = 64  # levels of objects and lists inside each other
LONGEST_NUMBER = 400  # digits; the largest float64 has 309. In older Pythons the time grows with the square
_SAFE_DIGITS = 308  # every integer of so many characters is one that float64 holds
_LARGEST_COUNT = 1 << 63  # of bytes or things

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)

Path = Union[str, "os.PathLike[str]"]


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading; never wait for a writer.

    A named pipe waits for a writer, a device may never end, and files of ``/proc`` claim to be regular but can do either.
    The file behind a name may be replaced between check and opening, so it is checked again once it is open.

    Raises:
        OSError: It cannot be opened, or is not a regular file (``EINVAL``).
    """
    try:
        _check_regular(os.stat(path), path)  # before opening: to open a device may already have an effect
        descriptor = os.open(path, _FLAGS)
    except ValueError as error:  # a NUL, or half a surrogate pair
        raise OSError(errno.EINVAL, "not a valid file name") from error
    try:
        _check_regular(os.fstat(descriptor), path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _check_regular(status: os.stat_result, path: Path) -> None:
    made_up = status.st_dev in _virtual_file_systems()
    if made_up or not stat.S_ISREG(status.st_mode):
        kind = next((name for fits, name in _KINDS if fits(status.st_mode)), "made up by the system")
        raise OSError(errno.EINVAL, "it is not a regular file but %s" % kind, str(path))


@lru_cache(maxsize=1)
def _virtual_file_systems() -> FrozenSet[int]:
    """Return the device numbers of file systems whose files the kernel makes up, though they are marked as regular."""
    devices = {os.stat(folder).st_dev for folder in ("/proc", "/sys") if os.path.isdir(folder)}
    return frozenset(devices - {os.stat("/").st_dev})


def read_pieces(path: Path, size: int) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces, up to the size that it has when it is opened.

    Raises:
        OSError: It cannot be read.
    """
    with open_regular(path) as file:
        left = os.fstat(file.fileno()).st_size
        while left > 0:
            piece = file.read(min(size, left))
            if not piece:
                return
            left -= len(piece)
            yield piece


def read_bytes(path: Path, largest: int = LARGEST) -> bytes:
    """Return the bytes of a file.

    Raises:
        OSError: It cannot be read, is not a regular file, or has more than ``largest`` bytes.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > largest:
            raise OSError(errno.EFBIG, "it has %d bytes, expected at most %d" % (size, largest))
        return file.read(size)


def read_text(path: Path, largest: int = LARGEST) -> str:
    """Return the text in a file of any program: UTF-8, or UTF-16 where its first bytes say so; other bytes become U+FFFD.

    Raises:
        OSError: As :func:`read_bytes`.
    """
    data = read_bytes(path, largest)
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8")
    return data.decode(encoding, "replace")


def read_json(path: Path, largest: int = LARGEST, *, finite: bool = False) -> Any:
    """Return the data in a JSON file.

    Raises:
        OSError: As :func:`read_bytes`.
        ValueError: As :func:`parse_json`.
    """
    return parse_json(read_bytes(path, largest), finite=finite)


def parse_json(text: Union[str, bytes], *, finite: bool = False) -> Any:
    """Return plain data from JSON. ``NaN`` and ``Infinity`` are floats, as Python writes them, unless it is to be ``finite``.

    Raises:
        ValueError: It is not JSON or not UTF-8, has a key twice or a number beyond float64, or is nested deeper than
            ``DEEPEST``; gives line and column if they are known.
    """
    try:
        plain = json.loads(
            text if isinstance(text, str) else text.decode("utf-8"),
            object_pairs_hook=_build_object,
            parse_float=_parse_float,
            parse_int=_parse_int,
            parse_constant=_refuse_constant if finite else float,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply, expected at most %d levels" % DEEPEST) from None
    check_depth(plain)
    return plain


def parse_lines(text: str) -> Iterator[Tuple[int, Any]]:
    """Yield the number of each line of JSON lines, and its value; empty lines are left out.

    In place of the value of a line that is not usable comes the :class:`ValueError` of :func:`parse_json`, so that whoever
    reads may go on: the last line of a log is often cut.
    """
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                value = parse_json(line)
            except ValueError as error:
                value = error
            yield number, value


def check_count(value: Any, what: str) -> int:
    """Return a size or a count that was read.

    Raises:
        ValueError: It is not a whole number from 0 up: ``1.5``, ``Infinity``, ``true``, ``"7"``.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _LARGEST_COUNT:
        raise ValueError("%s is %s, expected a whole number from 0 up" % (what, _shorten(repr(value))))
    return value


def check_depth(plain: Any) -> None:
    """Make sure that plain data can be walked by recursion without exhausting the stack.

    Raises:
        ValueError: It is nested deeper than ``DEEPEST``.
    """
    level = [plain]
    for _ in range(DEEPEST + 1):
        level = [item for value in level for item in _list_containers(value)]
        if not level:
            return
    raise ValueError("it is nested too deeply, expected at most %d levels" % DEEPEST)


def _list_containers(plain: Any) -> List[Any]:
    """Return the dicts and lists directly inside a dict or list."""
    values = plain.values() if isinstance(plain, dict) else plain if isinstance(plain, list) else ()
    return [value for value in values if isinstance(value, (dict, list))]


def _build_object(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    plain = dict(pairs)
    if len(plain) < len(pairs):  # Python would keep the last value silently, another reader perhaps the first
        keys = [key for key, _ in pairs]
        raise ValueError("key %r appears twice" % next(key for key in keys if keys.count(key) > 1))
    return plain


def _parse_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):  # "1e999" is valid JSON, and float() makes an infinity of it
        raise ValueError("number %s is beyond what a float64 holds" % _shorten(text))
    return number


def _parse_int(text: str) -> int:
    if len(text) > LONGEST_NUMBER:
        raise ValueError("number %s has %d digits" % (_shorten(text), len(text)))
    number = int(text)
    if len(text) > _SAFE_DIGITS:
        try:
            float(number)
        except OverflowError:
            raise ValueError("number %s is beyond what a float64 holds" % _shorten(text)) from None
    return number


def _refuse_constant(text: str) -> float:
    raise ValueError("it has %s where a number is expected" % text)


def _shorten(text: str) -> str:
    return text if len(text) <= 24 else text[:21] + "..."
