"""The coarsest element type that a record's values went through on the reference: a float32 cast from bfloat16 is as coarse.

Under autocast a model has weights, sums and gradients in float32, and matrix products in bfloat16 between them. A float32
record behind such a product is as exact as bfloat16, whatever type holds it. Where its noise floor was measured, the floor
knows. Fixed limits go by element types, so there a record counts as of the coarsest type that was recorded before it in its
step. What comes before the first coarse operator keeps the fine limits, and so does a run that computes in one type.

In training, everything behind the first gradient is made of everything before it, the weights of the next step included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from precflow.agent.contract import BACKWARD, FORWARD
from precflow.dumps.dtypes import coarsest
from precflow.dumps.records import Call, Record

_Place = tuple[int, int, int]  # rank, step and order of a call


@dataclass(frozen=True)
class CarriedTypes:
    """The coarsest types before the records of a run.

    Attributes:
        outputs: Identity text of an output -> the coarsest floating point type up to it, its own included; only where that is
            coarser than its own.
        calls: Rank, step and order of a call -> the coarsest type before it; ``""`` if there was none.
    """

    outputs: Mapping[str, str] = field(default_factory=dict)
    calls: Mapping[_Place, str] = field(default_factory=dict)

    def before(self, record: Record) -> str:
        """Return the coarsest type that was recorded before the call that a record is an input of; ``""`` if there is none."""
        whose = record.whose
        return self.calls.get((whose.rank, whose.step, whose.order), "")


NOTHING_CARRIED = CarriedTypes()


def find_carried(calls: Iterable[Call]) -> CarriedTypes:
    """Return the coarsest types before the records of the reference.

    Args:
        calls: Of the reference, ordered by rank, step and completion.
    """
    outputs: dict[str, str] = {}
    places: dict[_Place, str] = {}
    so_far, where, is_training = "", (0, 0), False
    for call in calls:
        if (call.rank, call.step) != where:
            is_training = is_training and call.rank == where[0]
            so_far, where = so_far if is_training else "", (call.rank, call.step)
        is_training = is_training or call.phase not in {FORWARD, BACKWARD}
        places[call.rank, call.step, call.order] = so_far
        so_far = coarsest([so_far, *(record.dtype for record in call.outputs)])
        outputs.update((record.text, so_far) for record in call.outputs if so_far not in {"", record.dtype})
    if len({so_far, *places.values()} - {""}) < 2 and not outputs:  # one type: nothing is carried
        return NOTHING_CARRIED
    return CarriedTypes(outputs, places)
