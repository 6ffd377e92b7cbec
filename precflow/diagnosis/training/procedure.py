"""The procedure by which a training migration is checked, in order: what agrees, and the first thing that does not.

Each check only means something if all before it agree, so the procedure ends at the first one that differs: what differs after
it inherits that. The checks are answered from what was recorded; one that nothing was recorded for is not told.

    environment, weights, data, hyperparameters     by hash and by name
    forward, loss of step 0, gradients              gradients from the loss backwards
    communication                                   what ranks exchange, where collectives were recorded
    optimizer                                       its step, computed again from its own gradients
    loss of step 1, later losses, curves            what the updated weights lead to; with a learning rate of 0, what forward
                                                    and backward alone do over many steps

The parts of a step (``phases.py``) are checks here with more words. Which of them is guilty is found there, and only a check of
that part, or of none where no part is guilty, is the one that the error starts in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from precflow.agent.contract import FORWARD, OPTIMIZER
from precflow.comparison.measure import Measure
from precflow.curves.outcome import CurveOutcome
from precflow.diagnosis.training.phases import (
    BACKWARD_PART,
    COMMUNICATION,
    DATA,
    LOSS,
    NOT_RECORDED,
    PhaseState,
    describe_losses,
    find_guilty,
)
from precflow.diagnosis.training.replay import ReplayedStep
from precflow.dumps.header import Header
from precflow.judgement.curves import LossLine, find_loss_line
from precflow.judgement.verdicts import Judged

STATES = ("agrees", "differs", "differs_too", "inherits", "noted", "not_told")
"""``differs``: the error starts here. ``differs_too``: by an error of its own. ``noted``: that proves nothing by itself."""

_OF_PHASE = {
    "aligned": "agrees",
    "starts": "differs",
    "misaligned": "differs_too",
    "inherits": "inherits",
    "not_told": "not_told",
}
_NO_LOSS = "the dumps hold no loss of it"
_LATER = 8.0  # times as far as the loss of the first step may losses be apart after an update: rounding grows with each


@dataclass(frozen=True)
class Check:
    """One check of the procedure.

    Attributes:
        name: What is compared.
        state: One of ``STATES``; at most one check of a run ``differs``.
        why: How that is known, in words.
        phase: The part of the step that it belongs to, one of ``phases.PARTS``; ``""`` for what lies outside of one step.
    """

    name: str
    state: str
    why: str
    phase: str = ""


@dataclass(frozen=True)
class OptimizerFacts:
    """What is known of the optimizers of both sides.

    Attributes:
        settings: Settings that differ, in words.
        steps: Their steps, computed again.
        without_updates: No step moves a weight (learning rate 0), so that no step's loss follows from another.
        still: Parameters that one side does not update, in words.
    """

    settings: Sequence[str] = ()
    steps: Sequence[ReplayedStep] = ()
    without_updates: bool = False
    still: Sequence[str] = ()


def follow_procedure(  # noqa: PLR0913  what was found out before, each by its own name
    reference: Header,
    target: Header,
    *,
    phases: Sequence[PhaseState],
    differences: Mapping[str, tuple[str, str]],
    optimizer: OptimizerFacts,
    rows: Sequence[tuple[Measure, Judged]] = (),
    curves: Iterable[CurveOutcome] = (),
) -> tuple[Check, ...]:
    """Return the checks in order; none for a run that trains nothing.

    Args:
        reference: Header of the reference's dump.
        target: Header of the target's dump.
        phases: The parts of a training step and which of them is guilty.
        differences: Facts of the environment that differ: fact -> (reference, target).
        optimizer: What is known of the optimizers.
        rows: Every record with its status: how far losses may be apart follows from the error of the forward.
        curves: What is said about the curves of the run.
    """
    if not phases:
        return ()
    state_of = {one.name: one for one in phases}
    tools = " and ".join(dict.fromkeys(header.tool for header in (reference, target) if header.tool))
    first = min((step for header in (reference, target) for step in header.capture.get("step", (0,))), default=0)
    dtypes = (reference.dtype, target.dtype)
    line = find_loss_line(rows, first, dtypes)
    second = line if optimizer.without_updates else find_loss_line(rows, first + 1, dtypes, times=_LATER)
    checks = [
        _check_environment(differences) if not tools else Check("environment", "not_told", f"{tools} does not keep it"),
        _check_weights(reference, target),
        _from_phase("data", state_of[DATA]),
        _check_settings(optimizer.settings, state_of[OPTIMIZER], rows)
        if not tools
        else Check("hyperparameters", "not_told", f"{tools} does not keep them", OPTIMIZER),
        _from_phase("forward", state_of[FORWARD]),
        _from_phase(f"loss of step {first}", state_of.get(LOSS, PhaseState(LOSS, "not_told", _NO_LOSS))),
        _from_phase("gradients, from the loss backwards", state_of[BACKWARD_PART]),
        *([_from_phase("communication between ranks", state_of[COMMUNICATION])] if COMMUNICATION in state_of else []),
        _check_optimizer(state_of[OPTIMIZER], optimizer.steps, optimizer.still),
        _check_loss(reference, target, first + 1, second),
        *_check_later_losses(reference, target, first + 2, line if optimizer.without_updates else None),
        *map(_check_curve, curves),
    ]
    return tuple(_end_at_first(checks, find_guilty(phases)))


def _end_at_first(checks: Iterable[Check], guilty: str) -> Iterable[Check]:
    """Yield the checks, of which one at most differs: the first, or the first of the guilty part where one is guilty."""
    found = False
    for check in checks:
        is_innocent = check.state == "differs" and guilty not in ("", check.phase)  # another part is guilty, and comes later
        is_orphan = check.state == "inherits" and not guilty  # what it inherits was not among the checks
        if found and check.state in ("differs", "inherits"):
            yield replace(check, state="inherits")
        elif is_innocent or is_orphan:
            yield replace(check, state="noted")
        else:
            found = found or check.state == "differs"
            yield check


def _from_phase(name: str, phase: PhaseState) -> Check:
    return Check(name, _OF_PHASE[phase.state], phase.why, phase.name)


def _check_environment(differences: Mapping[str, tuple[str, str]]) -> Check:
    if not differences:
        return Check("environment", "agrees", "no fact differs that could matter")
    name, (here, there) = next(iter(differences.items()))
    more = f", and {len(differences) - 1} more" if len(differences) > 1 else ""
    return Check("environment", "noted", f"{name}: {here or '-'} / {there or '-'}{more}")


def _check_weights(reference: Header, target: Header) -> Check:
    digests = [header.weights.digest for header in (reference, target)]
    if not all(digests):
        return Check("weights", "not_told", "a dump does not say which weights it started from", DATA)
    if digests[0] == digests[1]:
        return Check("weights", "agrees", f"{len(reference.weights.entries)} tensors, the same before any cast", DATA)
    return Check("weights", "differs", "the sides started from other weights", DATA)


def _check_settings(settings: Sequence[str], optimizer: PhaseState, rows: Sequence[tuple[Measure, Judged]]) -> Check:
    name = "hyperparameters"
    if settings:
        return Check(name, "differs", "; ".join(settings[:3]), OPTIMIZER)
    if optimizer.why == NOT_RECORDED:
        return Check(name, "not_told", "no step of an optimizer was recorded: capture.phase with optimizer", OPTIMIZER)
    statuses = [judged.status for measure, judged in rows if measure.phase == OPTIMIZER and measure.judged]
    alone = sum(status in {"unpaired_reference", "unpaired_target"} for status in statuses)
    if alone:
        text = f"{alone} of {len(statuses)} records of the optimizer's steps are on one side only"
        return Check(name, "not_told", text, OPTIMIZER)
    return Check(name, "agrees", "class and settings of the optimizer, at each recorded step and parameter", OPTIMIZER)


def _check_loss(reference: Header, target: Header, step: int, line: LossLine) -> Check:
    name = f"loss of step {step}"
    left, right = (header.loss_of_step.get(step) for header in (reference, target))
    if left is None or right is None:
        return Check(name, "not_told", _NO_LOSS)
    if not math.isfinite(left) and not math.isfinite(right):
        return Check(name, "not_told", "it is finite on neither side")
    return Check(name, "agrees" if line.explains(left, right) else "differs", describe_losses(left, right))


def _check_later_losses(reference: Header, target: Header, first: int, line: LossLine | None) -> list[Check]:
    """Return what is known of all later losses: how far they are apart; if updates lie between them, no line judges that."""
    others = target.loss_of_step
    pairs = {step: (loss, others[step]) for step, loss in reference.loss_of_step.items() if step >= first and step in others}
    if not pairs:
        return []
    name = f"losses of steps {min(pairs)} to {max(pairs)}{', without updates' if line else ''}"
    broken = next((step for step, pair in pairs.items() if math.isfinite(pair[0]) != math.isfinite(pair[1])), None)
    if broken is not None:
        return [Check(name, "differs", f"that of step {broken} is finite on one side only")]
    neither = next((step for step, pair in pairs.items() if not any(map(math.isfinite, pair))), None)
    if neither is not None:
        return [Check(name, "not_told", f"that of step {neither} is finite on neither side")]
    apart = {
        step: abs(left - right) / max(abs(left), abs(right)) if left != right else 0.0 for step, (left, right) in pairs.items()
    }
    worst = max(apart, key=apart.__getitem__)
    if not apart[worst]:
        return [Check(name, "agrees", "equal")]
    text = f"at most {apart[worst]:.2g} apart, in step {worst}"
    if line is not None:
        return [Check(name, "agrees" if all(line.explains(*pair) for pair in pairs.values()) else "differs", text)]
    return [Check(name, "noted", f"{text}; a curve judges them (section curves)")]


def _check_curve(curve: CurveOutcome) -> Check:
    name, steps = f"curve {curve.name}", f"{curve.found.compared} steps within {curve.standard or 'its limits'}"
    if curve.verdict == "misaligned":
        return Check(name, "differs", "; ".join(curve.failed))
    if curve.verdict == "aligned":
        return Check(name, "agrees", steps)
    return Check(name, "not_told", "; ".join(curve.missing) or "nothing was compared")


def _check_optimizer(optimizer: PhaseState, steps: Sequence[ReplayedStep], still: Sequence[str]) -> Check:
    name = "optimizer, computed again from its own gradients"
    differs = "differs_too" if optimizer.state == "misaligned" else "differs"
    if still:
        return Check(name, differs, "; ".join(still), OPTIMIZER)
    proving = [one for one in steps if one.proves]
    faults = [one for one in proving if one.is_fault]
    if faults:
        text = f"{len(faults)} of {len(proving)} steps of parameters do not follow, first {faults[0].parameter}"
        return Check(name, differs, text, OPTIMIZER)
    if proving and optimizer.state in {"aligned", "inherits"}:
        followed = f"all {len(proving)} steps of parameters follow from their own gradient, state and settings"
        return Check(name, _OF_PHASE[optimizer.state], followed, OPTIMIZER)
    return _from_phase(name, optimizer)
