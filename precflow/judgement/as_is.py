"""Do both sides agree as they are, without what the recipe changed in what ran?

Compared are the losses and the gradients of the first steps and of the recorded ones. Rounding explains a difference, and so
does what a side changes from one such run of its own to the next; what is left may be a fault that sits in what was changed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from precflow.agent.contract import GRADIENT, parse_identity
from precflow.comparison.measure import Measure
from precflow.environment.as_is import NotedRun, NotedStep, SideRuns
from precflow.judgement.curves import LossLine, find_loss_line
from precflow.judgement.verdicts import MISALIGNED_STATUSES, AsIs, AsIsStep, Judged

_GROWTH = 8.0  # times that a difference may grow by from one step to the next, as for the loss of the second step
_TIMES = 8.0  # the same gradients with the changes of the recipe, or a side from run to run, may be that much closer
_LINES: Mapping[str, float] = {"float64": 2.0**-12, "float32": 2.0**-12, "float16": 2.0**-5, "bfloat16": 2.0**-5}
_BLIND: Mapping[str, float] = {"float64": 0.1, "float32": 0.1}  # limits from here on hold nothing
_BLIND_IN_16_BITS = 0.5
_REPEAT = "determinism.repeat=true tells whether a side repeats itself"


@dataclass(frozen=True)
class _Difference:
    """What is between two runs in one step: the losses, their relative difference, and ``relative_l2`` of all gradients."""

    reference: float | None
    target: float | None
    loss: float | None
    gradients: float | None


def judge_as_is(
    reference: SideRuns,
    target: SideRuns,
    *,
    rows: Sequence[tuple[Measure, Judged]],
    dtypes: tuple[str, str],
    what: str,
) -> AsIs:
    """Say whether both sides agree as they are.

    Args:
        reference: Runs of the reference.
        target: Runs of the target.
        rows: Every record of the changed runs with its status: how close these are says how close others may be.
        dtypes: Floating point types that the sides ran in.
        what: What ran, such as ``the script``.
    """
    moved = (reference.has_drawn or target.has_drawn) and _kinds(reference) != _kinds(target)
    called = f"{what} as it is" + (", apart from draws on the CPU," if moved else "")
    sides = {"reference": reference, "target": target}
    runs = {name: side.compared if moved else side.as_it_is for name, side in sides.items()}
    for name, side in sides.items():
        for run in (*side.as_it_is, *side.moved, *side.again):
            if run.problem:
                return AsIs("failed", f"{what} does not run as it is on the {name}: {run.problem}")
    if moved and any(run.has_drawn for side in runs.values() for run in side):
        text = f"{what} as it is cannot be compared: draws that cannot be moved to the CPU differ by device"
        return AsIs("not_comparable", text)
    made = [{step.step for run in side for step in run.steps} for side in runs.values()]
    differences = _compare(runs["reference"], runs["target"])
    noise = [_compare(runs[name], side.again) for name, side in sides.items() if side.again and bool(side.moved) <= moved]
    steps = [_limit(number, each, noise, rows, dtypes) for number, each in sorted(differences.items())]
    if made[0] != made[1]:
        counts = f"{len(made[0])} steps on the reference, {len(made[1])} on the target"
        return AsIs("differs", f"{called} does not agree: of the steps that were asked for it makes {counts}", tuple(steps))
    blind = max(_BLIND.get(dtype, _BLIND_IN_16_BITS) for dtype in dtypes)
    told = [text for step in steps for text in _exceed(step, blind)]
    if told:
        repeated = "" if noise else f"; {_REPEAT}"
        return AsIs("differs", f"{called} does not agree: {told[0]}{repeated}", tuple(steps))
    judged = [step for step in steps if _can_fail(step, blind)]
    if not judged:
        why = "it changes too much from run to run" if noise else "no loss and no gradient of its first steps was seen"
        return AsIs("not_comparable", f"{called} cannot be compared: {why}", tuple(steps))
    differ = any(each.status in MISALIGNED_STATUSES for _, each in rows)  # the limits come from these records
    said = f"differs by no more: {_describe(judged, math.inf)}" if differ else f"agrees: {_describe(judged, blind)}"
    return AsIs("agrees", f"{called} {said}", tuple(steps))


def _kinds(side: SideRuns) -> set[str]:
    return {run.device for run in side.as_it_is}


def _compare(left: Sequence[NotedRun], right: Sequence[NotedRun]) -> dict[int, _Difference]:
    """Return step -> what is between two runs, over all ranks and optimizers."""
    steps = sorted({step.step for run in left for step in run.steps} & {step.step for run in right for step in run.steps})
    found = {}
    for number in steps:
        here, there = ([_at(run, number) for run in runs] for runs in (left, right))
        ours, theirs = _mean_loss(here), _mean_loss(there)
        found[number] = _Difference(ours, theirs, _relative(ours, theirs), _relative_l2(here, there))
    return found


def _at(run: NotedRun, number: int) -> list[NotedStep]:
    return sorted((step for step in run.steps if step.step == number), key=lambda step: step.optimizer)


def _mean_loss(ranks: Sequence[Sequence[NotedStep]]) -> float | None:
    """Return the loss of a step: the sum of its micro batches, the mean of the ranks; NaN if one is not finite."""
    losses = [[loss for step in rank for loss in step.losses] for rank in ranks]
    if not all(losses):
        return None
    finite = all(loss is not None for rank in losses for loss in rank)
    return sum(loss or 0.0 for rank in losses for loss in rank) / len(losses) if finite else math.nan


def _relative(left: float | None, right: float | None) -> float | None:
    if left is None or right is None or (math.isnan(left) and math.isnan(right)):
        return None
    if math.isnan(left) or math.isnan(right):
        return math.inf
    return abs(left - right) / max(abs(left), abs(right)) if left != right else 0.0


def _relative_l2(left: Sequence[Sequence[NotedStep]], right: Sequence[Sequence[NotedStep]]) -> float | None:
    """Return the norm of the difference of all gradients over that of the left ones, from their sketches.

    With several ranks against a single process, what the optimizer of rank 0 is given stands for all ranks.
    """
    if len(left) != len(right):
        left, right = left[:1], right[:1]
    error = size = 0.0
    compared = False
    for here, there in zip(left, right, strict=True):
        if len(here) != len(there):
            return None
        for one, other in zip(here, there, strict=True):
            if one.sketch is None and other.sketch is None:
                continue
            if one.sketch is None or other.sketch is None or len(one.sketch) != len(other.sketch):
                return math.inf
            compared = True
            error += sum((a - b) ** 2 for a, b in zip(one.sketch, other.sketch, strict=True))
            size += sum(a**2 for a in one.sketch)
    if not compared:
        return None
    return math.sqrt(error / size) if size else (math.inf if error else 0.0)


def _limit(
    number: int,
    difference: _Difference,
    noise: Sequence[Mapping[int, _Difference]],
    rows: Sequence[tuple[Measure, Judged]],
    dtypes: tuple[str, str],
) -> AsIsStep:
    """Return a step with the limits that it is held to."""
    growth = _GROWTH ** min(number, 8)
    line = find_loss_line(rows, number, dtypes, times=growth)
    losses = (difference.reference or 0.0, difference.target or 0.0)
    usual = max(_LINES.get(dtype, _LINES["bfloat16"]) for dtype in dtypes) * growth
    recorded = [
        measure.metrics["relative_l2"]
        for measure, _ in rows
        if measure.phase == GRADIENT and "relative_l2" in measure.metrics and parse_identity(measure.record).step == number
    ]
    own = [side[number] for side in noise if number in side]
    of_losses = max((each.loss or 0.0 for each in own), default=0.0)
    of_gradients = max((each.gradients or 0.0 for each in own), default=0.0)
    return AsIsStep(
        step=number,
        reference=difference.reference,
        target=difference.target,
        loss=_ignore_near_zero(difference, line),
        loss_limit=max(line.find_relative(*losses), _TIMES * of_losses),
        gradients=difference.gradients,
        gradients_limit=max(usual, _TIMES * (statistics.median(recorded) if recorded else 0.0), _TIMES * of_gradients),
        noise=max(of_losses, of_gradients) if own else None,
    )


def _ignore_near_zero(difference: _Difference, line: LossLine) -> float | None:
    """Return the difference of the losses; 0 if they are so close to 0 that it says nothing."""
    left, right = difference.reference, difference.target
    near = left is not None and right is not None and abs(left - right) <= line.absolute
    return 0.0 if near else difference.loss


def _can_fail(step: AsIsStep, blind: float) -> bool:
    return (step.loss is not None and step.loss_limit < blind) or (step.gradients is not None and step.gradients_limit < blind)


def _exceed(step: AsIsStep, blind: float) -> list[str]:
    """Say what of a step is over its limit; a limit that holds nothing fails only by what is not finite."""
    kinds = (("the losses", step.loss, step.loss_limit), ("the gradients", step.gradients, step.gradients_limit))
    return [
        f"{name} of step {step.step} differ by {value:.3g}, limit {limit:.3g}"
        for name, value, limit in kinds
        if value is not None and value > limit and (limit < blind or math.isinf(value))
    ]


def _describe(steps: Sequence[AsIsStep], blind: float) -> str:
    """Say how closely the steps agree that could have failed."""
    losses = [step.loss for step in steps if step.loss is not None and step.loss_limit < blind]
    gradients = [step.gradients for step in steps if step.gradients is not None and step.gradients_limit < blind]
    words = [f"{name} to {max(values):.2g}" for name, values in (("losses", losses), ("gradients", gradients)) if values]
    noisy = [step.noise for step in steps if step.noise]
    own = f", within what a side changes from run to run ({max(noisy):.2g})" if noisy else ""
    return " and ".join(words) + own
