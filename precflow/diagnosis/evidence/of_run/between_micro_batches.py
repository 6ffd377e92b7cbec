"""What one side does to gradients between two micro batches of a step, while it still accumulates: it clears or clips them.

A second micro batch adds its gradient g2 to g1, what the first one has left. If one side alone multiplies what is there by a
factor in between, its sum is ``factor * g1 + g2``, with 0 where it is cleared. The other side tells g1 and g2. Sketches are
linear, so that they show it as well as tensors do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from precflow.agent.contract import GRADIENT
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.diagnosis.evidence.tensors import read_linear
from precflow.dumps.collectives import name_parameter
from precflow.dumps.dtypes import FLOATS, float_facts
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Record

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison

EVIDENCE = {
    "between_side": Evidence(
        "multiplies gradients between micro batches",
        "`reference` or `target`; absent unless the second micro batch shows one factor for most parameters.",
    ),
    "between_step": Evidence("it does so first in step", "Number of the step, from 0."),
    "between_factor": Evidence("factor", "What the gradient of the first micro batch is multiplied by; 0 where it is cleared."),
    "between_share": Evidence("share of the parameters", "Of those whose gradients could be looked at.", unit="%"),
}

_LEFT = 1e-2  # largest part of the first gradient that a factor may leave unexplained
_APART = 0.02  # most that factors of single parameters differ from the one of most
_MOST = 0.99  # a factor above this is none
_SHARE = 0.9
_LOOKED_AT = 64  # parameters

_Place = tuple[int, int, str]  # step, rank and parameter
_Floats = npt.NDArray[np.float64]


def gather(run: Comparison) -> dict[str, Any]:
    """Return which side multiplies its gradients between the micro batches of a step, where something is suspect."""
    if not run.region.suspects or run.blockers:
        return {}
    sides = [_list_gradients(dump) for dump in (run.reference, run.target)]
    several = {place: records for place, records in sides[0].items() if len(records) > 1}
    dumps = (run.reference, run.target)
    for step in sorted({place[0] for place in several}):
        places = [place for place in several if place[0] == step and len(sides[1].get(place, ())) == len(several[place])]
        for number, name in ((1, "target"), (0, "reference")):
            pairs = [(sides[number][place], sides[1 - number][place]) for place in places[:_LOOKED_AT]]
            factors = [_measure_factor(dumps[number], dumps[1 - number], *pair) for pair in pairs]
            known = [factor for factor in factors if factor is not None]
            if not known or max(known) > _MOST:
                continue
            common = median(known)
            fitting = sum(abs(factor - common) <= _APART for factor in known)
            if fitting >= _SHARE * len(known):
                factor = 0.0 if abs(common) <= _LEFT else common
                return {
                    "between_side": name,
                    "between_step": step,
                    "between_factor": factor,
                    "between_share": fitting / len(known),
                }
    return {}


def _list_gradients(dump: Dump) -> Mapping[_Place, Sequence[Record]]:
    """Return the gradients of each parameter in each step, in order: one for each micro batch."""
    found: dict[_Place, list[Record]] = defaultdict(list)
    for call in sorted(dump.calls(), key=lambda call: call.order):
        for record in call.outputs if call.phase == GRADIENT else ():
            found[call.step, call.rank, name_parameter(call, record)].append(record)
    return found


def _measure_factor(dump: Dump, other: Dump, records: Sequence[Record], others: Sequence[Record]) -> float | None:
    """Return what a side has multiplied the first gradient by when the second was added; ``None`` if it is not known.

    A difference that no factor explains is told by infinity.
    """
    read = [*(read_linear(dump, record) for record in records[:2]), *(read_linear(other, record) for record in others[:2])]
    tensors = [tensor for tensor in read if tensor is not None]
    if len(tensors) < len(read) or len({tensor.shape for tensor in tensors}) > 1:
        return None
    first, second, other_first, other_second = tensors
    left: _Floats = second - (other_second - other_first)
    size = float(np.linalg.norm(first))
    unit = max(2.0 ** -float_facts(record.dtype).digits for record in (records[0], others[0]) if record.dtype in FLOATS)
    rounding = 4 * unit * float(np.linalg.norm(second))
    if not size > 0 or not rounding < _LEFT * 10 * size:
        return None
    factor = float(left @ first) / size**2
    unexplained = float(np.linalg.norm(left - factor * first))
    return factor if unexplained <= _LEFT * size + rounding else float("inf")
