"""How much of a target's error another computation explains: the one measure of all hypotheses.

The target's outputs are compared with two computations at the target's own inputs: the right one and another one::

    share = 1 - sum |target - other|^2 / sum |target - right|^2           1 explains everything, 0 or less nothing
    left  = sqrt(sum |target - other|^2 / sum |reference - right|^2)      near 1: as near as the reference is to its own

Each output counts in units of its size: the sum of its absolute terms where it cancels. In 16 bits, rounding is often a larger
error than computing otherwise. It is the same for both computations, so they are compared as rounded too, and the better of
the two shares counts.

A share may be large by chance: of few elements, of a few that are wrong among many that are only rounded, or because the right
result is nearly zero, so that zeros explain any error. ``sure`` is the share of what cannot be chance.
"""

from __future__ import annotations

import math
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch

from precflow.agent.replay.numbers import REAL_TYPES, real_parts, round_once

LEAST = 0.5
"""Share from which on a computation is worth a line."""
_SEVERAL = 16  # wrong elements; another computation may be right about fewer by chance
_FEW = 8  # elements up to which one of many computations is near them by chance
_NEAR = 2.0**-17  # relative distance at which so few elements are those of the computation
_FITS_WELL = 0.97  # from here on what is left may be more than rounding
_LARGE = 0.1  # but no more than this, relative to the energy of what was computed
_ROUNDING = 2.0**-14  # what is left otherwise: a few roundings of bfloat16

Tensors = Mapping[str, torch.Tensor]


class Fit(NamedTuple):
    """What another computation explains of a target's error.

    Attributes:
        share: Share of the error's energy.
        sure: The same; 0 where it may be chance.
        left: The error that it leaves, in units of the reference's own; ``None`` where that is not known.
        places: Elements for which the two computations give different numbers of the output's type.
    """

    share: float
    sure: float
    left: Optional[float]
    places: int


class Aim:
    """What a target gave, and the right computation at its inputs: what hypotheses are measured against.

    Args:
        target: The outputs as they were recorded, by path.
        ways: The right results in float64, once without rounding and once rounded to the target's types on the way.
        sizes: Path -> square of the norm that an output's error counts relative to; of others, that of the right result.
        own: Square of the error that the reference has by itself in the same units; 0 where it is not known.
        is_sum: Results may cancel to less than their sizes, so that those tell whether they are nearly zero.
    """

    def __init__(
        self,
        target: Tensors,
        ways: Sequence[Tensors],
        *,
        sizes: Optional[Mapping[str, float]] = None,
        own: float = 0.0,
        is_sum: bool = False,
    ) -> None:
        self.own = own
        self._is_sum = is_sum
        self._outputs = [_Output(index, output, ways, (sizes or {}).get(index)) for index, output in target.items()]
        self._is_right = bool(self._outputs) and all(output.is_right for output in self._outputs)

    def measure(self, others: Sequence[Tensors]) -> Optional[Fit]:
        """Return how well another computation fits; ``None`` where it gives the numbers of the right one, or the target did.

        Args:
            others: Its results, as many as there are ways to round.
        """
        if not self._outputs:  # movement whose results were not kept: their content ids say it
            return Fit(1.0, 0.0, None, sum(each.numel() for each in others[-1].values()))
        places = sum(output.count_places(others[-1].get(output.index)) for output in self._outputs)
        if not places or self._is_right:  # rounding as the type does leaves nothing to explain
            return None
        fits = [self._measure_way(way, other) for way, other in enumerate(others)]
        share, sure = (max(fit[number] for fit in fits) for number in (0, 1))
        rest = min(fit[2] for fit in fits)
        return Fit(share, sure, math.sqrt(rest / self.own) if self.own and math.isfinite(rest) else None, places)

    def _measure_way(self, way: int, other: Tensors) -> Tuple[float, float, float]:
        """Return the share, the sure one, and the energy that is left."""
        sums = [output.add_up(way, other.get(output.index)) for output in self._outputs]
        energy, rest, size = (math.fsum(column) for column in zip(*[each[:3] for each in sums]))
        wrong, count = (sum(each[place] for each in sums) for place in (3, 4))
        if energy == 0.0:  # all that is wrong is not finite: where, is for the judge
            return float(rest == 0.0), 0.0, rest
        share = 1.0 - rest / energy if math.isfinite(energy) else 0.0
        most = (_LARGE if share > _FITS_WELL else _ROUNDING) * (len(sums) if self._is_sum else size)
        is_sure = wrong >= min(_SEVERAL, count) and size > 0.0 and rest <= most
        if count <= _FEW:
            is_sure = is_sure and all(output.is_near(way, other.get(output.index)) for output in self._outputs)
        return share, share if is_sure else 0.0, rest


