"""Reading files that others wrote: regular files only, up to a size, and JSON only up to a depth.

Judge and agent share it: Python 3.8, standard library.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import stat
from functools import lru_cache
from typing import Any, Dict, FrozenSet, Iterator, List, Tuple, Union

LARGEST = 1 << 30  # bytes of a file that is read as a whole
DEEPEST = 64  # objects and lists inside one another
LONGEST_NUMBER = 400  # digits; the largest float64 has 309

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)

Path = Union[str, "os.PathLike[str]"]


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading, without ever waiting for whoever should write it.

    A named pipe would wait for a writer, a device may never end, and files of ``/proc`` call themselves regular and do either.
    What a name stands for may change between a look and the opening, so it is looked at once more when it is open.

    Raises:
        OSError: It cannot be opened, or it is none (``EINVAL``).
    """
    try:
        _demand_regular(os.stat(path), path)  # opening a device may do something already
        descriptor = os.open(path, _FLAGS)
    except ValueError as error:  # a NUL, or half a surrogate pair
        raise OSError(errno.EINVAL, "no file can have such a name") from error
    try:
        _demand_regular(os.fstat(descriptor), path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _demand_regular(status: os.stat_result, path: Path) -> None:
    made_up = status.st_dev in _devices_made_up()
    if made_up or not stat.S_ISREG(status.st_mode):
        kind = next((name for fits, name in _KINDS if fits(status.st_mode)), "made up by the system")
        raise OSError(errno.EINVAL, "it is not a regular file but %s" % kind, str(path))


@lru_cache(maxsize=1)
def _devices_made_up() -> FrozenSet[int]:
    """Return the devices of file systems whose regular files are none."""
    found = {os.stat(folder).st_dev for folder in ("/proc", "/sys") if os.path.isdir(folder)}
    return frozenset(found - {os.stat("/").st_dev})


def pieces(path: Path, size: int) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces, no more than it has when it is opened: files of ``/proc`` have none.

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
    """Return what a file holds.

    Raises:
        OSError: It cannot be read, is no regular file, or has more than ``largest`` bytes.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > largest:
            raise OSError(errno.EFBIG, "it has %d bytes, expected at most %d" % (size, largest))
        return file.read(size)


def read_json(path: Path, largest: int = LARGEST) -> Any:
    """Return the JSON that a file holds.

    Raises:
        OSError: As :func:`read_bytes`.
        ValueError: As :func:`parse_json`.
    """
    return parse_json(read_bytes(path, largest))


def parse_json(text: Union[str, bytes]) -> Any:
    """Return plain data from JSON. ``NaN`` and ``Infinity`` are floats, as Python writes them.

    Raises:
        ValueError: It is not JSON, not UTF-8, has a key twice, a number that is no float64, or is nested deeper than
            ``DEEPEST``; says line and column where they are known.
    """
    try:
        plain = json.loads(
            text if isinstance(text, str) else text.decode("utf-8"),
            object_pairs_hook=_object,
            parse_float=_float,
            parse_int=_int,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply, expected at most %d levels" % DEEPEST) from None
    check_depth(plain)
    return plain


def check_depth(plain: Any) -> None:
    """Make sure that plain data can be walked by recursion.

    Raises:
        ValueError: It is nested deeper than ``DEEPEST``.
    """
    level = [plain]
    for _ in range(DEEPEST + 1):
        level = [item for each in level for item in _items(each)]
        if not level:
            return
    raise ValueError("it is nested too deeply, expected at most %d levels" % DEEPEST)


def _items(plain: Any) -> List[Any]:
    """Return what a map or a list holds and may hold more itself."""
    values = plain.values() if isinstance(plain, dict) else plain if isinstance(plain, list) else ()
    return [value for value in values if isinstance(value, (dict, list))]


def _object(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = [key for key, _ in pairs]
        raise ValueError("key %r stands twice in it" % next(key for key in seen if seen.count(key) > 1))
    return found


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("number %s is beyond what a float64 holds" % _short(text))
    return number


def _int(text: str) -> int:
    if len(text) > LONGEST_NUMBER:
        raise ValueError("number %s has %d digits" % (_short(text), len(text)))
    return int(text)


def _short(text: str) -> str:
    return text if len(text) <= 24 else text[:21] + "..."
