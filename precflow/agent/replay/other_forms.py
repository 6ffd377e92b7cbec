"""Whether an output has the bits of a function's other form.

GELU is known in two forms, with ``erf`` and with ``tanh``, which differ by up to 5e-4. In bfloat16 most results of the two are
rounded to the same number, and where they are not, they are mostly neighbours: no larger an error than that of a function that
is right to two units. But then the bits say it: an output of the other form has its rounding everywhere, also at the places
where the two forms give different numbers, and one that is merely off by units in the last place does not. One that is always
rounded downwards has the lower of two neighbours, which may be the other form's: so places where both forms give the same
number are counted as well.

In the tail below zero ``1 + erf(x)`` cancels in float32, so that the bits of a correct result are any; it is left out.
"""

from __future__ import annotations

from typing import Dict, Optional

import torch

from precflow.agent.replay.calls import RecordedCall, parse_argument
from precflow.agent.replay.numbers import round_once

_ARGUMENT = ("approximate", "1")  # name and position
_TAIL = 2.0**-8  # GELU is smaller than this below -3


def find_other_form(call: RecordedCall) -> Optional[RecordedCall]:
    """Return a call with the other form of its function; ``None`` if it has no other."""
    if call.operator != "gelu" or call.phase != "forward":
        return None
    name = next((each for each in _ARGUMENT if each in call.arguments), _ARGUMENT[0])
    is_tanh = name in call.arguments and parse_argument(call.arguments[name]) == "tanh"
    return call._replace(arguments={**call.arguments, name: repr("none" if is_tanh else "tanh")})


def count_bits(output: torch.Tensor, own: torch.Tensor, other: torch.Tensor) -> Dict[str, int]:
    """Return how many elements have the bits of either form.

    Args:
        output: What a side recorded, of a type of 16 bits: with more the size of the error says it.
        own: float64 in the form that was recorded, of the same shape.
        other: float64 in the other form.

    Returns:
        ``places`` where the two forms are rounded to different numbers, how many of these are ``as_own`` and ``as_other``;
        ``elsewhere`` and how many of those are ``as_both``.
    """
    made = output.to(torch.float64)
    here, there = (round_once(form.contiguous(), output.dtype) for form in (own, other))
    usable = made.isfinite() & here.isfinite() & there.isfinite() & (here.abs() >= _TAIL)
    differs = (here != there) & usable
    same = ~differs & usable
    counts = {
        "places": differs,
        "as_own": differs & (made == here),
        "as_other": differs & (made == there),
        "elsewhere": same,
        "as_both": same & (made == here),
    }
    return {name: int(places.sum()) for name, places in counts.items()}