class _Output:
    """One output of the target beside the right ones."""

    def __init__(self, index: str, output: torch.Tensor, ways: Sequence[Tensors], size: Optional[float]) -> None:
        self.index = index
        self._shape, self._dtype = output.shape, output.dtype
        self._is_float = output.is_floating_point() or output.is_complex()
        self._target = self._flatten(output)
        self._right: List[Optional[torch.Tensor]] = []
        for way in ways:
            right = way.get(index)
            self._right.append(self._flatten(right) if right is not None and right.shape == output.shape else None)
        exact = self._right[0]
        norm = float(exact[exact.isfinite()].square().sum()) if exact is not None else 0.0
        known = [each for each in (size, norm) if each and math.isfinite(each)]  # terms are infinite where a mask is
        self._weight = 1.0 / (known[0] if known else 1.0) if self._is_float else 1.0 / max(1, output.numel())
        last = self._right[-1]
        self._numbers = None if last is None else self._to_numbers(last)
        self.is_right = self._numbers is not None and torch.equal(self._numbers, self._to_numbers(self._target))

    def count_places(self, other: Optional[torch.Tensor]) -> int:
        """Return how many elements the two computations give other numbers of the output's type for."""
        if other is None or other.shape != self._shape:
            return 0 if self._numbers is None else self._target.numel()
        if self._numbers is None:
            return self._target.numel()
        return int((self._to_numbers(self._flatten(other)) != self._numbers).sum())

    def add_up(self, way: int, other: Optional[torch.Tensor]) -> Sequence[float]:
        """Return energies of the error, of what is left of it and of the other result, wrong elements, and all of them."""
        right = self._right[way]
        if other is None or other.shape != self._shape:
            return (0.0, 0.0 if right is None else math.inf, 0.0, 0, self._target.numel())
        values = self._flatten(other)
        if right is None:  # the shape alone says that it is not the right one
            difference = float((self._target - values)[self._target.isfinite()].square().sum()) * self._weight
            return (difference + 1.0, difference, 1.0, self._target.numel(), self._target.numel())
        if not self._is_float:
            errors = [(self._target != each).to(torch.float64) for each in (right, values)]
            wrong = int(errors[0].sum())
            return (*(float(each.sum()) * self._weight for each in errors), 1.0, wrong, self._target.numel())
        kept = self._target.isfinite() & right.isfinite()
        target, right, values = self._target[kept], right[kept], values[kept]
        energy, rest, size = (float(each.square().sum()) * self._weight for each in (target - right, target - values, values))
        return (energy, rest if math.isfinite(rest) else math.inf, size, int((target != right).sum()), target.numel())

    def is_near(self, way: int, other: Optional[torch.Tensor]) -> bool:
        """Tell whether the other result is the target's but for rounding, where it is another one than the right one."""
        right = self._right[way]
        if other is None or right is None or other.shape != self._shape:
            return other is None and right is None
        values = self._flatten(other)
        return torch.equal(values, right) or bool(torch.allclose(values, self._target, rtol=_NEAR, atol=0.0))

    def _flatten(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self._is_float:
            return tensor.reshape(-1)
        wide = torch.complex128 if self._dtype.is_complex else torch.float64
        return real_parts(tensor.to(wide)).contiguous()

    def _to_numbers(self, values: torch.Tensor) -> torch.Tensor:
        """Return values as the output's type has them, so that they can be compared: NaN is like NaN."""
        if not self._is_float:
            return values
        rounded = round_once(values, REAL_TYPES.get(self._dtype, self._dtype))
        return torch.nan_to_num(rounded, nan=0.5 * torch.finfo(torch.float64).max)


def round_results(results: Tensors, target: Tensors) -> Dict[str, torch.Tensor]:
    """Return results as the types of a target's outputs have them; what is no number of floating point stays."""
    rounded: Dict[str, torch.Tensor] = {}
    for index, values in results.items():
        output = target.get(index)
        if output is None or not output.is_floating_point() or not values.is_floating_point():
            rounded[index] = values
        else:
            rounded[index] = round_once(values.to(torch.float64).contiguous(), output.dtype)
    return rounded
