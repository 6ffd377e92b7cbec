"""What a reader of the metrics should know beside them: how many elements of which class, and what the metrics leave out."""

from __future__ import annotations

from collections.abc import Callable

from precflow.comparison.summary import Summary


def counts(summary: Summary) -> dict[str, int]:
    """Return how many elements fell into each class of values, and how many found no partner of their class."""
    names = (
        "elements ordinary small sentinel nonfinite sentinel_mismatch other_fill saturated_mismatch nonfinite_mismatch "
        "small_mismatch infinity_for_sentinel"
    )
    fills = {"measured_fills": summary.fills.compared} if summary.fills else {}
    return {**{name: int(getattr(summary, name)) for name in names.split()}, **fills}


_WARNINGS: tuple[tuple[Callable[[Summary], int], str], ...] = (
    (
        lambda s: s.nonfinite - s.nonfinite_mismatch - s.infinity_for_sentinel,
        "{} NaN or Inf, equal in kind and place on both sides",
    ),
    (lambda s: s.infinity_for_sentinel, "{} places hold -inf on one side and a mask's fill value on the other"),
    (
        lambda s: s.fills.compared if s.fills else 0,
        "{} elements hold a mask's fill value on both sides and are measured by themselves",
    ),
    (
        lambda s: s.sentinel - s.other_fill - (s.fills.compared if s.fills else 0),
        "{} elements hold the extreme value of its own type on each side, as masks do, and enter no sum",
    ),
    (
        lambda s: s.small_mismatch,
        "{} elements are 0 or subnormal in the reference only: errors relative to single elements leave them out",
    ),
)


def warnings(summary: Summary) -> tuple[str, ...]:
    """Return what a reader of the metrics should know about the elements that they leave out."""
    return tuple(text.format(count) for counted, text in _WARNINGS if (count := counted(summary)))
