"""Output on stdout and stderr: without control characters and secrets, and never an error because the reader left.

Names of recipes, modules and files may come from strangers. Printed as they are, they could move the cursor over a verdict or
change its colour.
"""

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

_NOBODY_READS = {errno.EPIPE, errno.EBADF, errno.ESHUTDOWN}  # the reader left, or the stream is closed: not a lost answer
_BEYOND_ASCII = re.compile("[\x7f-\U0010ffff]")


def printable(text: str) -> str:
    r"""Return text with escapes for all characters that can move a cursor, change a colour or the direction of reading.

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
    r"""Return JSON with control characters written as escapes, so that no screen acts on them; it parses to the same value.

    >>> printable_json(json.dumps("a\u202eb\x9b, 层", ensure_ascii=False))
    '"a\\u202eb\\u009b, 层"'
    """
    return text if text.isprintable() else _BEYOND_ASCII.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    letter = found.group()
    # str.isprintable() is false for every space but U+0020. Spaces such as the ideographic one are harmless and stay.
    return letter if letter.isprintable() or unicodedata.category(letter) == "Zs" else json.dumps(letter)[1:-1]


def say(text: str) -> None:
    """Print text for people on stderr, with a line end added."""
    _put(sys.stderr, printable_lines(redaction.redact_text(text.rstrip("\n"))) + "\n")
    sys.stderr.flush()


def write(text: str, *, styled: bool = False) -> None:
    """Print the answer on stdout; characters that the terminal cannot show are replaced.

    Args:
        text: Lines, without the last line end.
        styled: The text has precflow's own colour codes; the caller has made everything else in it printable.
    """
    text = redaction.redact_text(text)
    _put(sys.stdout, (text if styled else printable_lines(text)) + "\n")


def write_json(value: Any) -> None:
    """Print the answer on stdout as one JSON object in one line."""
    _put(sys.stdout, printable_json(json.dumps(redaction.redact(value), ensure_ascii=False)) + "\n")


def is_unicode(stream: TextIO) -> bool:
    """Return whether a stream is UTF-8, so that it can show every character."""
    return (stream.encoding or "").lower().replace("-", "") == "utf8"


def _put(stream: TextIO, text: str) -> None:
    encoding = stream.encoding or "utf-8"  # what it lacks becomes "?", where write() would raise UnicodeEncodeError
    stream.write(text.encode(encoding, "replace").decode(encoding))


class Delivery:
    """Whether the output on stdout arrived.

    Attributes:
        problem: Why it did not arrive; ``""`` if it did, or if the reader left before the end.
    """

    problem = ""


@contextlib.contextmanager
def delivering() -> Iterator[Delivery]:
    """Keep working when stdout or stderr cannot be written: the reader left, the stream is closed, the disk is full.

    If the disk behind stdout is full, the answer is lost, and the yielded ``problem`` says so at the end. An error of stderr is
    not reported: there is no place left to print it.
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
    """A stream whose writes never fail: after the first error, everything else is thrown away."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost: OSError | None = None

    def write(self, text: str) -> int:
        """Write a text; after the first failure, drop it. Return its length either way, as text streams do."""
        if self.lost is None:
            try:
                self._stream.write(text)
            except OSError as error:
                self._lose(error)
        return len(text)

    def flush(self) -> None:
        """Flush the stream, unless a write has failed before."""
        if self.lost is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._lose(error)

    def _lose(self, error: OSError) -> None:
        """Note the error, and let the stream's file descriptor lead to ``/dev/null``.

        The stream still has the failed text in its buffer. Python flushes it once more at exit, and if that fails again it ends
        with exit code 120.
        """
        self.lost = error
        with contextlib.suppress(OSError, ValueError):  # a stream in memory, as tests use it, has no file descriptor
            number = os.open(Path(os.devnull), os.O_WRONLY)
            os.dup2(number, self._stream.fileno())
            os.close(number)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
