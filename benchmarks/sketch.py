"""The error of estimated norms over seventeen structured differences: the table of docs/estimates.md.

    python benchmarks/sketch.py

Each difference is made from 24 seeds; the estimate is the norm of the agent's sketch of it. What is constant but for its size
(a bias, a checkerboard) has another number of rows with each seed, because its error depends on the size alone.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator

import torch

from precflow.agent.measure.sketch import add_pieces, sketch

ROWS, COLUMNS, HEADS = 616, 768, 12
SEEDS = 24
Difference = Callable[[int], torch.Tensor]


def generator(seed: int) -> torch.Generator:
    """Return torch's generator with a seed."""
    return torch.Generator().manual_seed(seed)


def gaussian(seed: int, *shape: int) -> torch.Tensor:
    """Return noise."""
    return torch.randn(*shape, generator=generator(seed))


def only(part: Callable[[torch.Tensor, int], torch.Tensor]) -> Difference:
    """Return a difference that is 0 but for a part, which is Gaussian."""

    def made(seed: int) -> torch.Tensor:
        difference = torch.zeros(ROWS, COLUMNS)
        view = part(difference, seed)
        view.copy_(gaussian(seed, *view.shape))
        return difference

    return made


def swapped(seed: int) -> torch.Tensor:
    """Return the difference that two swapped rows make."""
    one, other = gaussian(seed, 2, COLUMNS)
    difference = torch.zeros(ROWS, COLUMNS)
    difference[seed], difference[seed + 100] = one - other, other - one
    return difference


def of_column(value: float) -> Difference:
    """Return a difference that is one constant column."""

    def made(seed: int) -> torch.Tensor:
        difference = torch.zeros(ROWS, COLUMNS)
        difference[:, seed * 31 % COLUMNS] = value
        return difference

    return made


def scattered(seed: int) -> torch.Tensor:
    """Return a difference at 500 places."""
    difference = torch.zeros(ROWS * COLUMNS)
    places = torch.randperm(ROWS * COLUMNS, generator=generator(seed))[:500]
    difference[places] = 1.0
    return difference.view(ROWS, COLUMNS)


def rows(seed: int) -> int:
    """Return a number of rows: what is constant has another error with another size only."""
    return 200 + 90 * seed


DIFFERENCES: dict[str, Difference] = {
    "Gaussian": lambda seed: gaussian(seed, ROWS, COLUMNS),
    "constant bias": lambda seed: torch.ones(rows(seed), COLUMNS),
    "Gaussian with bias": lambda seed: gaussian(seed, rows(seed), COLUMNS) + 1,
    "one row": only(lambda x, seed: x[seed * 7]),
    "one column": only(lambda x, seed: x[:, seed * 31]),
    "one constant row": lambda seed: torch.zeros(ROWS, COLUMNS).index_fill_(0, torch.tensor([seed * 7]), 0.5),
    "one constant column": of_column(0.5),
    "one head": only(lambda x, seed: x.view(ROWS, HEADS, -1)[:, seed % HEADS]),
    "two rows swapped": swapped,
    "every 77th row": only(lambda x, seed: x[seed::77]),
    "every other column": only(lambda x, seed: x[:, seed % 2 :: 2]),
    "rank one, equal rows": lambda seed: gaussian(seed, 1, COLUMNS).expand(ROWS, COLUMNS),
    "rank one, equal columns": lambda seed: gaussian(seed, ROWS, 1).expand(ROWS, COLUMNS),
    "rank one": lambda seed: gaussian(seed, ROWS, 1) * gaussian(seed + 50, 1, COLUMNS),
    "checkerboard": lambda seed: 1.0 - 2 * ((torch.arange(rows(seed))[:, None] + torch.arange(COLUMNS)) % 2),
    "last quarter": only(lambda x, _: x[ROWS * 3 // 4 :]),
    "500 places": scattered,
}


def estimate(difference: torch.Tensor) -> float:
    """Return the norm as the sketch tells it."""
    return float(add_pieces(sketch(difference.reshape(-1).contiguous())).double().norm())


def errors(name: str) -> list[float]:
    """Return the relative error of the estimated norm, by seed."""
    made = [DIFFERENCES[name](seed) for seed in range(SEEDS)]
    return [estimate(difference) / float(difference.double().norm()) - 1 for difference in made]


def rms(values: list[float]) -> float:
    """Return the root of the mean square."""
    return math.sqrt(sum(value**2 for value in values) / len(values))


def table() -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| difference | rms error | largest |"
    yield "|---|---|---|"
    for name in DIFFERENCES:
        found = errors(name)
        yield f"| {name} | {rms(found):.1%} | {max(map(abs, found)):.1%} |"


if __name__ == "__main__":
    sys.stdout.write("\n".join(table()) + "\n")
