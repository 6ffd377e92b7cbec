"""Whether the smallest values of a bfloat16 output have the steps of float16.

float16 is finer than bfloat16, but its smallest values have a fixed step: all numbers below 2^-14 are multiples of 2^-24,
while bfloat16 keeps its relative step down to 2^-126. So a function that computes in float16 gives the right bfloat16
numbers, but for the smallest: those are whole multiples of 2^-24, or zero. A correct result that is no such multiple
becomes one by chance alone: of the bfloat16 numbers between 2^e and 2^(e+1), one in 2^(-17-e) is one.

A function that adds something to 1 in float32 (``tanh`` as ``1 - 2 / (1 + exp(2x))``) leaves multiples of 2^-24 or 2^-25
too, but not the same ones on both sides of zero: float32 has another step above 1 than below. So the signs are counted
apart, and the odd multiples, which tell 2^-24 from 2^-23.
"""

from __future__ import annotations

from typing import Dict

import torch

_STEP = 2.0**-24  # of float16 below 2^-14
_LARGEST = 2.0**-17  # below this bfloat16 has finer steps
_BITS = 7.0  # most that one value tells: bfloat16 has so many bits behind the leading one


class HalfSteps:
    """Counts small values of one output, by sign."""

    def __init__(self) -> None:
        self._counts = torch.zeros(2, 3, dtype=torch.int64)  # negative and positive; small, in whole steps, in an odd number
        self._bits = 0.0

    def add(self, output: torch.Tensor, rounded: torch.Tensor) -> None:
        """Add a block.

        Args:
            output: Dump values, in float64.
            rounded: Correct ones, rounded once to bfloat16, in float64; 0 at places that are left out.
        """
        small = (rounded.abs() < _LARGEST) & (rounded != 0)
        if not bool(small.any()):
            return
        wanted, made = rounded[small] / _STEP, output[small] / _STEP
        between = wanted != wanted.round()
        wanted, made = wanted[between], made[between]
        whole = made == made.round()
        odd = whole & (made.remainder(2.0) == 1.0)
        self._bits += float((8.0 - torch.frexp(wanted).exponent.to(torch.float64)).clamp(1.0, _BITS).sum())
        for sign, chosen in enumerate((wanted < 0, wanted > 0)):
            self._counts[sign] += torch.stack([part[chosen].sum() for part in (chosen, whole, odd)])

    def numbers(self) -> Dict[str, float]:
        """Return how many small values there are of each sign, how many in whole and in odd steps, and the bits of evidence."""
        names = [f"{sign}_{kind}" for sign in ("negative", "positive") for kind in ("small", "whole", "odd")]
        return {**dict(zip(names, self._counts.flatten().tolist())), "bits": self._bits}
