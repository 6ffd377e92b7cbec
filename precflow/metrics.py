"""Every metric as one row: name, formula, unit, direction of its limits, when a limit is blind, what it can be had from.

To add a metric, change two places:

1. Add its row to ``_ROWS`` below. The keys of recipes and their help (``config/schema.py``), what a recipe may set, ``precflow
   ls metric``, the checks of limits, their direction in verdicts and on the page, and blindness all follow from it.
   ``docs/metrics.md`` repeats the rows as a table; a test says which line of it to change.
2. Add the function of the same name to ``comparison/formulas.py``, which computes it from a summary of both tensors.

A metric of the user's own (a class and a line of YAML, see ``comparison/user_metrics.py``) gets its row from
:func:`find_metric`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Unit = Literal["share", "value", "ulp", "nats", "own"]
Domain = Literal["anything", "numbers", "floats", "quotients", "distributions", "tolerances"]
Source = Literal["content ids", "statistics", "tensors"]

_FINE_DIGITS = 24  # float32 and float64; everything else is low precision


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: As recipes and tables spell it; the function in ``comparison/formulas.py`` has the same name.
        meaning: What it is, in words, as help texts show it.
        formula: y is the reference, x the target, d = x - y.
        unit: ``share`` (of one), ``value`` (the tensor's own unit), ``ulp``, ``nats``, or ``own`` for a metric of the user's.
        domain: What tensors it has a meaning for:

            ``anything``: even where there is nothing to compare;
            ``numbers``: some element can be compared, integers too;
            ``floats``: the same, but floating point or complex;
            ``quotients``: floats of which some reference is large enough to divide by;
            ``distributions``: floats without negative values;
            ``tolerances``: floats of a type that ``assert_close`` has tolerances for.
        at_least: A limit means at least, and 1 is perfect. Otherwise it means at most, and 0 is perfect.
        example: A limit as a recipe would write it; ``""`` where recipes have no key for it (standards and columns do).
        blind: Where a limit becomes so wide that no plausible fault would fail it, in float32 and float64, and in low
            precision; for ``ulp`` as a share of the value. ``None``: never for at most, at 0 for at least.
        source: The least that both dumps must have kept for a number, or a range that it lies in.
        estimated: Two sketches give a best guess of it, not only a range.
        dtype: The type whose tolerances it takes, for the forms of ``allclose_share``.
    """

    name: str
    meaning: str
    formula: str
    unit: Unit = "share"
    domain: Domain = "floats"
    at_least: bool = False
    example: str = ""
    blind: tuple[float, float] | None = None
    source: Source = "tensors"
    estimated: bool = False
    dtype: str = ""

    @property
    def direction(self) -> str:
        """What a limit on it means: ``at least`` or ``at most``."""
        return "at least" if self.at_least else "at most"

    @property
    def is_relative(self) -> bool:
        """It is a share of the reference or counted in units of it: it says nothing where the reference is only rounding."""
        return self.unit in {"share", "ulp"}

    @property
    def family(self) -> str:
        """The metric that a rule replaces together with it: ``allclose_share`` for its forms by element type."""
        return "allclose_share" if self.dtype else self.name

    def is_blind(self, limit: float, digits: int) -> bool:
        """Tell whether a limit is so wide that no plausible fault would fail it.

        Args:
            limit: The limit.
            digits: Bits of the significand of the type that decides.
        """
        if self.blind is None:
            return limit <= 0 if self.at_least else limit == math.inf
        line = self.blind[digits < _FINE_DIGITS]
        if self.unit == "ulp":
            line *= 2.0 ** (digits - 1)  # units in the last place of 1: a share of the value, counted in them
        return limit <= line if self.at_least else limit >= line


# A relative L2 of e is a cosine of about 1 - e^2 / 2 and a divergence of about e^2 / 2, so their lines say the same.
_BLIND_NORM = (0.1, 0.5)  # errors that are a norm or a mean
_BLIND_LARGEST = (1.0, 2.0)  # errors of the single worst element
_BLIND_COSINE = (0.995, 0.875)
_BLIND_DIVERGENCE = (0.005, 0.125)

