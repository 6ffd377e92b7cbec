"""Pairing two sequences in their order, where one may have elements that the other has not."""

from __future__ import annotations

from collections.abc import Sequence


def align(fits: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """Return pairs of positions, both in order, whose fits add up to the most.

    Args:
        fits: For each element of the first sequence, how well each element of the second fits; 0 for those that never do.

    >>> align([[0, 2, 0], [0, 0, 2]]), align([[0.0]]), align([])
    ([(0, 1), (1, 2)], [], [])
    """
    rows, columns = len(fits), len(fits[0]) if fits else 0
    best = [[0.0] * (columns + 1) for _ in range(rows + 1)]
    for row in reversed(range(rows)):
        for column in reversed(range(columns)):
            fit = fits[row][column]
            both = fit + best[row + 1][column + 1] if fit else 0.0
            best[row][column] = max(both, best[row + 1][column], best[row][column + 1])
    pairs, row, column = [], 0, 0
    while row < rows and column < columns:
        fit = fits[row][column]
        if fit and best[row][column] == fit + best[row + 1][column + 1]:
            pairs.append((row, column))
            row, column = row + 1, column + 1
        elif best[row][column] == best[row + 1][column]:
            row += 1
        else:
            column += 1
    return pairs
