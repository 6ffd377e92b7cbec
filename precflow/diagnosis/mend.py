"""What mends the parts that are to blame, and what that costs: parts of the target are run otherwise, one set after the other.

A set passes if the model's outputs and those of all parts are within the limits of the run, and if no part is to blame any
more: each part that was is within its limit on the reference's inputs too. A part that is not to blame is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from precflow.diagnosis.chain import PartError
from precflow.diagnosis.narrowing import narrow
from precflow.diagnosis.price import Price, describe_ratio
from precflow.numbers import number
from precflow.task.outcome import TaskValue, describe_changed

FLOAT32, FLOAT64, UNFUSED, ON_CPU = "float32", "float64", "unfused", "cpu"
_IN_WORDS = {FLOAT32: "in float32", FLOAT64: "in float64", UNFUSED: "unfused", ON_CPU: "on the CPU"}
PASSES, FAILS, NOT_RUN = OUTCOMES = ("passes", "fails", "did not run")
MOST_RUNS = 24  # of the target, for the modules inside one part
_ALONE = 3  # suspects inside a part that are tried alone
_SHOWN = 3  # modules that a line names


@dataclass(frozen=True)
class Raised:
    """Modules that run otherwise than the target's.

    Attributes:
        way: ``float32`` or ``float64``, ``unfused`` (operators that have a definition are computed from it), or ``cpu``.
        modules: Their names, parts or modules inside one.
    """

    way: str
    modules: tuple[str, ...]


@dataclass(frozen=True)
class Mend:
    """One run of the target: as it is, or with something raised.

    Attributes:
        title: What was raised, in words.
        raised: The same; empty for the run as it is.
        outcome: One of ``OUTCOMES``.
        end: The output of the model that uses most of its limit in this run; ``None`` if none was judged.
        why: Why it fails or did not run, in words.
        price: Its time; ``None`` if it was not timed.
        smallest: It is the smallest set that was found to pass.
        task: The task metrics of this run.
    """

    title: str
    raised: tuple[Raised, ...]
    outcome: str
    end: PartError | None = None
    why: str = ""
    price: Price | None = None
    smallest: bool = False
    task: tuple[TaskValue, ...] = ()


def list_ways(dtype: str) -> tuple[str, ...]:
    """Return the ways in which a part of a target in an element type is tried, the one that changes least first."""
    return (FLOAT32 if dtype in {"float16", "bfloat16"} else FLOAT64, UNFUSED, ON_CPU)


def describe_raised(raised: Iterable[Raised], most: int = _SHOWN) -> str:
    """Return what is raised in words, with the names of so many modules at most.

    >>> describe_raised([Raised("float32", ("unet",)), Raised("cpu", ("vae.a", "vae.b", "vae.c", "vae.d"))])
    'unet in float32, vae.a, vae.b, vae.c and 1 more on the CPU'
    """

    def join(modules: Sequence[str]) -> str:
        """Return the first names, and how many more there are."""
        more = f" and {len(modules) - most} more" if len(modules) > most else ""
        return ", ".join(modules[:most]) + more

    return ", ".join(f"{join(one.modules)} {_IN_WORDS[one.way]}" for one in raised)


def join_ways(mending: Mapping[str, str]) -> tuple[Raised, ...]:
    """Return the set in which each part is raised in its own way.

    >>> join_ways({"text": "float32", "unet": "cpu", "vae": "float32"})
    (Raised(way='float32', modules=('text', 'vae')), Raised(way='cpu', modules=('unet',)))
    """
    by_way: dict[str, list[str]] = {}
    for part, way in mending.items():
        by_way.setdefault(way, []).append(part)
    return tuple(Raised(way, tuple(parts)) for way, parts in by_way.items())


def list_sets(guilty: Sequence[str], ways: Sequence[str]) -> list[tuple[Raised, ...]]:
    """Return the sets that are tried in any case: each guilty part in each way, and all of them together in each."""
    sets = [(Raised(way, (part,)),) for part in guilty for way in ways]
    return list(dict.fromkeys([*sets, *((Raised(way, tuple(guilty)),) for way in ways)]))


def list_inside(part: str, suspects: Sequence[str]) -> list[list[str]]:
    """Return what is tried first inside a part: the modules of its first suspects, each alone, and of all its suspects."""
    inside = list(dict.fromkeys(module for module in suspects if module.startswith(f"{part}.")))
    together = [inside] if inside else []
    return [*([module] for module in inside[:_ALONE]), *(together if len(inside) > 1 else [])]


def narrow_part(
    part: str, suspects: Sequence[str], modules: Collection[str], mends: Callable[[list[list[str]]], list[bool]]
) -> tuple[str, ...]:
    """Return few modules inside a part that are enough to raise; the part itself if none inside it are.

    The modules of suspects are tried first, and then those below the part, level by level: each level is narrowed to few before
    their own modules are looked at.

    Args:
        part: The part; raising all of it mends it.
        suspects: Modules of suspects.
        modules: Names of all modules that ran.
        mends: Tells for each of several lists of modules whether raising them is enough.
    """
    tried = 0

    def count(asked: list[list[str]]) -> list[bool]:
        """Tell for each list whether it is enough, and count the runs that this takes."""
        nonlocal tried
        tried += len(asked)
        return mends(asked) if asked else []

    first = list_inside(part, suspects)
    kept = next((group for group, enough in zip(first, count(first), strict=True) if enough), [])
    if kept:
        return tuple(narrow(kept, count, MOST_RUNS - tried))
    kept = [part]
    while tried < MOST_RUNS:
        below = [inner for module in kept for inner in _list_below(module, modules)]
        if not below or not count([below])[0]:
            break
        kept = narrow(below, count, MOST_RUNS - tried)
    return tuple(kept)


def _list_below(module: str, modules: Collection[str]) -> list[str]:
    """Return the modules that are called inside one, without those that are called inside these."""
    inside = [name for name in modules if name.startswith(f"{module}.")]
    return [name for name in inside if not any(name.startswith(f"{other}.") for other in inside)]


def describe_mends(mends: Sequence[Mend]) -> str:
    """Return in a line the smallest set that passes and its price, or what was tried in vain; ``""`` if nothing was."""
    tried = [mend for mend in mends if mend.raised]
    smallest = next((mend for mend in tried if mend.smallest), None)
    if smallest is None:
        titles = " · ".join(f"{mend.title}{': did not run' if mend.outcome == NOT_RUN else ''}" for mend in tried)
        return f"nothing that was tried passes: {titles}" if tried else ""
    price = ""
    if smallest.price is not None:
        price = f", in {describe_ratio(smallest.price.ratio, smallest.price.least, smallest.price.most)}"
    # Shares of limits can be set side by side, also where another metric is the tightest now.
    before, after = mends[0].end, smallest.end
    shares = "" if before is None or after is None else f"{number(before.ratio)} -> {number(after.ratio)} times its limit"
    shown = ", ".join(filter(None, [describe_changed(mends[0].task[:1], smallest.task), shares]))
    return f"{describe_raised(smallest.raised, 1)} passes{price}{shown and f': {shown}'}"
