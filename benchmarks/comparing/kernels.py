"""The race of the kernels on one pair in memory, in interleaved rounds, with a pass that only reads as the finishing line."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
from numba import njit

from comparing.pairs import Array, apart, pair
from precflow.comparison.compiled.engine import find_compiled_pass
from precflow.comparison.fused.summarize import PairOfTensors
from precflow.comparison.reading import PART

ROW = 1024
_THREADS = os.cpu_count() or 1


@njit(nogil=True)
def _read(words: Any) -> int:
    """Read every word and do next to nothing with it."""
    total = 0
    for i in range(words.size):
        total ^= words[i]
    return total


def read_only(reference: Array, target: Array) -> None:
    """Read both sides with all threads, in the ranges that a comparison reads."""
    sides = [side.reshape(-1).view(np.int64) for side in (reference, target)]
    step = PART * reference.itemsize // 8
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda start: [_read(side[start : start + step]) for side in sides], range(0, sides[0].size, step)))


def fused(reference: Array, target: Array, *, compiled: bool = True, checked: bool = False, threads: int = _THREADS) -> None:
    """Make the whole summary, as a comparison of dumps does; ``checked``: and the content ids of both sides."""
    tensors = PairOfTensors(reference, target)
    sides = [side.reshape(-1).view(np.uint8) for side in (reference, target)]
    ranges = [(start, min(start + PART, tensors.size)) for start in range(0, tensors.size, PART)]

    def read(place: tuple[int, int]) -> None:
        start, stop = (element * reference.itemsize for element in place)
        data = tuple(side[start:stop] for side in sides) if checked else None
        tensors.summary_and_lanes(*place, data, compiled=compiled)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(read, ranges))


def naive(reference: Array, target: Array) -> list[float]:
    """Write every metric of the summary as a NumPy function of its own, over the whole tensors in float64."""
    functions: tuple[Callable[[Array, Array], Any], ...] = (
        lambda y, x: np.dot(y, x) / (np.linalg.norm(y) * np.linalg.norm(x)),
        lambda y, x: np.max(np.abs(x - y)),
        lambda y, x: np.mean(np.abs(x - y)),
        lambda y, x: np.max(np.abs(x - y) / np.abs(y)),
        lambda y, x: np.mean(np.abs(x - y) / np.abs(y)),
        lambda y, x: np.linalg.norm(x - y) / np.linalg.norm(y),
        lambda y, x: np.sum(np.abs(x - y)) / np.sum(np.abs(y)),
        lambda y, x: np.sqrt(np.mean((x - y) ** 2)),
        lambda y, x: np.max(np.abs(x - y) / (np.abs(y) + 1e-7)),
        lambda y, x: np.mean(np.abs(x - y) / (np.abs(y) + 1e-7)),
        lambda y, x: np.mean(np.abs(x - y) / np.abs(y) <= 0.001),
        lambda y, x: np.mean(np.abs(x - y) / np.abs(y) <= 0.005),
        *(lambda y, x, r=r: np.mean(np.abs(x - y) <= 1e-5 + r * np.abs(y)) for r in (1.3e-6, 1e-3, 1.6e-2)),
        lambda y, x: np.max(np.abs(x - y) / np.spacing(np.abs(y).astype(np.float32))),
        lambda y, x: np.mean(np.abs(x - y) / np.spacing(np.abs(y).astype(np.float32))),
        lambda y, x: np.max(np.linalg.norm((x - y).reshape(-1, ROW), axis=1) / np.linalg.norm(y.reshape(-1, ROW), axis=1)),
        lambda y, x: np.mean(np.isfinite(x) & np.isfinite(y)),
        lambda y, x: np.mean((np.abs(x) > 65000) | (np.abs(y) > 65000)),
        lambda y, x: np.mean(x != y),
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        wide = [side.reshape(-1).astype(np.float64) for side in (reference, target)]
        return [float(function(*wide)) for function in functions]


def race(runners: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Run all in turn, ``rounds`` times, and return the seconds of each, ascending; a runner may return its own seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(rounds):
        for name, runner in runners.items():
            start = time.perf_counter()
            own = runner()
            seconds[name].append(own if isinstance(own, float) else time.perf_counter() - start)
    return {name: sorted(values) for name, values in seconds.items()}


def variants(size: int, rounds: int) -> list[dict[str, Any]]:
    """Return the share of a read-only pass for each type, and for errors of several sizes, in elements and in bytes."""
    rows = []
    for name, dtype in (("float32", np.float32), ("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16)):
        for label, error in (("noise of 1e-6", 1e-6), ("noise of 1e-3", 1e-3), ("unrelated", 1e3)):
            sides = [side.reshape(-1, ROW) for side in apart(*(side.astype(dtype) for side in pair(size, error)))]
            find_compiled_pass(name, name)
            times = race({"read": lambda s=sides: read_only(*s), "fused": lambda s=sides: fused(*s)}, rounds)
            rate = size / times["fused"][0] / 1e9
            share = times["read"][0] / times["fused"][0]
            rows.append({"type": name, "errors": label, "giga elements/s": rate, "share of a read": share})
    return rows


def threads(size: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds with one thread and with all, ascending."""
    sides = [side.reshape(-1, ROW) for side in pair(size)]
    return race({str(count): lambda c=count: fused(*sides, threads=c) for count in sorted({1, _THREADS})}, rounds)
