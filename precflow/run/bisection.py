"""The first of several versions, in order, that computes something else: found by halves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ALIGNED, MISALIGNED = "aligned", "misaligned"


@dataclass(frozen=True)
class Bisection:
    """What the runs have shown of the versions, which are numbered from 0 in their order.

    Attributes:
        first_wrong: The first version that is known to be misaligned; ``None`` if none is.
        last_right: The last one before it that is known to be aligned; ``-1`` for the reference, which stands before the first.
        verdicts: Number -> verdict of each version that was run, in the order in which they were.
    """

    first_wrong: int | None
    last_right: int
    verdicts: dict[int, str]

    def is_certain(self, count: int) -> bool:
        """Tell whether nothing is left open: two neighbours differ, or the last version is aligned.

        Args:
            count: Number of versions.
        """
        if self.first_wrong is None:
            return self.last_right == count - 1
        return self.first_wrong == self.last_right + 1


def most_runs(count: int) -> int:
    """Return how many runs a search takes at most, if each is judged: the last version, then half of what is left each time.

    >>> [most_runs(count) for count in (1, 2, 3, 7)]
    [1, 2, 3, 4]
    """
    return 1 + math.ceil(math.log2(count))


def bisect(count: int, judge: Callable[[int], str]) -> Bisection:
    """Find the first version that is misaligned.

    The last version is run first: if that is aligned there is nothing to find. What lies between is taken to be aligned up to
    one version and misaligned from it on, as it is where one change broke something. A version that cannot be judged, because
    its run is inconclusive or could not be done, is passed over for the one nearest to it.

    Args:
        count: Number of versions, at least 1.
        judge: Runs a version and returns its verdict; any other text than the two that count says that it was not judged.
    """
    verdicts = {count - 1: judge(count - 1)}
    right, wrong = -1, count - 1
    if verdicts[wrong] != MISALIGNED:
        return Bisection(None, count - 1 if verdicts[wrong] == ALIGNED else -1, verdicts)
    while candidates := [number for number in range(right + 1, wrong) if number not in verdicts]:
        middle = (right + wrong) / 2
        number = min(candidates, key=lambda each: abs(each - middle))
        verdicts[number] = judge(number)
        if verdicts[number] == ALIGNED:
            right = number
        elif verdicts[number] == MISALIGNED:
            wrong = number
    return Bisection(wrong, right, verdicts)


def tell(found: Bisection, names: Sequence[str], reference: str) -> str:
    """Return what was found in words: ``first misaligned with torch 2.9.1 (2.8.0 aligned), 3 of 7 runs``.

    Args:
        found: What was found.
        names: Of the versions.
        reference: Name of what they are compared with.
    """
    runs = f"{len(found.verdicts)} of {len(names)} runs"
    if found.first_wrong is None and found.last_right == len(names) - 1:
        return f"{names[-1]} is aligned with {reference}: nothing to find, {runs}"
    if found.first_wrong is None:
        return f"{names[-1]}, the last one, could not be judged ({found.verdicts[len(names) - 1]}), {runs}"
    before = names[found.last_right] if found.last_right >= 0 else reference
    if found.is_certain(len(names)):
        same = "the reference" if found.last_right < 0 else "aligned"
        return f"first misaligned with {names[found.first_wrong]} ({before} {same}), {runs}"
    between = ", ".join(names[found.last_right + 1 : found.first_wrong])
    return f"misaligned with {names[found.first_wrong]} at the latest; {between} could not be judged ({before} aligned), {runs}"
