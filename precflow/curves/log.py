"""A log as it lies on disk: its beginning, by which its kind is told, and its text, whatever it is encoded in."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from precflow.agent import intake
from precflow.errors import CurveError

HEAD = 1 << 13  # bytes by which the kind of a log is told
_TRIED = 1 << 20  # bytes by which an encoding is told
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_CHINESE = "gb18030"  # which GBK and GB2312 are parts of


@dataclass(frozen=True)
class Log:
    """A log file that was opened once.

    Attributes:
        path: The file.
        place: How messages call it.
    """

    path: Path
    place: str

    @cached_property
    def head(self) -> bytes:
        """The first bytes.

        Raises:
            OSError: It cannot be read, or is no regular file.
        """
        with intake.open_regular(self.path) as file:
            return file.read(HEAD)

    @cached_property
    def encoding(self) -> str:
        """UTF-16 or UTF-8 with a mark where the first bytes are one; else UTF-8, or GB18030 if it is not UTF-8 but that."""
        with intake.open_regular(self.path) as file:
            data = file.read(_TRIED)
        return find_encoding(data)

    @cached_property
    def start(self) -> str:
        """The first bytes as text."""
        return self._decode(self.head)

    @property
    def is_binary(self) -> bool:
        """It holds a zero byte, which text in none of the encodings does."""
        return b"\0" in self.head and not self.encoding.startswith("utf-16")

    def read_bytes(self) -> bytes:
        """Return everything.

        Raises:
            OSError: It cannot be read, or is too large to be read as a whole.
        """
        return intake.read_bytes(self.path)

    def read_text(self) -> str:
        """Return everything as text; what is not of the encoding becomes U+FFFD.

        Raises:
            OSError: As :meth:`read_bytes`.
        """
        return self._decode(self.read_bytes())

    def read_blocks(self, size: int) -> Iterator[str]:
        """Yield the text in parts of about ``size`` bytes that end with a line.

        Raises:
            OSError: It cannot be read.
        """
        decoder = codecs.getincrementaldecoder(self.encoding)("replace")
        rest = ""
        with intake.open_regular(self.path) as file:
            left = os.fstat(file.fileno()).st_size  # a run may still be writing
            while left > 0 and (block := file.read(min(size, left))):
                left -= len(block)
                whole, newline, rest_of_line = (rest + decoder.decode(block)).rpartition("\n")
                if newline:
                    yield whole + newline
                rest = rest_of_line
        rest += decoder.decode(b"", final=True)
        if rest:
            yield rest

    def _decode(self, data: bytes) -> str:
        # The head may end within a letter.
        return codecs.getincrementaldecoder(self.encoding)("replace").decode(data, final=len(data) != HEAD)


def find_encoding(data: bytes) -> str:
    r"""Return the encoding of a text by its beginning, which may end within a letter.

    >>> [find_encoding(text) for text in ("步".encode(), "步数".encode("gbk"), "步".encode("utf-16"), b"caf\xe9 1")]
    ['utf-8', 'gb18030', 'utf-16', 'utf-8']
    """
    marked = next((name for mark, name in _MARKS if data.startswith(mark)), "")
    if marked:
        return marked
    return next((name for name in ("utf-8", _CHINESE) if _is_encoded(data, name)), "utf-8")


def _is_encoded(data: bytes, encoding: str) -> bool:
    try:
        codecs.getincrementaldecoder(encoding)().decode(data)
    except UnicodeDecodeError:
        return False
    return True


def refuse_unreadable(error: OSError, place: str) -> CurveError:
    """Return the error of a log that cannot be opened."""
    if isinstance(error, FileNotFoundError):
        return CurveError(f"{place} does not exist", next_step="give the file that the run has written its losses to")
    return CurveError(f"{place} cannot be read: {error.strerror or error}", next_step="check its permissions")
