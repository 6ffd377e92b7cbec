"""The two passes of escalating capture: the first records everything in little detail, the second the suspect calls in full.

A stage instance of the second pass has the name of the first one with ``@2`` at the end (``dump.target@2``). Stages that come
after both passes read the results of the second one if it was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from precflow.dumps.protocol import Dump
from precflow.dumps.views.aligned_collectives import RenumberedCalls
from precflow.dumps.views.aligned_model_calls import NOTHING_FURTHER, RenumberedModelCalls
from precflow.dumps.views.aligned_operators import align_calls, find_all_numbers
from precflow.dumps.views.joined_calls import join_calls
from precflow.dumps.views.joined_ranks import count_ranks
from precflow.dumps.views.last_tokens import see_last_tokens
from precflow.dumps.views.paired import see_through_rules
from precflow.dumps.views.same_start import SameStart, see_same_start
from precflow.dumps.views.two_passes import TwoPasses
from precflow.stages.dump import open_dump
from precflow.stages.job import MARK, Job


def second(name: str) -> str:
    """Return the name of an instance's counterpart in the second pass."""
    return name + MARK


def latest(needs: Mapping[str, Path], name: str) -> Path:
    """Return the folder of an instance: that of the second pass if there is one, else that of the first."""
    return needs.get(second(name)) or needs[name]


def open_both(needs: Mapping[str, Path], job: Job) -> tuple[Dump, Dump]:
    """Return all evidence of reference and target, seen through the pairing rules of the recipe."""
    sides = [open_dump(needs[f"dump.{side}"]) for side in ("reference", "target")]
    is_made = count_ranks(sides[0]) != count_ranks(sides[1]) or see_last_tokens(*join_calls(*sides)) != tuple(sides)
    if not job.config.pairing.rules and not is_made:
        seen = see_same_start(sides[0], sides[1], job.config.environment.same)
        reference = _add_second_pass(needs, "reference", seen[0])
        target = _add_second_pass(needs, "target", seen[1])
        if isinstance(target, TwoPasses):
            numbers = find_all_numbers(reference.calls(), target.calls())  # both passes of a side have the same numbers
            passes = (RenumberedCalls(part, numbers) for part in (target.first, target.second))
            return reference, TwoPasses(*passes) if numbers else target
        if not isinstance(reference, TwoPasses):
            target = align_calls(reference, target)
        return reference, target
    return see_through_rules(sides[0], sides[1], job.config.pairing.rules, job.config.environment.same)


def open_evidence(needs: Mapping[str, Path], side: str) -> Dump:
    """Return all evidence of a side: its dump, with the tensors of the second pass if there was one."""
    return _add_second_pass(needs, side, open_dump(needs[f"dump.{side}"]))


def _add_second_pass(needs: Mapping[str, Path], side: str, first: Dump) -> Dump:
    again = needs.get(second(f"dump.{side}"))
    if again is None:
        return first
    calls = first.model_calls if isinstance(first, SameStart) else NOTHING_FURTHER
    # Both passes of a side make the same calls.
    return TwoPasses(first, RenumberedModelCalls(open_dump(again), calls) if calls.modules else open_dump(again))
