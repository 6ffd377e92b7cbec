"""Stage ``determinism``: did both sides start from the same seeds, weights and inputs, and does each repeat itself?

If they started from different ones, a comparison would mean nothing, so ``compare`` reads no tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from precflow.agent.contract import ROOT_MODULE
from precflow.config.schema import plain
from precflow.diagnosis.dropped_steps import describe_kept_alone
from precflow.dumps.batches import DATA, find_given
from precflow.dumps.header import describe_comparison
from precflow.dumps.protocol import Dump
from precflow.dumps.views.derived import is_cut
from precflow.dumps.views.paired import see_through_rules
from precflow.dumps.views.same_start import INPUTS
from precflow.dumps.views.two_passes import count_unknown, find_unrepeated
from precflow.environment.amounts import find_other_amounts, find_other_mode
from precflow.environment.reproduction import (
    describe_copy,
    describe_further,
    describe_given,
    describe_parting,
    describe_parts,
    describe_stale,
    describe_tied,
    find_blockers,
    find_different,
    find_disturbance,
    find_unknown,
)
from precflow.stages.artifacts import read_value, write_value
from precflow.stages.dump import is_given, open_dump, read_damage
from precflow.stages.job import Job, Stage, StageResult
from precflow.stages.second_pass.passes import second

REPRODUCTION_FILE = "reproduction.json"


@dataclass(frozen=True)
class Reproduction:
    """What stands in the way of a verdict before any tensor is read.

    Attributes:
        blockers: Seeds, weights, inputs or recipes that differ; no tensor is compared.
        incomplete: Dumps that were never sealed or are damaged. What they have is compared, but the verdict is not "aligned".
        unrepeatable: ``side: record`` of each record that changed between two equal runs.
        unseen: Models in whose output the agent found no tensor, and a step with NaN that only one side kept; the verdict is
            not "aligned".
        unchecked: Sides that were not run twice.
        disturbed: Sides that compute something else when they are watched, or were not checked though that was asked for; the
            verdict is not "aligned".
        amounts: Calls of models, steps or micro batches that one side made more of; the verdict is not "aligned".
        parted: From where on the sides were given other data. What came before is compared, but the verdict is not "aligned".
        stale: Inputs that the model made in different steps on the two sides: they are misaligned, whatever else is compared.
        given: What is said about inputs that differ and are no other data: made by the model, or of another type.
    """

    blockers: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    unrepeatable: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    disturbed: tuple[str, ...] = ()
    amounts: tuple[str, ...] = ()
    parted: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    given: tuple[str, ...] = ()

    @property
    def gaps(self) -> tuple[str, ...]:
        """Everything that makes any verdict but "misaligned" impossible."""
        return (*self.blockers, *self.parted, *self.incomplete, *self.unseen, *self.disturbed)


def read_reproduction(folder: Path) -> Reproduction:
    """Return what the stage found."""
    return read_value(folder / REPRODUCTION_FILE, Reproduction)


def _declare(job: Job) -> Mapping[str, Any]:
    pairing = {"pairing": plain(job.config.pairing)} if job.config.pairing.rules else {}
    return {"same": list(job.config.environment.same), **pairing}


def reproduce(reference: Dump, target: Dump, same: Sequence[str]) -> Reproduction:
    """Return what stands in the way of a verdict on two dumps, without reading a tensor.

    Args:
        reference: Dump of the reference.
        target: Dump of the target.
        same: What has to be the same on both sides: ``weights``, ``inputs``.
    """
    both_sealed = reference.sealed and target.sealed  # an unsealed dump has no header, so there is nothing to compare
    given, parted = find_given(target), is_cut(target)
    # Inputs that differ for another reason than other data have words of their own.
    is_other = given.start is not None and (given.start.kind != DATA or bool(given.warm_up))
    is_told = parted or (is_other and INPUTS in same)
    weights = [one.name for one in given.weights.tied if not one.is_equal]
    are_tied = bool(weights) and sorted(weights) == sorted(find_different(reference.header.weights, target.header.weights))
    told = ([INPUTS] if is_told else []) + (["weights"] if are_tied else [])
    blockers = find_blockers(reference.header, target.header, [what for what in same if what not in told])
    blockers += [describe_parting(given, compared=False)] if is_told and not parted else []
    if "weights" in same:
        blockers = [*(describe_tied(one) for one in given.weights.tied if not one.is_equal), *blockers]
    mode = find_other_mode(reference.header.script, target.header.script)
    return Reproduction(
        blockers=tuple(blockers) if both_sealed else (),
        incomplete=(*_find_incomplete("reference", reference), *_find_incomplete("target", target)),
        unrepeatable=(*_find_unrepeatable("reference", reference), *_find_unrepeatable("target", target)),
        unseen=(
            *_find_unseen("reference", reference),
            *_find_unseen("target", target),
            *describe_kept_alone(reference, target),
        ),
        unchecked=tuple(
            side for side, dump in (("reference", reference), ("target", target)) if not dump.header.repeat.checked
        ),
        amounts=(*describe_further(given), *find_other_amounts(reference.header, target.header), *filter(None, [mode])),
        disturbed=tuple(
            filter(None, (find_disturbance(side, dump.header) for side, dump in (("reference", reference), ("target", target))))
        ),
        parted=(describe_parting(given),) if parted else (),
        stale=describe_stale(given) if INPUTS in same else (),
        given=(*describe_parts(reference, target), *describe_given(given), *describe_tools(reference, target)),
    )


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    if second("dump.reference") in needs:
        return _add_second_pass(folder, needs)
    same = job.config.environment.same
    dumps = [open_dump(needs[f"dump.{side}"]) for side in ("reference", "target")]
    reference, target = see_through_rules(dumps[0], dumps[1], job.config.pairing.rules, same)
    seen = reproduce(reference, target, same)
    # A dump that the user gives may be of either side: the recipe says which one it stands for here.
    strange = [
        f"the dump of the {side} says that it is of the {dump.header.side}"
        for side, dump in (("reference", reference), ("target", target))
        if not is_given(needs[f"dump.{side}"]) and dump.header.side != side
    ]
    copy = describe_copy(reference.header, target.header)
    damage = [f"{side}: {text}" for side in ("reference", "target") for text in read_damage(needs[f"dump.{side}"])]
    reproduction = replace(
        seen,
        blockers=(*([copy] if copy else []), *strange, *seen.blockers),
        incomplete=tuple(dict.fromkeys([*seen.incomplete, *damage])),
    )
    write_value(folder / REPRODUCTION_FILE, reproduction)
    repeats = (reference.header.repeat, target.header.repeat)
    # If one side does not say how it was compared with its repetition, nothing can be said of both.
    ways = {way for repeat in repeats for way in repeat.by} if all(repeat.by for repeat in repeats) else set()
    note = _describe(reproduction, same, describe_comparison(ways))
    return StageResult(note=note, damaged=bool(reproduction.incomplete))


def _add_second_pass(folder: Path, needs: Mapping[str, Path]) -> StageResult:
    """Add what the second pass shows: it has to repeat the first one, bitwise for the records whose content ids are known."""
    first_pass = read_reproduction(needs["determinism"])
    blockers, incomplete, unrepeated, unknown = [*first_pass.blockers], [*first_pass.incomplete], [], 0
    for side in ("reference", "target"):
        first, again = open_dump(needs[f"dump.{side}"]), open_dump(needs[second(f"dump.{side}")])
        blockers += [
            f"the {what} of the {side} changed between its two passes"
            for what in ("weights", "inputs")
            if getattr(first.header, what).digest != getattr(again.header, what).digest
        ]
        incomplete += _find_incomplete(side, again)
        unrepeated += [f"{side}: {record}" for record in find_unrepeated(first, again)]
        unknown += count_unknown(first, again)
    unrepeatable = tuple(dict.fromkeys([*first_pass.unrepeatable, *unrepeated]))
    both = replace(first_pass, blockers=tuple(blockers), incomplete=tuple(incomplete), unrepeatable=unrepeatable)
    write_value(folder / REPRODUCTION_FILE, both)
    if blockers:
        note = blockers[0]
    elif unrepeated:
        note = f"{len(unrepeated)} records are not those of the first pass"
    else:
        unseen = f", except for {unknown} records of which it kept statistics alone" if unknown else ""
        note = f"both sides repeat their first pass bitwise{unseen}"
    return StageResult(note=note, damaged=bool(incomplete))


def _find_incomplete(side: str, dump: Dump) -> list[str]:
    unsealed = [] if dump.sealed else [f"the {side} dump {dump.path.name}/ was never sealed: its writer was stopped"]
    return [*unsealed, *(f"{side}: {damage}" for damage in dump.damage)]


def describe_tools(reference: Dump, target: Dump) -> tuple[str, ...]:
    """Say what the formats of other tools do not hold, and what is left out of the other side therefore."""
    texts = []
    headers = (reference.header, target.header)
    is_one_tool = headers[0].tool == headers[1].tool
    for side, header in (("reference", headers[0]), ("target", headers[1])):
        lacks = f", which does not hold {', '.join(header.lacks)}" if header.lacks else ""
        if header.tool and not is_one_tool:
            texts.append(f"the {side} is a dump of {header.tool}{lacks}")
        elif header.tool and side == "reference":
            texts.append(f"both sides are dumps of {header.tool}{lacks}")
    for side, dump in (("reference", reference), ("target", target)):
        left_out = getattr(dump, "left_out", ())
        if left_out:
            texts.append(f"of the {side}, {', '.join(left_out)} are not compared: the other format does not hold them")
    unknown = find_unknown(reference.header, target.header)
    if unknown:
        texts.append(
            f"whether both sides began with the same {' and '.join(unknown)} is not known: both dumps would have to hold them"
        )
    return tuple(texts)


def _find_unrepeatable(side: str, dump: Dump) -> list[str]:
    return [f"{side}: {record}" for record in dump.header.repeat.different] if dump.sealed else []


def _find_unseen(side: str, dump: Dump) -> list[str]:
    if dump.header.tool:  # other tools leave outputs out
        return []
    # The outputs of the root module's forward call are what the model returned.
    ends = [call for call in dump.calls() if (call.module, call.operator, call.phase) == (ROOT_MODULE, "", "forward")]
    hollow = sum(not call.outputs for call in ends)
    what = "holds no tensor that precflow can find: return tensors, or tuples, dicts and dataclasses of them"
    return [f"what the {side}'s model returned {what}"] if hollow else []


def _describe(reproduction: Reproduction, same: Sequence[str], how: str) -> str:
    """Return one line: the first thing in the way of a verdict, else what is the same; ``how`` both sides were compared."""
    in_the_way = (*reproduction.blockers, *reproduction.parted, *reproduction.incomplete)
    if in_the_way:
        return in_the_way[0]
    if reproduction.unrepeatable:
        return f"{len(reproduction.unrepeatable)} records change between two equal runs"
    if reproduction.disturbed or reproduction.unseen or reproduction.amounts:
        return (*reproduction.disturbed, *reproduction.unseen, *reproduction.amounts)[0]
    words = ["seeds", *same]
    listed = " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
    if reproduction.unchecked:
        return f"{listed} are the same; not checked whether the {' and the '.join(reproduction.unchecked)} repeats itself"
    return f"{listed} are the same; both sides repeat themselves {how}"


STAGE = Stage(name="determinism", place=60, reads=("dump",), declare=_declare, make=_make, repeats=True)
