"""The metrics of one pair in little memory: numbers in a row, beside names that all pairs of a kind have in common.

There may be a million of them. A dictionary of twenty-five numbers takes 1.6 kB, this some 300 bytes.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Iterator, Mapping


class MetricValues(Mapping[str, float]):
    """Metric name -> number; read-only, and equal to a dictionary of the same items.

    >>> MetricValues({"rmse": 0.5, "mare": 1}) == {"rmse": 0.5, "mare": 1.0}
    True
    """

    __slots__ = ("_places", "_values")

    def __init__(self, metrics: Mapping[str, float]) -> None:
        self._places = _place(tuple(metrics))
        self._values = array("d", list(metrics.values()))

    def __getitem__(self, name: str) -> float:
        """Return the number of a metric."""
        return self._values[self._places[name]]

    def __contains__(self, name: object) -> bool:
        """Tell whether there is a number of a metric."""
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        """Return the names, in order."""
        return iter(self._places)

    def __len__(self) -> int:
        """Return how many metrics have a number."""
        return len(self._places)

    def as_dict(self) -> dict[str, float]:
        """Return a dictionary of the same items, faster than ``dict`` does."""
        return dict(zip(self._places, self._values, strict=True))

    def __repr__(self) -> str:
        """Return the text of a dictionary."""
        return repr(dict(self))


@functools.lru_cache(maxsize=1024)
def _place(names: tuple[str, ...]) -> dict[str, int]:
    """Return the place of each name; the same object for the same names."""
    return {name: place for place, name in enumerate(names)}
