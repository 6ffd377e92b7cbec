"""Steps of the optimizer that a side left out because its gradients were not finite, as a loss scaler does on purpose.

A scaler that looks for its scale leaves out steps until gradients fit; both sides do so alike. A step that one side alone
leaves out is no missing record, but the trace of an overflow before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from precflow.agent.contract import BACKWARD, GRADIENT, OPTIMIZER, parse_identity
from precflow.dumps.records import Call, Record

Place = tuple[int, int]  # rank and step


class Side(Protocol):
    """What is needed of a side: its calls, and which records are not finite."""

    @property
    def calls(self) -> Sequence[Call]:
        """Its calls."""

    def nonfinite(self, record: Record) -> bool:
        """Tell whether a record is known to have NaN or an infinity."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Where the optimizer did nothing behind gradients that are not finite.

    Attributes:
        reference: On the reference, where the target made the step.
        target: On the target, where the reference made it.
        both: On both sides.
    """

    reference: frozenset[Place] = frozenset()
    target: frozenset[Place] = frozenset()
    both: frozenset[Place] = frozenset()

    @property
    def evidence(self) -> dict[str, list[str]]:
        """The same in words, by the names of ``names.EVIDENCE``."""
        several = any(rank for rank, _ in self.reference | self.target | self.both)
        return {f"left_out_{name}": _texts(getattr(self, name), several=several) for name in ("reference", "target", "both")}

    def explains(self, record: str) -> bool:
        """Tell whether a record is alone because one side left out its step.

        Args:
            record: Its identity as text.
        """
        who = parse_identity(record)
        return who.phase == OPTIMIZER and (who.rank, who.step) in self.reference | self.target


NOTHING = LeftOut()


def find(reference: Side, target: Side) -> LeftOut:
    """Return the steps that a side left out; none where no optimizer was recorded.

    Args:
        reference: What the reference recorded.
        target: What the target recorded.
    """
    (left_here, made_here), (left_there, made_there) = _steps(reference), _steps(target)
    if not made_here | made_there:
        return NOTHING
    return LeftOut(left_here & made_there, left_there & made_here, left_here & left_there)


def _steps(side: Side) -> tuple[frozenset[Place], frozenset[Place]]:
    """Return where the optimizer did nothing behind gradients that are not finite, and where it made a step.

    An optimizer that looks for infinities itself (``fused=True``) is called all the same, and leaves its weights finite.
    """
    phases: dict[Place, dict[str, list[Call]]] = defaultdict(lambda: defaultdict(list))
    for call in side.calls:
        phases[call.rank, call.step][call.phase].append(call)
    broken = {place for place, calls in phases.items() if any(map(side.nonfinite, _gradients(calls)))}
    left = {place for place in broken if not any(map(side.nonfinite, _outputs(phases[place][OPTIMIZER])))}
    made = {place for place, calls in phases.items() if calls[OPTIMIZER]} - left
    return frozenset(left), frozenset(made)


def _gradients(phases: Mapping[str, Sequence[Call]]) -> Iterator[Record]:
    """Return the gradients that a scaler looks at, those of parameters; where none were recorded, those at modules."""
    found = [*_outputs(phases[GRADIENT]), *(record for call in phases[OPTIMIZER] for record in call.inputs)]
    return iter(found or _outputs(phases[BACKWARD]))


def _outputs(calls: Iterable[Call]) -> Iterator[Record]:
    return (record for call in calls for record in call.outputs)


def _texts(places: Iterable[Place], *, several: bool) -> list[str]:
    return [f"step {step} of rank {rank}" if several else f"step {step}" for rank, step in sorted(places)]
