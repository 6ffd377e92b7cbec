"""Did both sides run as much: the same number of steps, micro batches and calls of each model, whatever part was recorded?

Where one side makes a call more, the records of the steps that were recorded may all agree, and the sides still did not run
the same: one token more was generated, one batch less was evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precflow.dumps.header import Header, RanInAll


@dataclass(frozen=True)
class OtherMicroBatches:
    """The first step of a script that has another number of micro batches on each side.

    Attributes:
        step: Its number.
        text: The same in words, with both numbers.
    """

    step: int
    text: str


def find_other_micro_batches(reference: Mapping[str, Any], target: Mapping[str, Any]) -> OtherMicroBatches | None:
    """Return the first step of two runs of a script that has another number of micro batches on each side.

    An optimizer that steps twice in one iteration makes a further step, of a single micro batch.

    Args:
        reference: Section ``script`` of the reference's header.
        target: The same of the target.
    """
    runs = [[tuple(run) for run in side.get("micro_batches", [])] for side in (reference, target)]
    last = min(int(side.get("steps", 0)) for side in (reference, target))
    for step in range(last):
        here, there = (_count_at(run, step) for run in runs)
        if here != there:
            return OtherMicroBatches(step, f"step {step} has {here} micro batches on the reference, {there} on the target")
    return None


def find_other_mode(reference: Mapping[str, Any], target: Mapping[str, Any]) -> str:
    """Return the first step in which one side trains its model in evaluation mode, in words; ``""`` without one.

    Args:
        reference: Section ``script`` of the reference's header.
        target: The same of the target.
    """
    if "in_evaluation" not in reference or "in_evaluation" not in target:
        return ""
    runs = [[tuple(run) for run in side["in_evaluation"]] for side in (reference, target)]
    for step in range(min(int(side.get("steps", 0)) for side in (reference, target))):
        here, there = (_count_at(run, step) for run in runs)
        if here != there:
            side, calls = ("target", there - here) if there > here else ("reference", here - there)
            return f"the {side} trains in evaluation mode from step {step} on: {_count(calls, 'call')} of its model more"
    return ""


def _count_at(runs: Sequence[tuple[int, ...]], step: int) -> int:
    """Return the number of micro batches in a step, from runs of steps that have the same."""
    return next((count for first, count in reversed(runs) if first <= step), 0)


def find_other_amounts(reference: Header, target: Header) -> list[str]:
    """Return what one side made more of than the other, in words with both numbers; empty if they made as much.

    Nothing is said of sides with another number of ranks, which share the work otherwise, of different kinds of workload, and
    after a gradient scaler has skipped other steps in a way that makes steps other iterations.

    Args:
        reference: Header of the reference's dump.
        target: Header of the target's dump.
    """
    if len(reference.ran) != len(target.ran) or bool(reference.script) != bool(target.script):
        return []
    merged = [header.script.get("merged", header.script.get("skipped", [])) for header in (reference, target)]
    if merged[0] != merged[1]:
        return []
    ends = {max(header.capture.get("step") or (0,)) for header in (reference, target)}
    found = []
    for rank, (here, there) in enumerate(zip(reference.ran, target.ran, strict=True)):
        texts = list(_compare(here, there, same_end=len(ends) == 1))
        different = find_other_micro_batches(reference.script, target.script) if rank == 0 else None
        if different is not None and texts:
            found.append(f"{different.text}; the reference made {'; '.join(texts)}")
        elif different is not None:
            found.append(different.text)
        elif texts:
            found.append(f"{f'on rank {rank}, ' if rank else ''}the reference made {'; '.join(texts)}")
    return found


def _compare(here: RanInAll, there: RanInAll, *, same_end: bool) -> Iterator[str]:
    """Yield ``5 steps and the target 7`` of each number that differs.

    Args:
        here: What a rank of the reference ran.
        there: The same rank of the target.
        same_end: Both were recorded up to the same step.
    """

    def differ(left: int, right: int) -> bool:
        """Tell whether the whole numbers differ; of a side that was ended, what it made is the least that it had to do."""
        if here.whole == there.whole:
            return left != right and (here.whole or same_end)
        return left > right if there.whole else right > left

    if differ(here.steps, there.steps):
        yield f"{_count(here.steps, 'step')} and the target {there.steps}"
    elif here.micro_batches and there.micro_batches and differ(here.micro_batches, there.micro_batches):
        yield f"{_count(here.micro_batches, 'micro batch', 'micro batches')} and the target {there.micro_batches}"
    shared = here.calls.keys() & there.calls.keys()
    for name in (name for name in here.calls if name in shared):
        told = (here.calls[name], there.calls[name]) == (here.steps, there.steps)  # one call a step
        if differ(here.calls[name], there.calls[name]) and not told:
            yield f"{_count(here.calls[name], 'call')} of {name or 'its model'} and the target {there.calls[name]}"
    alone = [{name: calls for name, calls in side.calls.items() if name not in shared} for side in (here, there)]
    left, right = (sum(each.values()) for each in alone)
    if differ(left, right):  # else the sides may have other names for the same models
        names = ", ".join(name or "its model" for each in alone for name in each)
        yield f"{_count(left, 'call')} of models that one side alone has ({names}) and the target {right}"


def _count(number: int, one: str, several: str = "") -> str:
    return f"{number} {one if number == 1 else several or one + 's'}"