_ROWS = (
    Metric(
        "cosine_similarity",
        "Cosine of the angle between target and reference",
        "x.y / (norm of x times norm of y); near 1 from the difference, so that nothing cancels",
        at_least=True,
        example="0.999",
        blind=_BLIND_COSINE,
        source="statistics",
        estimated=True,
    ),
    Metric(
        "max_abs_error",
        "Largest absolute difference, in the tensor's own unit",
        "largest abs d; for integers too",
        unit="value",
        domain="numbers",
        example="1e-3",
        source="statistics",
    ),
    Metric(
        "mean_abs_error",
        "Mean absolute difference, in the tensor's own unit",
        "mean of abs d; for integers too",
        unit="value",
        domain="numbers",
        example="1e-4",
        source="statistics",
    ),
    Metric(
        "max_rel_error",
        "Largest absolute difference over the reference's element",
        "largest abs d / abs y; where y is 0 or subnormal an element is left out",
        domain="quotients",
        example="2^-10",
        blind=_BLIND_LARGEST,
    ),
    Metric(
        "mean_rel_error",
        "Mean of the differences over the reference's elements",
        "mean of abs d / abs y; where y is 0 or subnormal an element is left out",
        domain="quotients",
        example="1%",
        blind=_BLIND_NORM,
    ),
    Metric(
        "relative_l2",
        "Norm of the difference over the norm of the reference",
        "norm of d / norm of y",
        example="2^-8",
        blind=_BLIND_NORM,
        source="statistics",
        estimated=True,
    ),
    Metric(
        "accumulated_relative_error",
        "Sum of the absolute differences over the sum of the reference's absolute values",
        "sum of abs d / sum of abs y",
        example="0.1%",
        blind=_BLIND_NORM,
        source="statistics",
    ),
    Metric(
        "kl_divergence",
        "Divergence of the tensors as distributions, in nats; no value is negative",
        "sum of p log(p / q), where p = y / sum of y and q = x / sum of x; only where no value is negative",
        unit="nats",
        domain="distributions",
        example="0.01",
        blind=_BLIND_DIVERGENCE,
    ),
    Metric(
        "rmse",
        "Root mean square of the difference, in the tensor's own unit",
        "root of the mean of d squared",
        unit="value",
        example="1e-4",
        source="statistics",
        estimated=True,
    ),
    Metric(
        "mare",
        "CANN's maximum relative error",
        "largest abs d / (abs y + 1e-7)",
        blind=_BLIND_LARGEST,
        source="statistics",
    ),
    Metric(
        "mere",
        "CANN's mean relative error",
        "mean of abs d / (abs y + 1e-7)",
        blind=_BLIND_NORM,
        source="statistics",
    ),
    Metric(
        "share_within_one_thousandth",
        "Share of elements that differ by at most 0.001 of the reference's",
        "share of elements with abs d / abs y of at most 0.001",
        at_least=True,
        example="99.9%",
    ),
    Metric(
        "share_within_five_thousandths",
        "Share of elements that differ by at most 0.005 of the reference's",
        "share of elements with abs d / abs y of at most 0.005",
        at_least=True,
        example="99.9%",
    ),
    Metric(
        "allclose_share",
        "Share of elements within the tolerances of `torch.testing.assert_close`",
        "share of elements with abs d <= atol + rtol abs y, by the tolerances for the coarser type",
        domain="tolerances",
        at_least=True,
        example="100%",
        source="statistics",
    ),
    *(
        Metric(
            f"allclose_share_{dtype}",
            f"Share of elements within the tolerances of `torch.testing.assert_close` for {dtype}",
            f"the same by the tolerances for {dtype}, where neither type is coarser",
            domain="tolerances",
            at_least=True,
            source="statistics",
            dtype=dtype,
        )
        for dtype in ("float64", "float32", "float16", "bfloat16")
    ),
    Metric(
        "ulp_distance",
        "Largest difference in units in the last place of the coarser type",
        "largest distance in units in the last place of the coarser type; where y is 0 or subnormal an element is left out",
        unit="ulp",
        domain="quotients",
        example="8ulp",
        blind=_BLIND_NORM,
    ),
    Metric(
        "mean_ulp_distance",
        "Mean difference in units in the last place of the coarser type",
        "mean distance in units in the last place of the coarser type; where y is 0 or subnormal an element is left out",
        unit="ulp",
        domain="quotients",
        blind=_BLIND_NORM,
    ),
    Metric(
        "max_rms_error",
        "Largest difference over the root mean square of the reference",
        "largest abs d / root mean square of y",
        example="1%",
        blind=_BLIND_LARGEST,
        source="statistics",
    ),
    Metric(
        "worst_row_error",
        "Norm of the worst row's difference over the norm of that row",
        "largest norm of a row of d / that row of y (or the median row that is not zero, where that is larger)",
        example="1%",
        blind=_BLIND_NORM,
        source="statistics",
    ),
    Metric(
        "bitwise_equal",
        "Whether both tensors have the same type and bits",
        "1 where type and bits are the same, else 0",
        domain="anything",
        at_least=True,
        source="content ids",
    ),
)
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _ROWS}
LIMITED: tuple[str, ...] = tuple(metric.name for metric in _ROWS if metric.example)
"""Metrics that a recipe can limit by a key of their name."""


def find_metric(name: str) -> Metric:
    """Return the row of a metric, or one for a metric of the user's own: an error, 0 is perfect, never blind.

    >>> find_metric("cosine_similarity").direction, find_metric("sign_flips").direction
    ('at least', 'at most')
    """
    return METRICS.get(name) or _make_user_row(name)


@functools.lru_cache(maxsize=256)
def _make_user_row(name: str) -> Metric:
    return Metric(name, "A metric of your own", "what its class returns", unit="own", domain="anything")
