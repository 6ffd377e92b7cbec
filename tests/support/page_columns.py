"""Reads the data of a page back, as its script does."""

import base64
import json
import math
import zlib

import numpy as np


class Columns:
    """The head of the data, and the columns by their descriptions in it."""

    def __init__(self, text):
        plain = zlib.decompress(base64.b64decode(text))
        end = 4 + int.from_bytes(plain[:4], "little")
        self.head, self._planes = json.loads(plain[4:end]), plain[end:]

    def wholes(self, place):
        """Whole numbers."""
        offset, many, width, steps = place
        planes = [np.frombuffer(self._planes, np.uint8, many, offset + many * byte).astype(np.int64) for byte in range(width)]
        found = sum((plane << (8 * byte) for byte, plane in enumerate(planes)), np.zeros(many, np.int64))
        return np.cumsum((found >> 1) ^ -(found & 1)) if steps else found

    def texts(self, of):
        """Texts of a column."""
        numbers = [self.wholes(place) for place in of["numbers"]]
        entries = []
        for row, pattern in enumerate(self.wholes(of["pattern"])):
            first, *rest = of["patterns"][pattern]
            entries.append(first + "".join(f"{numbers[slot][row]}{part}" for slot, part in enumerate(rest)))
        return entries if of["index"] is None else [entries[number] for number in self.wholes(of["index"])]

    def numbers(self, places):
        """Numbers of a column; ``None`` for those that there are not."""
        kinds, tens, units = map(self.wholes, places)
        plain = [None, math.nan, math.inf, -math.inf, 0.0]
        found = []
        for kind, high, low in zip(kinds, tens, units, strict=True):
            sort, exponent = divmod(int(kind), 1000)
            size = float(f"{high * 100 + low}e{exponent - 503}") if kind >= len(plain) else 0.0
            found.append(plain[kind] if kind < len(plain) else {1: size, 2: -size, 3: 1 - size}[sort])
        return found
