"""Every metric as one row: name, formula, unit, direction of its limits, when a limit is blind, what it can be had from.

To add a metric, add a file to ``comparison/metrics/``: its row, and the function that takes it from a summary of both tensors.
The keys of recipes and their help (``config/schema.py``), what a recipe may set, ``precflow ls metric``, the checks of limits,
their direction in verdicts and on the page, and blindness all follow from the row. ``docs/metrics.md`` repeats the rows as a
table; a test says which line of it to change.

A metric of the user's own (a class and a line of YAML, see ``comparison/user_metrics.py``) gets its row from
:func:`find_metric`.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

Unit = Literal["share", "value", "ulp", "nats", "own"]
Domain = Literal["anything", "numbers", "floats", "quotients", "distributions", "tolerances"]
Source = Literal["content ids", "statistics", "tensors"]
Blind = Literal["norm", "largest", "cosine", "divergence"]

# Where a limit is blind, in float32 and float64, and in low precision. A relative L2 of e is a cosine of about 1 - e^2 / 2, and
# a divergence of about e^2 / 2, so their lines say the same.
_BLIND: Mapping[Blind, tuple[float, float]] = {
    "norm": (0.1, 0.5),  # errors that are a norm or a mean
    "largest": (1.0, 2.0),  # errors of the single worst element
    "cosine": (0.995, 0.875),
    "divergence": (0.005, 0.125),
}
_FINE_DIGITS = 24  # float32 and float64; everything else is low precision


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: As recipes and tables spell it, and its module is called.
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
        blind: From which line on a limit is so wide that no plausible fault would fail it: that of a ``norm`` or mean, of the
            ``largest`` error, of a ``cosine`` or a ``divergence``; for ``ulp`` as a share of the value. ``None``: never for at
            most, at 0 for at least.
        source: The least that both dumps must have kept for a number, or a range that it lies in.
        estimated: Two sketches give a best guess of it, not only a range.
        place: Metrics are listed in this order.
        forms: Element types for each of which it has a form, ``NAME_TYPE``.
        dtype: The type of such a form.
    """

    name: str
    meaning: str
    formula: str
    unit: Unit = "share"
    domain: Domain = "floats"
    at_least: bool = False
    example: str = ""
    blind: Blind | None = None
    source: Source = "tensors"
    estimated: bool = False
    place: int = 0
    forms: tuple[str, ...] = ()
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
        return self.name.removesuffix(f"_{self.dtype}")

    def make_form(self, dtype: str) -> Metric:
        """Return its form for an element type; recipes have no key for it."""
        meaning, formula = (
            f"{self.meaning} for {dtype}",
            f"the same by the tolerances for {dtype}, where neither type is coarser",
        )
        return replace(self, name=f"{self.name}_{dtype}", meaning=meaning, formula=formula, example="", forms=(), dtype=dtype)

    def is_blind(self, limit: float, digits: int) -> bool:
        """Tell whether a limit is so wide that no plausible fault would fail it.

        Args:
            limit: The limit.
            digits: Bits of the significand of the type that decides.
        """
        if self.blind is None:
            return limit <= 0 if self.at_least else limit == math.inf
        line = _BLIND[self.blind][digits < _FINE_DIGITS]
        if self.unit == "ulp":
            line *= 2.0 ** (digits - 1)  # units in the last place of 1: a share of the value, counted in them
        return limit <= line if self.at_least else limit >= line


@functools.lru_cache
def list_metrics(folder: Path = Path(__file__).parent / "comparison" / "metrics") -> Mapping[str, Metric]:
    """Return name -> metric for the modules of a folder, in order of their places, each followed by its forms by type.

    The constants are read from the text of the modules: recipes have keys for metrics, and are read without NumPy.
    """
    rows = sorted(map(_read_constant, folder.glob("[a-z]*.py")), key=lambda row: row.place)
    return {each.name: each for row in rows for each in (row, *map(row.make_form, row.forms))}


def _read_constant(path: Path) -> Metric:
    """Return the ``METRIC`` of a module.

    Raises:
        TypeError: It has none, or one that is no plain ``Metric(...)`` of the module's name: a fault of ours.
    """
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "METRIC" and isinstance(node.value, ast.Call):
            named = {str(each.arg): ast.literal_eval(each.value) for each in node.value.keywords}
            metric = Metric(*map(ast.literal_eval, node.value.args), **named)
            if metric.name == path.stem:
                return metric
    raise TypeError(f"{path} has no METRIC = Metric({path.stem!r}, ...)")


METRICS = list_metrics()
LIMITED: tuple[str, ...] = tuple(name for name, metric in METRICS.items() if metric.example)
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
