"""Which parts of a model are to blame: those that are wrong although they are given what the reference's were given.

Every part has two errors: *free*, on whatever came to it in the target's own run, and *forced*, on the inputs that the
reference has recorded. A part whose forced error is over its limit is to blame, whatever came before it; one that is over its
limit in the free run alone inherits. Several may be to blame. A part in which an operator is wrong while what the part returns
is within its limit both times is *wrong inside*: it makes nothing behind it fail.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from precflow.agent.contract import FORWARD, OUTPUT, parse_identity
from precflow.comparison.measure import Measure
from precflow.config.suggestions import did_you_mean
from precflow.diagnosis.evaluation import locate_all
from precflow.dumps.protocol import Dump
from precflow.judgement.verdicts import MISALIGNED_STATUSES, Judged, Verdict

TO_BLAME, WRONG_INSIDE, INHERITS, FINE, UNKNOWN = STATES = ("to blame", "wrong inside", "inherits", "fine", "unknown")


@dataclass(frozen=True)
class PartError:
    """The output of a part that uses most of its limit.

    Attributes:
        record: Identity text.
        metric: Metric of its tightest limit.
        error: Its value.
        limit: The limit.
        ratio: Share of the limit that is used; above 1 fails.
    """

    record: str
    metric: str
    error: float
    limit: float
    ratio: float


@dataclass(frozen=True)
class Part:
    """What was found about a part.

    Attributes:
        name: Name of its module.
        calls: Times that it was called.
        state: One of ``STATES``.
        free: Of the target's own run; ``None`` if nothing was judged.
        forced: With the reference's inputs; ``None`` if nothing was judged.
        starts: The first suspect inside it if it is to blame or wrong inside, ``""`` without one.
        why: Why its state is not known, in words.
    """

    name: str
    calls: int
    state: str
    free: PartError | None = None
    forced: PartError | None = None
    starts: str = ""
    why: str = ""


def write_inputs(path: Path, reference: Dump, parts: Iterable[str]) -> str:
    """Write where the inputs of parts lie for an agent; return why it cannot be done, ``""`` if it was.

    Args:
        path: The file.
        reference: Dump of the reference.
        parts: Names of modules.
    """
    wanted = dict.fromkeys(parts, 0)
    inputs: list[dict[str, Any]] = []
    called: dict[str, None] = {}
    for call in reference.calls():
        called[call.module] = None
        if call.module not in wanted or call.operator or call.phase != FORWARD:
            continue
        if call.step or call.rank:
            return "parts are run for the first step of the first rank alone, and the dump has others"
        tensors = list(locate_all(reference, call.inputs, moved=False))
        if len(tensors) < len(call.inputs) or None in tensors:
            return f"the reference's dump does not hold the inputs of {call.module}; capture.detail=tensors keeps them"
        wanted[call.module] += 1
        inputs.append({"module": call.module, "call": call.call, "tensors": tensors})
    missing = [part for part, calls in wanted.items() if not calls]
    if missing:
        return f"the reference has recorded no call of {', '.join(missing)}.{did_you_mean(missing[0], called)}".rstrip(".")
    path.write_text(json.dumps({"inputs": inputs}), encoding="utf-8")
    return ""


def judge_parts(
    parts: Sequence[str], free: Sequence[tuple[Measure, Judged]], forced: Sequence[tuple[Measure, Judged]], why: str = ""
) -> list[Part]:
    """Return what was found about each part, in the order of the recipe.

    Args:
        parts: Names of modules.
        free: Records of the target's own run with their statuses.
        forced: The same of the run in which each part was given the reference's inputs.
        why: Why there is no such run, in words.
    """
    found = []
    for part in parts:
        of_free, of_forced = _select(part, free), _select(part, forced)
        state, reason = _decide(of_free, of_forced)
        calls = len({parse_identity(judged.record).call for judged in (*of_free, *of_forced)})
        found.append(Part(part, calls, state, find_worst(of_free), find_worst(of_forced), why=why or reason))
    return found


def _select(part: str, rows: Iterable[tuple[Measure, Judged]]) -> list[Judged]:
    """Return the outputs of a part itself that are judged."""
    return [
        judged
        for measure, judged in rows
        if measure.module == part
        and not measure.operator
        and measure.phase == FORWARD
        and (measure.judged or measure.exact)
        and parse_identity(measure.record).role == OUTPUT
    ]


def _decide(free: Sequence[Judged], forced: Sequence[Judged]) -> tuple[str, str]:
    if any(judged.status in MISALIGNED_STATUSES for judged in forced):
        return TO_BLAME, ""
    open_ = [judged for judged in (*forced, *free) if judged.status not in {"pass", *MISALIGNED_STATUSES}]
    if not free or not forced:
        return UNKNOWN, "none of its outputs was judged"
    if open_:
        return UNKNOWN, f"an output of it is {open_[0].status}" + (f": {open_[0].reason}" if open_[0].reason else "")
    return (INHERITS if any(judged.status in MISALIGNED_STATUSES for judged in free) else FINE), ""


def find_worst(rows: Sequence[Judged]) -> PartError | None:
    """Return the record that uses most of its limit; ``None`` if none has one."""
    held = [judged for judged in rows if judged.metric]
    if not held:
        return None
    worst = max(held, key=lambda judged: judged.ratio)
    return PartError(worst.record, worst.metric, worst.value, worst.limit, worst.ratio)


def name_starts(parts: Sequence[Part], suspects: Iterable[tuple[str, str]]) -> list[Part]:
    """Return the parts with the first suspect inside each that is to blame; one that is fine but for it is wrong inside.

    Args:
        parts: The parts.
        suspects: Identity text and shown name of each suspect, in order.
    """
    first: dict[str, str] = {}
    for record, name in suspects:
        module = parse_identity(record).module
        for part in parts:
            if module == part.name or module.startswith(f"{part.name}."):
                first.setdefault(part.name, name)
    states = {TO_BLAME: TO_BLAME, FINE: WRONG_INSIDE}
    return [
        replace(part, starts=first[part.name], state=states[part.state])
        if part.name in first and part.state in states
        else part
        for part in parts
    ]


def hold_to_parts(verdict: Verdict, parts: Sequence[Part]) -> Verdict:
    """Return a verdict that is not aligned where a part is to blame, or where that is not known.

    A record of the whole run has a limit that allows for the rounding of everything before it, so that it may pass although
    its part is wrong at the reference's inputs.
    """
    blamed = [part for part in parts if part.state == TO_BLAME]
    unknown = [part for part in parts if part.state == UNKNOWN]
    if verdict.verdict == "misaligned" or not (blamed or unknown):
        return verdict
    if blamed:
        reason = f"{_join(blamed)} exceed{'s' * (len(blamed) == 1)} its limit on the reference's inputs"
        return replace(verdict, verdict="misaligned", reasons=(reason, *verdict.reasons))
    why = unknown[0].why
    reason = f"it is not known whether {_join(unknown)} {'is' if len(unknown) == 1 else 'are'} to blame: {why}"
    return replace(verdict, verdict="inconclusive", reasons=(*verdict.reasons, reason))


def describe_parts(parts: Sequence[Part]) -> str:
    """Return the parts in a line, such as ``to blame: unet · inherit: vae_decoder, safety_checker · fine: text_encoder``."""
    by_state: Mapping[str, list[Part]] = {state: [part for part in parts if part.state == state] for state in STATES}
    words = {INHERITS: "inherit"}
    return " · ".join(f"{words.get(state, state)}: {_join(named)}" for state, named in by_state.items() if named)


def _join(parts: Sequence[Part]) -> str:
    return ", ".join(part.name for part in parts)
