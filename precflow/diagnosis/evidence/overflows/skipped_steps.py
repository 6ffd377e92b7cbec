"""Steps of the optimizer that a side skipped because its gradients were not finite, as a loss scaler does on purpose.

A scaler starts with a scale that is too large and skips steps until the gradients are finite, on both sides alike. A step that
only one side skips is not a missing record but the trace of an overflow before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from precflow.agent.contract import BACKWARD, GRADIENT, OPTIMIZER, parse_identity
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.dumps.header import Header
from precflow.dumps.records import Call, Record

StepKey = tuple[int, int]  # rank and step

EVIDENCE = {
    "left_out_reference": Evidence(
        "steps that the reference skips",
        "Its gradients are not finite and its optimizer did nothing; the target's made the step.",
    ),
    "left_out_target": Evidence("steps that the target skips", "The same on the target."),
    "left_out_both": Evidence("steps that both skip", "Gradients are not finite, and neither optimizer did anything."),
}


class CallsAndFiniteness(Protocol):
    """What is needed of a side: its calls, and which records are not finite."""

    @property
    def calls(self) -> Sequence[Call]:
        """Its calls."""

    def is_nonfinite(self, record: Record) -> bool:
        """Tell whether a record is known to have NaN or an infinity."""


@dataclass(frozen=True, slots=True)
class SkippedSteps:
    """The steps in which the optimizer did nothing because gradients were not finite.

    Attributes:
        reference: Skipped on the reference only.
        target: Skipped on the target only.
        both: Skipped on both sides.
    """

    reference: frozenset[StepKey] = frozenset()
    target: frozenset[StepKey] = frozenset()
    both: frozenset[StepKey] = frozenset()

    @property
    def evidence(self) -> dict[str, list[str]]:
        """The same in words, by the names of ``names.EVIDENCE``."""
        several = any(rank for rank, _ in self.reference | self.target | self.both)
        return {
            f"left_out_{where}": [f"step {step} of rank {rank}" if several else f"step {step}" for rank, step in sorted(steps)]
            for where, steps in (("reference", self.reference), ("target", self.target), ("both", self.both))
        }

    def explains(self, record: str) -> bool:
        """Tell whether a record has no partner because one side skipped its step.

        Args:
            record: Its identity as text.
        """
        identity = parse_identity(record)
        return identity.phase == OPTIMIZER and (identity.rank, identity.step) in self.reference | self.target


NOTHING = SkippedSteps()


def find_skipped_steps(
    reference: CallsAndFiniteness, target: CallsAndFiniteness, noted: tuple[Collection[int], Collection[int]] = ((), ())
) -> SkippedSteps:
    """Return the steps that a side skipped; none if no optimizer was recorded.

    Args:
        reference: What the reference recorded.
        target: What the target recorded.
        noted: Steps that a scaler was seen to skip on the reference and on the target, whatever was recorded of them.
    """
    (skipped_here, made_here), (skipped_there, made_there) = map(_split_steps, (reference, target), noted)
    if not made_here | made_there:
        return NOTHING
    return SkippedSteps(skipped_here & made_there, skipped_there & made_here, skipped_here & skipped_there)


def list_noted(header: Header) -> list[int]:
    """Return the steps that a scaler was seen to skip in a script, without those that go on with the next iteration."""
    merged = header.script.get("merged", header.script.get("skipped", []))
    return [step for step in header.script.get("skipped", []) if step not in merged]


def _split_steps(side: CallsAndFiniteness, noted: Collection[int]) -> tuple[frozenset[StepKey], frozenset[StepKey]]:
    """Return the steps that the optimizer skipped because of gradients that are not finite, and those that it made.

    A scaler does not call the optimizer then. An optimizer that looks for infinities itself (``fused=True``) is called all the
    same and leaves its weights as they are: a step with broken gradients and finite weights was skipped too.
    """
    phases: dict[StepKey, dict[str, list[Call]]] = defaultdict(lambda: defaultdict(list))
    for call in side.calls:
        phases[call.rank, call.step][call.phase].append(call)
    broken = {key for key in phases if key[1] in noted}
    for key, calls in phases.items():
        # A scaler looks at the gradients of parameters; if none were recorded, those at modules tell the same.
        gradients = [*_outputs(calls[GRADIENT]), *(record for call in calls[OPTIMIZER] for record in call.inputs[:1])]
        if any(map(side.is_nonfinite, gradients or _outputs(calls[BACKWARD]))):
            broken.add(key)
    skipped = {key for key in broken if not any(map(side.is_nonfinite, _outputs(phases[key][OPTIMIZER])))}
    stepped = {key for key, calls in phases.items() if calls[OPTIMIZER]} - skipped
    return frozenset(skipped), frozenset(stepped)


def _outputs(calls: Iterable[Call]) -> Iterator[Record]:
    return (record for call in calls for record in call.outputs)
