"""The one door to stdout and stderr: what is said is printable and without secrets, and no exit code depends on its reader."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from precflow.agent import redaction

_NOBODY_READS = {errno.EPIPE, errno.EBADF, errno.ESHUTDOWN}
_BEYOND_ASCII = re.compile("[\x7f-\U0010ffff]")


def printable(text: str) -> str:
    r"""Return text in which nothing can move a cursor, change a colour or turn the reading direction.

    >>> printable("a\x1b[31mb"), printable("层 0"), printable("two\nlines")
    ('a\\x1b[31mb', '层 0', 'two\\nlines')
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text)


def printable_lines(text: str) -> str:
    """Return text of several lines, each of them printable."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def printable_json(text: str) -> str:
    r"""Return JSON in which letters that would act on a reader's screen are escapes: it means the same.

    >>> printable_json(json.dumps("a\u202eb\x9b, 层", ensure_ascii=False))
    '"a\\u202eb\\u009b, 层"'
    """
    return text if text.isprintable() else _BEYOND_ASCII.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    letter = found.group()
    return letter if letter.isprintable() or unicodedata.category(letter) == "Zs" else json.dumps(letter)[1:-1]


def say(text: str) -> None:
    """Say something to people, on stderr: lines, without the last line end."""
    _put(sys.stderr, printable_lines(redaction.redact_text(text.rstrip("\n"))) + "\n")
    sys.stderr.flush()


def write(text: str, *, styled: bool = False) -> None:
    """Write the answer on stdout, with what the terminal cannot show replaced.

    Args:
        text: Lines, without the last line end.
        styled: It has colours of ours; the caller has made what it shows printable.
    """
    text = redaction.redact_text(text)
    _put(sys.stdout, (text if styled else printable_lines(text)) + "\n")


def write_json(value: Any) -> None:
    """Write the answer on stdout as one JSON object in one line."""
    _put(sys.stdout, printable_json(json.dumps(redaction.redact(value), ensure_ascii=False)) + "\n")


def is_unicode(stream: TextIO) -> bool:
    """Tell whether a stream takes every letter."""
    return (stream.encoding or "").lower().replace("-", "") == "utf8"


def _put(stream: TextIO, text: str) -> None:
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))


class Delivery:
    """What became of what was written on stdout.

    Attributes:
        problem: Why it did not arrive, ``""`` where it did, or where nobody wanted to read on.
    """

    problem = ""


@contextlib.contextmanager
def delivering() -> Iterator[Delivery]:
    """Let nothing that is written on stdout or stderr stop the work: a reader who leaves, a closed stream, a full disk.

    A disk that is full behind stdout is told at the end, for then there is no answer; behind stderr nobody could be told.
    """
    before, delivery = (sys.stdout, sys.stderr), Delivery()
    out, err = (_Unstoppable(stream) for stream in before)
    sys.stdout, sys.stderr = cast("TextIO", out), cast("TextIO", err)
    try:
        yield delivery
    finally:
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = before
        if out.lost is not None and out.lost.errno not in _NOBODY_READS:
            delivery.problem = out.lost.strerror or str(out.lost)


class _Unstoppable:
    """A stream that takes everything, and gives it to nobody once its reader has left or its disk is full."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost: OSError | None = None

    def write(self, text: str) -> int:
        if self.lost is None:
            try:
                self._stream.write(text)
            except OSError as error:
                self._lose(error)
        return len(text)

    def flush(self) -> None:
        if self.lost is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._lose(error)

    def _lose(self, error: OSError) -> None:
        """Let what is still in the stream's buffer go nowhere: Python writes it at its end, and would leave with 120."""
        self.lost = error
        with contextlib.suppress(OSError, ValueError):  # a stream of a test has no number
            number = os.open(Path(os.devnull), os.O_WRONLY)
            os.dup2(number, self._stream.fileno())
            os.close(number)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
