"""Errors of a tensor against a golden as published standards of operators define them, from the two tensors alone.

The agent measures the same of a recorded output against the operator in float64 (:mod:`precflow.agent.replay.errors` has the
formulas). Here the golden is a value that the caller has, such as the expected value of a unit test, so that neither torch nor
the operator is needed. The two are each other's oracle in the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from precflow.comparison.fused.value_classes import Floats, widen
from precflow.dumps.dtypes import NUMPY_DTYPES, Array, FloatFacts, float_facts, name_of, real_part

_OFFSET = 1e-7  # keeps an element of 0 from making a relative error infinite; CANN's own number


def measure_golden_errors(output: Array, golden: Array, asked: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the errors of one output; empty if nothing was asked for its element type.

    Args:
        output: A floating point or complex tensor; complex numbers count as two elements.
        golden: What it should be, in the same shape and in a type that is at least as precise.
        asked: Element type -> ``{"within": {name: [atol, rtol]}, "small": {name: [below, allowed]}}``.
    """
    dtype = real_part(name_of(output.dtype))
    wanted = asked.get(dtype)
    if wanted is None:
        return {}
    facts = float_facts(dtype)
    values, goal = _read_reals(output), _read_reals(golden)
    finite = np.isfinite(values) & _stays_finite(goal, facts)
    difference, size = np.abs(values[finite] - goal[finite]), np.abs(goal[finite])
    measured = _measure(difference, size, facts)
    measured["within"] = {
        name: float(np.mean(difference <= atol + rtol * size)) if size.size else 0.0
        for name, (atol, rtol) in wanted.get("within", {}).items()
    }
    measured["small"] = {
        name: _measure_apart(difference, size, facts, *border) for name, border in wanted.get("small", {}).items()
    }
    return measured


def count_misplaced(output: Array, golden: Array) -> int:
    """Return how many elements are NaN or infinite in only one of an output and its golden, rounded to the output's type.

    Args:
        output: A floating point or complex tensor; complex numbers count as two elements.
        golden: What it should be, in the same shape.
    """
    facts = float_facts(real_part(name_of(output.dtype)))
    return int(np.count_nonzero(np.isfinite(_read_reals(output)) != _stays_finite(_read_reals(golden), facts)))


def _measure_apart(difference: Floats, size: Floats, facts: FloatFacts, below: float, allowed: float) -> dict[str, Any]:
    """Return how many elements are small and how many of these are wrong, and the errors of all others."""
    small = size < below
    ordinary = _measure(difference[~small], size[~small], facts)
    wrong = int(np.count_nonzero(difference[small] > allowed))
    return {"small": int(small.sum()), "wrong": wrong, **{name: ordinary[name] for name in ("count", "mare", "mere", "rmse")}}


def _measure(difference: Floats, size: Floats, facts: FloatFacts) -> dict[str, Any]:
    if not difference.size:
        return {"count": 0, "mare": 0.0, "mere": 0.0, "rmse": 0.0, "largest": 0.0, "ulp": 0.0}
    relative, largest = difference / (size + _OFFSET), float(difference.max())
    # Scaled, because the square of a difference may leave float64.
    norm = largest * float(np.linalg.norm(difference / largest)) if largest else 0.0
    return {
        "count": int(difference.size),
        "mare": float(relative.max()),
        "mere": float(relative.mean()),
        "rmse": norm / float(np.sqrt(difference.size)),
        "largest": largest,
        # Of several elements with this difference, the one with the smallest ulp has the tightest limit.
        "ulp": float(_ulp_of(size[difference == largest], facts).min()) if largest else 0.0,
    }


def _read_reals(array: Array) -> Floats:
    flat = np.ascontiguousarray(array).reshape(-1)
    part = real_part(name_of(flat.dtype))
    return widen(flat.view(NUMPY_DTYPES[part]))


def _ulp_of(values: Floats, facts: FloatFacts) -> Floats:
    """Return the distance of neighbours of an element type at finite values; subnormal numbers share one."""
    powers = np.ldexp(0.5, np.frexp(values)[1])  # the power of two below
    powers = np.where(values == 0, 0.0, powers)
    return np.asarray(np.maximum(powers, facts.smallest_normal) * 2.0 ** (1 - facts.digits), dtype=np.float64)


def _stays_finite(values: Floats, facts: FloatFacts) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Tell which values an element type can hold after rounding them to nearest, once."""
    finite = np.isfinite(values)
    if facts.name == "float64":
        return finite
    known = np.where(finite, values, 0.0)
    step = _ulp_of(np.abs(known), facts)
    with np.errstate(over="ignore"):  # float64 at its own end
        return finite & (np.abs(np.rint(known / step) * step) <= facts.largest)
