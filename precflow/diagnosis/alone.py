"""Suspects run alone on the target: is it the kernel that is wrong, or the place where it ran?

The target runs each suspect's call once more, by itself, with the inputs that either side recorded. Judged by the same lines as
in the run, it shows which of two things is wrong::

                              in the run         alone
    the operator itself       wrong              wrong      whatever it is given, and wherever it runs
    the place                 wrong              right      layout of its inputs, another stream, a state that was left behind
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from precflow.diagnosis.findings import CONFIRMED, FAILED, PARTLY, REFUTED, Outcome, Suspect
from precflow.diagnosis.introduced import Evaluated, IntroducedError, SideNumbers, decide_all

NAME = "suspects_alone"
_SIDES = ("reference", "target")


@dataclass(frozen=True)
class RunAlone:
    """A suspect's call, run alone on the target.

    Attributes:
        record: Identity text of the suspect's output.
        name: Its ``module / operator``.
        in_run: Relative error of the output in the run, against float64 at its own inputs.
        alone: The larger relative error of the runs with the inputs of either side; ``None`` where it did not run.
        is_fault: Either of them is beyond the line that calls of a run are held to.
        same_bits: With the target's own inputs it gives what the target has recorded; ``None`` if that is not known.
        why: Why it did not run; ``""`` if it did.
    """

    record: str
    name: str
    in_run: float
    alone: float | None = None
    is_fault: bool = False
    same_bits: bool | None = None
    why: str = ""


def decide_alone(
    suspects: Mapping[tuple[str, str], Suspect],
    found: Sequence[IntroducedError],
    evaluated: Sequence[Evaluated],
    replayed: Sequence[Mapping[str, Any]],
    operators: Mapping[str, str],
) -> list[RunAlone]:
    """Return what the runs alone show of the suspects that introduce an error in the run.

    Args:
        suspects: Call and index of the output -> suspect.
        found: What float64 said about the run.
        evaluated: The numbers that it said it by: those of the reference are what its own error is.
        replayed: Lines of the agent's action ``replay``.
        operators: Call -> its operator.
    """
    lines = {(str(line["call"]), str(line["index"])): line for line in replayed}
    numbers = {(one.call, one.index): one for one in evaluated if one.evaluated}
    faults = {(one.call, one.index): one for one in found if one.is_fault}
    made: list[RunAlone] = []
    for output, suspect in suspects.items():
        fault, own, line = faults.get(output), numbers.get(output), lines.get(output, {})
        if fault is None or own is None:
            continue
        plain = RunAlone(suspect.record, suspect.name, fault.eta_target, why=str(line.get("why", "")) or "it was not run")
        runs = {side: _read(line["runs"][side]) for side in _SIDES if side in line.get("runs", {})}
        if not line.get("replayed") or len(runs) < len(_SIDES):
            made.append(plain)
            continue
        # The target's other calls say what is usual on this chip, so the run alone takes the place of its call among them.
        judged = [_judge(own, run, evaluated, operators) for run in runs.values()]
        errors = [run.eta for run in runs.values() if run.eta is not None]
        made.append(
            replace(
                plain,
                alone=max(errors, default=None),
                is_fault=any(one is None or one.is_fault for one in judged),
                same_bits=line.get("same_bits"),
                why="",
            )
        )
    return made


def _read(plain: Mapping[str, Any]) -> SideNumbers:
    return SideNumbers(**{key: value for key, value in plain.items() if value is not None})


def _judge(
    own: Evaluated, run: SideNumbers, evaluated: Sequence[Evaluated], operators: Mapping[str, str]
) -> IntroducedError | None:
    """Judge a run alone as if it were the target's call in the run."""
    # At the same inputs partial sums are off by as much.
    run = replace(run, partial_sums=run.partial_sums or own.sides["target"].partial_sums)
    alone = replace(own, sides={**own.sides, "target": run})
    others = [one for one in evaluated if operators.get(one.call) == operators.get(own.call) and one is not own]
    decided = decide_all([alone, *others], operators)
    return next((one for one in decided if (one.call, one.index) == (own.call, own.index)), None)


def conclude_alone(runs: Sequence[RunAlone]) -> Outcome:
    """Return the runs alone as the outcome of a what-if: the error is gone with them, or is not."""
    ran = [run for run in runs if run.alone is not None]
    names = tuple(dict.fromkeys(run.name for run in ran))
    title = f"{names[0] if len(names) == 1 else f'{len(ran)} suspects'} run alone" if ran else "the suspects run alone"
    if not ran:
        why = next((run.why for run in runs), "no suspect introduces an error of its own, all of whose tensors were kept")
        return Outcome(NAME, title, FAILED, problem=why)
    before = sum(run.in_run**2 for run in ran) ** 0.5
    after = sum((run.alone or 0.0) ** 2 for run in ran) ** 0.5
    wrong = sum(run.is_fault for run in ran)
    outcome = CONFIRMED if not wrong else REFUTED if wrong == len(ran) else PARTLY
    removed = 1.0 - after / before if before > 0 else 0.0
    return Outcome(NAME, title, outcome, names, before, after, removed)
