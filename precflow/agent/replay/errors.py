"""Errors against float64 as published standards define them: relative ones, shares within a tolerance, the worst element.

With ``y`` the recorded output, ``g`` the operator in float64 at the same inputs (the golden) and ``d = y - g``::

    mare          largest |d| / (|g| + 1e-7)
    mere          mean of |d| / (|g| + 1e-7)
    rmse          root of the mean of d^2
    largest       largest |d|, and the unit in the last place (ulp) of g in the output's type at that element
    within        share of elements with |d| <= atol + rtol |g|, for each tolerance that was asked for
    small         of a border: how many |g| lie below it, how many of these are off by more than what is allowed there, and
                  mare, mere and rmse of all others

Only finite pairs count, and the golden is narrowed to the output's type first: a value that float64 can hold and the output's
type cannot is an infinity in both. These are sums over all elements; what an operator is off by in units of its own rounding,
which :mod:`~precflow.agent.replay.numbers` measures, is the better question, and standards ask this one.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any, Dict, List, Mapping

import torch

from precflow.agent.contract import ERRORS_FILE
from precflow.agent.measure.content_id import dtype_name
from precflow.agent.replay.numbers import BLOCK, REAL_TYPES, format_of, real_parts, round_once, ulp_of

_OFFSET = 1e-7  # keeps an element of 0 from making a relative error infinite; CANN's own number

Asked = Mapping[str, Mapping[str, Any]]
"""Element type -> ``{"within": {name: [atol, rtol]}, "small": {name: [below, allowed]}}``, both may be missing."""


def read_asked(folder: str) -> Asked:
    """Return what the judge asked for in a request's folder; nothing if there is no such file."""
    path = os.path.join(folder, ERRORS_FILE)
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as stream:
        asked: Asked = json.load(stream)
    return asked


def measure_errors(output: torch.Tensor, exact: torch.Tensor, asked: Asked) -> Dict[str, Any]:
    """Return the errors of one output; empty if nothing was asked for its element type.

    Args:
        output: What a side recorded.
        exact: The operator in float64 (complex128) at that side's inputs, of the same shape.
        asked: What to measure. Complex numbers count as two elements, and ask as the type of their parts.
    """
    dtype = REAL_TYPES.get(output.dtype, output.dtype)
    wanted = asked.get(dtype_name(dtype))
    if wanted is None or not dtype.is_floating_point:
        return {}
    recorded, golden = real_parts(output), real_parts(exact).to(torch.float64)
    every = _Errors()
    within: Dict[str, int] = dict.fromkeys(wanted.get("within", {}), 0)
    small = {name: _Small(*border) for name, border in wanted.get("small", {}).items()}
    for start in range(0, recorded.numel(), BLOCK):
        values, goal = recorded[start : start + BLOCK].to(torch.float64), golden[start : start + BLOCK]
        finite = values.isfinite() & round_once(goal.contiguous(), dtype).isfinite()
        values, goal = values[finite], goal[finite]
        if not values.numel():
            continue
        difference, size = (values - goal).abs(), goal.abs()
        every.add(difference, size, dtype)
        for name, (atol, rtol) in wanted.get("within", {}).items():
            within[name] += int((difference <= atol + rtol * size).sum())
        for part in small.values():
            part.add(difference, size, dtype)
    measured: Dict[str, Any] = every.numbers()
    measured["within"] = {name: count / max(every.count, 1) for name, count in within.items()}
    measured["small"] = {name: part.numbers() for name, part in small.items()}
    return measured


class _Errors:
    """Sums and extremes over the elements so far."""

    def __init__(self) -> None:
        self.count = 0
        self._relative_sum = self._relative_max = self._norm = 0.0
        self._largest = self._ulp = 0.0

    def add(self, difference: torch.Tensor, size: torch.Tensor, dtype: torch.dtype) -> None:
        """Add elements: absolute differences and absolute goldens, both finite."""
        if not difference.numel():
            return
        relative = difference / (size + _OFFSET)
        self.count += difference.numel()
        self._relative_sum += float(relative.sum())
        self._relative_max = max(self._relative_max, float(relative.max()))
        largest = float(difference.max())
        if largest:
            # Scaled, because the square of a difference may leave float64.
            self._norm = math.hypot(self._norm, largest * float((difference / largest).norm()))
        if largest and largest >= self._largest:
            # Of several elements with this difference, the one with the smallest ulp has the tightest limit.
            ulp = float(ulp_of(size[difference == largest].contiguous(), format_of(dtype)).min())
            self._ulp = min(ulp, self._ulp) if largest == self._largest else ulp
            self._largest = largest

    def numbers(self) -> Dict[str, Any]:
        """Return the errors by the names at the top of this file; all 0 if no element was added."""
        count = max(self.count, 1)
        return {
            "count": self.count,
            "mare": self._relative_max,
            "mere": self._relative_sum / count,
            "rmse": self._norm / math.sqrt(count),
            "largest": self._largest,
            "ulp": self._ulp,
        }


class _Small:
    """Elements below a border, which are counted, apart from all others, whose errors are measured.

    Args:
        below: The border of |g|.
        allowed: The absolute error that an element below it may have.
    """

    def __init__(self, below: float, allowed: float) -> None:
        self._below, self._allowed = below, allowed
        self._small = self._wrong = 0
        self._ordinary = _Errors()

    def add(self, difference: torch.Tensor, size: torch.Tensor, dtype: torch.dtype) -> None:
        """Add elements, as :meth:`_Errors.add` does."""
        small = size < self._below
        self._small += int(small.sum())
        self._wrong += int((difference[small] > self._allowed).sum())
        self._ordinary.add(difference[~small], size[~small], dtype)

    def numbers(self) -> Dict[str, Any]:
        """Return how many elements are small and how many of these are wrong, and the errors of all others."""
        names: List[str] = ["count", "mare", "mere", "rmse"]
        ordinary = self._ordinary.numbers()
        return {"small": self._small, "wrong": self._wrong, **{name: ordinary[name] for name in names}}
