"""A metric of our own: the share of elements whose sign differs. NumPy only, nothing of precflow."""

import numpy as np


class SignFlips:
    """Counts signs that differ, of elements that are not tiny.

    Args:
        least: Smaller magnitudes of the reference do not count: noise decides their sign.
    """

    def __init__(self, least: float = 0.0) -> None:
        self.least = least
        self.flips = 0
        self.size = 0

    def update(self, reference: np.ndarray, target: np.ndarray) -> None:
        """Take one block: as many float64 of both sides, read-only."""
        told = np.abs(reference) >= self.least
        self.flips += int(np.count_nonzero(told & (np.signbit(reference) != np.signbit(target))))
        self.size += reference.size

    def merge(self, other: "SignFlips") -> None:
        """Add what another object has seen of the same pair of tensors."""
        self.flips += other.flips
        self.size += other.size

    def value(self) -> float:
        """Return the metric: 0 is perfect, more is worse."""
        return self.flips / self.size if self.size else 0.0
