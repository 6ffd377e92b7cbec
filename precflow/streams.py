"""Output on stdout and stderr: without control characters and secrets, and never an error because the reader left.

Names of recipes, modules and files may come from strangers. Printed as they are, they could move the cursor over a verdict or
change its colour.

A terminal breaks a long line in the middle of a word. So text for people is folded between words here, whoever wrote it, to the
width that the terminal has. Files and pipes get lines as they are.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from precflow.agent import redaction

_NOBODY_READS = {errno.EPIPE, errno.EBADF, errno.ESHUTDOWN}  # the reader left, or the stream is closed: not a lost answer
_BEYOND_ASCII = re.compile("[\x7f-\U0010ffff]")
_WIDE = 88  # columns of a terminal that does not say how many it has
_LEAST = 20  # columns beside which a text is folded; with less room it continues below
_COLUMN_GAP = 3  # spaces; two of them stand before a command inside of a sentence
_INDENT = 3  # columns by which a continued line is further in
# What is copied into a shell stays one line: half a command would run something else.
_COMMAND = re.compile(r"(?:precflow|pip|python\d?|eval|mv|cp|cd|export|\$) \S")


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


def count_cells(text: str) -> int:
    """Return how many columns of a terminal a text takes; a wide letter, such as a Chinese one, takes two."""
    if text.isascii():
        return len(text)
    # Unicode's classes W (wide) and F (full width) take two columns, all others one.
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def measure_terminal(stream: TextIO) -> int:
    """Return the columns of the terminal behind a stream; 0 if it is none. ``COLUMNS`` wins over the terminal's own answer."""
    if not stream.isatty():
        return 0
    wanted = os.environ.get("COLUMNS", "")
    try:
        columns = int(wanted) if wanted.isdigit() else os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return _WIDE
    return columns or _WIDE  # a terminal that does not know its width reports 0


def fold(text: str, columns: int) -> str:
    """Return text whose lines are broken between words, so that they fit into some columns; 0 columns leave it as it is.

    What stands behind a gap of several spaces, as in a table, is continued below its own beginning. A word that is too long,
    such as a path, and a command to copy stay whole.

    >>> print(fold("   plan      what a run would do, and why it would do that", 40))
       plan      what a run would do, and
                 why it would do that
    """
    return "\n".join(part for line in text.split("\n") for part in _fold_line(line, columns)) if columns else text


def _fold_line(line: str, columns: int) -> list[str]:
    if count_cells(line) <= columns:
        return [line]
    margin = len(line) - len(line.lstrip(" "))
    inner, hang, parts = margin + _INDENT, 0, [" " * margin]
    for gap, piece in _split_pieces(line.strip(" ")):
        if len(gap) >= _COLUMN_GAP and not hang:
            column = count_cells(parts[-1] + gap)
            hang = column if len(parts) == 1 and column <= columns - _LEAST else inner
        if not parts[-1].strip() or count_cells(parts[-1] + gap + piece) <= columns:
            parts[-1] += gap + piece
        else:
            indent = hang if hang and count_cells(piece) <= columns - hang else inner
            parts.append(" " * indent + piece)
    return parts


def _split_pieces(line: str) -> Iterator[tuple[str, str]]:
    """Yield the words of a line, each with the gap before it; a command is one word."""
    for gap, cell in re.findall(r"(^| {2,})(\S+(?: \S+)*)", line):
        if _COMMAND.match(cell):
            yield gap, cell
            continue
        for number, word in enumerate(cell.split(" ")):
            for place, piece in enumerate(split_wide(word)):
                yield "" if place else " " if number else gap, piece


_WIDE_PIECE = re.compile(r"[（《「【“]*(?:[^\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]+|.)[，。；：、）》」】！？”]*")


def split_wide(word: str) -> list[str]:
    """Return the pieces between which a word without spaces may be broken: behind each Chinese letter and its punctuation.

    >>> split_wide("relative_l2"), split_wide("误差，见float16。")
    (['relative_l2'], ['误', '差，', '见', 'float16。'])
    """
    return [word] if word.isascii() else _WIDE_PIECE.findall(word)


def say(text: str) -> None:
    """Print text for people on stderr, with a line end added."""
    with live_line.away():
        shown = Speech.translate(printable_lines(redaction.redact_text(text.rstrip("\n"))))
        _put(sys.stderr, _fit(sys.stderr, shown) + "\n")
        sys.stderr.flush()


def write(text: str, *, styled: bool = False, folded: bool = True, translated: bool = False) -> None:
    """Print the answer on stdout; characters that the terminal cannot show are replaced.

    Args:
        text: Lines, without the last line end.
        styled: The text has precflow's own colour codes; the caller has made everything else in it printable.
        folded: It is for people; a terminal gets it in lines that fit.
        translated: It is in the language of the screen already.
    """
    text = redaction.redact_text(text)
    shown = text if styled else printable_lines(text)
    if folded and not styled:
        shown = _fit(sys.stdout, shown if translated else Speech.translate(shown))
    _put(sys.stdout, f"{shown}\n")


def _fit(stream: TextIO, text: str) -> str:
    return fold(text, measure_terminal(stream))


def is_lively(stream: TextIO) -> bool:
    """Return whether a stream is a terminal on which a line can be drawn again."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class Speech:
    """How text for people is said: English as it is, unless the entry point sets another way."""

    translate: Callable[[str], str] = staticmethod(str)


class LiveLine:
    """The last line of a terminal, which is drawn over and over, such as a bar; everything that is said goes above it.

    It is drawn with spaces and a carriage return, without a single escape code.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._shown = 0  # columns

    def show(self, text: str) -> None:
        """Show a line if stderr is a terminal that can take it back."""
        if is_lively(sys.stderr):
            self.draw(f" {text}")

    def draw(self, text: str) -> None:
        """Show a line in place of the one before; one that the terminal has no room for would stay."""
        shown = printable(redaction.redact_text(text))
        with self._lock:
            width = count_cells(shown)
            _put(sys.stderr, f"\r{shown}{' ' * (self._shown - width)}")
            self._shown = width
            sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away."""
        with self._lock:
            if self._shown:
                _put(sys.stderr, f"\r{' ' * self._shown}\r")
                self._shown = 0

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Take the line away while something else is printed; whoever draws it does so again."""
        with self._lock:
            self.clear()
            yield


live_line = LiveLine()


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
