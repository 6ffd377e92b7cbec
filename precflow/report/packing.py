"""Packs the columns of a page into few bytes: whole numbers by their bytes, numbers by their digits, texts apart from theirs.

The script of the page (``templates/js/columns.js``) reads a value only where it is needed, so that opening a page of a million
records takes hardly longer than inflating it. What is alike lies together, because that is what deflate makes small.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.streams import printable

_EFFORT = 9  # of deflate
DIGITS = 4  # of a number, at most; one more than a page shows
Wholes = Sequence[int] | npt.NDArray[np.int64]

_HEAD_BYTES = 4  # the length of the head, little endian, comes first
_NUMBERS = re.compile(r"(?<!\d)((?:0|[1-9]\d{0,8})(?!\d))", re.ASCII)  # in a text; longer ones and 007 are plain letters
_MOST_NUMBERS = 8  # of a text; further ones are plain letters
_ABSENT, _NAN, _INFINITE, _MINUS_INFINITE, _ZERO = range(5)  # kinds of numbers without digits
_POSITIVE, _NEGATIVE, _BELOW_ONE = (
    1000 * kind + 500 for kind in (1, 2, 3)
)  # kinds of the others, to which the exponent is added
_NEAR_ONE = 0.99  # from here to 1, what is missing to 1 is kept
_PLACES_NEAR_ONE = 12  # behind the point; what is nearer to 1 is 1
_LARGEST_POWER = 300  # ten to this has room to spare in float64


class Packer:
    """Collects columns. What it returns of each is its description, which the page's script needs to read it."""

    def __init__(self) -> None:
        self._planes: list[bytes] = []
        self._length = 0

    def add_wholes(self, values: Wholes, *, steps: bool = False) -> list[int]:
        """Add whole numbers below 2^31; return ``[offset, how many, bytes of each, whether they are steps]``.

        The first bytes of all of them come first, then the second ones: a byte that is always the same takes no room.

        Args:
            values: The numbers, none negative.
            steps: Keep the difference to the number before, which is small where they count up.
        """
        numbers = np.asarray(values, np.int64)
        if steps:
            change = np.diff(numbers, prepend=0)
            numbers = (change << 1) ^ (change >> 63)  # small ones are small numbers, whatever their sign
        width = (int(numbers.max(initial=0)).bit_length() + 7) // 8
        place = self._length
        for byte in range(width):
            plane = ((numbers >> (8 * byte)) & 255).astype(np.uint8).tobytes()
            self._planes.append(plane)
            self._length += len(plane)
        return [place, numbers.size, width, int(steps)]

    def add_texts(self, texts: Iterable[str]) -> dict[str, Any]:
        """Add texts: each once, those that differ in their whole numbers alone with the words once and the numbers apart.

        ``layers.0 / linear`` and ``layers.1 / linear`` are ``["layers.", " / linear"]`` and the numbers 0 and 1.
        """
        listed = list(texts)
        known = {text: number for number, text in enumerate(dict.fromkeys(listed))}
        split = [_NUMBERS.split(text, _MOST_NUMBERS) for text in known]
        patterns: dict[tuple[str, ...], int] = {}
        of_entry = [patterns.setdefault(tuple(parts[::2]), len(patterns)) for parts in split]
        numbers = itertools.zip_longest(*(parts[1::2] for parts in split), fillvalue=0)
        index = np.fromiter(map(known.__getitem__, listed), np.int64, len(listed))
        return {
            "patterns": [[printable(part) for part in pattern] for pattern in patterns],
            "pattern": self.add_wholes(of_entry),
            "numbers": [self.add_wholes(list(map(int, column)), steps=True) for column in numbers],
            # Where no two records have the same text, its number is the record's.
            "index": None if len(known) == len(listed) else self.add_wholes(index),
        }

    def add_numbers(self, values: Sequence[float | None], digits: npt.NDArray[np.int64] | int = DIGITS) -> list[list[int]]:
        """Add numbers in decimal; ``None`` is a number that there is not.

        Args:
            values: The numbers.
            digits: How many significant digits are kept, of each or of all.
        """
        kinds, figures = split_decimals(np.array([np.nan if value is None else value for value in values], np.float64), digits)
        kinds[np.array([value is None for value in values], bool)] = _ABSENT
        return [self.add_wholes(kinds), self.add_wholes(figures // 100), self.add_wholes(figures % 100)]

    def finish(self, head: dict[str, Any]) -> str:
        """Return everything in base64, deflated. It can end no element of a page, whatever the texts say."""
        text = json.dumps(head, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        plain = text.encode("utf-8", "backslashreplace")
        packed = zlib.compressobj(_EFFORT)
        parts = [packed.compress(part) for part in (len(plain).to_bytes(_HEAD_BYTES, "little"), plain, *self._planes)]
        return base64.b64encode(b"".join([*parts, packed.flush()])).decode("ascii")


def split_decimals(
    values: npt.NDArray[np.float64], digits: npt.NDArray[np.int64] | int = DIGITS
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the kind of each number, in which its exponent of ten is, and its first four digits as a whole number.

    >>> kinds, figures = split_decimals(np.array([0.0123456, -250.0, 0.99998]), np.array([4, 4, 2]))
    >>> kinds - [_POSITIVE, _NEGATIVE, _BELOW_ONE], figures
    (array([-2,  2, -5]), array([1235, 2500, 2000]))
    """
    near_one = (values > _NEAR_ONE) & (values < 1)
    values = np.where(near_one, np.round(np.where(near_one, values, 0.0), _PLACES_NEAR_ONE), values)
    near_one &= values < 1
    size = np.abs(np.where(near_one, 1 - values, values))
    plain = np.isfinite(values) & (size > 0)
    size = np.where(plain, size, 1.0)
    exponent = np.floor(np.log10(size)).astype(np.int64)
    kept = np.broadcast_to(np.asarray(digits, np.int64), values.shape)
    with np.errstate(over="ignore"):
        # In two steps: a subnormal number would need ten to the 327th.
        power = kept - 1 - exponent
        first = np.clip(power, -_LARGEST_POWER, _LARGEST_POWER)
        figures = np.rint(size * 10.0**first * 10.0 ** (power - first)).astype(np.int64)
    rounded_up = figures >= 10**kept  # 9.9996 has become 10.00
    exponent, figures = exponent + rounded_up, np.where(rounded_up, 10 ** (kept - 1), figures)
    kinds = np.where(near_one, _BELOW_ONE, np.where(values < 0, _NEGATIVE, _POSITIVE)) + exponent
    for kind, those in (
        (_NAN, np.isnan(values)),
        (_INFINITE, values == np.inf),
        (_MINUS_INFINITE, values == -np.inf),
        (_ZERO, values == 0),
    ):
        kinds = np.where(those, kind, kinds)
    return kinds, np.where(plain, figures * 10 ** (DIGITS - kept), 0)
