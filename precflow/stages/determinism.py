"""Stage ``determinism``: did both sides start from the same seeds, weights and inputs, and does each repeat itself?

If they started from different ones, a comparison would mean nothing, so ``compare`` reads no tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from precflow.agent.contract import ROOT_MODULE
from precflow.dumps.header import RepeatCheck, describe_comparison
from precflow.dumps.reader import Dump
from precflow.dumps.two_passes import count_unknown, find_unrepeated
from precflow.environment.reproduction import describe_copy, find_blockers
from precflow.stages.artifacts import read_value, write_value
from precflow.stages.dump import is_given, open_dump, read_damage
from precflow.stages.job import Job, Stage, StageResult
from precflow.stages.passes import second

REPRODUCTION_FILE = "reproduction.json"


@dataclass(frozen=True)
class Reproduction:
    """What stands in the way of a verdict before any tensor is read.

    Attributes:
        blockers: Seeds, weights, inputs or recipes that differ; no tensor is compared.
        incomplete: Dumps that were never sealed or are damaged. What they have is compared, but the verdict is not "aligned".
        unrepeatable: ``side: record`` of each record that changed between two equal runs.
        unseen: Models in whose output the agent found no tensor; the verdict is not "aligned".
        unchecked: Sides that were not run twice.
    """

    blockers: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    unrepeatable: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()


def read_reproduction(folder: Path) -> Reproduction:
    """Return what the stage found."""
    return read_value(folder / REPRODUCTION_FILE, Reproduction)


def _declare(job: Job) -> Mapping[str, Any]:
    return {"same": list(job.config.environment.same)}


def reproduce(reference: Dump, target: Dump, same: Sequence[str]) -> Reproduction:
    """Return what stands in the way of a verdict on two dumps, without reading a tensor.

    Args:
        reference: Dump of the reference.
        target: Dump of the target.
        same: What has to be the same on both sides: ``weights``, ``inputs``.
    """
    both_sealed = reference.sealed and target.sealed  # an unsealed dump has no header, so there is nothing to compare
    return Reproduction(
        blockers=tuple(find_blockers(reference.header, target.header, same)) if both_sealed else (),
        incomplete=(*_find_incomplete("reference", reference), *_find_incomplete("target", target)),
        unrepeatable=(*_find_unrepeatable("reference", reference), *_find_unrepeatable("target", target)),
        unseen=(*_find_unseen("reference", reference), *_find_unseen("target", target)),
        unchecked=tuple(
            side for side, dump in (("reference", reference), ("target", target)) if not dump.header.repeat.checked
        ),
    )


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    same = job.config.environment.same
    reference, target = open_dump(needs["dump.reference"]), open_dump(needs["dump.target"])
    found = reproduce(reference, target, same)
    # A dump that the user gives may be of either side: the recipe says which one it stands for here.
    strange = [
        f"the dump of the {side} says that it is of the {dump.header.side}"
        for side, dump in (("reference", reference), ("target", target))
        if not is_given(needs[f"dump.{side}"]) and dump.header.side != side
    ]
    copy = describe_copy(reference.header, target.header)
    found = replace(found, blockers=(*([copy] if copy else []), *strange, *found.blockers))
    damage = [f"{side}: {text}" for side in ("reference", "target") for text in read_damage(needs[f"dump.{side}"])]
    found = replace(found, incomplete=tuple(dict.fromkeys([*found.incomplete, *damage])))
    write_value(folder / REPRODUCTION_FILE, found)
    note = _note(found, same, describe_comparison(_find_common_ways(reference.header.repeat, target.header.repeat)))
    return StageResult(note=note, damaged=bool(found.incomplete))


def _make_second(job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    """Add what the second pass shows: it has to repeat the first one, bitwise for the records whose content ids are known."""
    del job
    first = read_reproduction(needs["determinism"])
    sides = {
        side: (open_dump(needs[f"dump.{side}"]), open_dump(needs[second(f"dump.{side}")])) for side in ("reference", "target")
    }
    drifted = [f"{side}: {record}" for side, passes in sides.items() for record in find_unrepeated(*passes)]
    found = replace(
        first,
        blockers=(*first.blockers, *(text for side, passes in sides.items() for text in _describe_changes(side, *passes))),
        incomplete=(*first.incomplete, *(text for side, passes in sides.items() for text in _find_incomplete(side, passes[1]))),
        unrepeatable=tuple(dict.fromkeys([*first.unrepeatable, *drifted])),
    )
    write_value(folder / REPRODUCTION_FILE, found)
    unknown = sum(count_unknown(*passes) for passes in sides.values())
    note = found.blockers[0] if found.blockers else _describe_repeats(len(drifted), unknown)
    return StageResult(note=note, damaged=bool(found.incomplete))


def _describe_changes(side: str, first: Dump, again: Dump) -> list[str]:
    """Return a text for the weights and one for the inputs of a side, if they changed between its two passes."""
    found = (("weights", first.header.weights, again.header.weights), ("inputs", first.header.inputs, again.header.inputs))
    return [
        f"the {what} of the {side} changed between its two passes" for what, one, other in found if one.digest != other.digest
    ]


def _describe_repeats(drifted: int, unknown: int) -> str:
    if drifted:
        return f"{drifted} records are not those of the first pass"
    unseen = f", but for {unknown} records of which it kept statistics alone" if unknown else ""
    return f"both sides repeat their first pass bitwise{unseen}"


def _find_incomplete(side: str, dump: Dump) -> list[str]:
    unsealed = [] if dump.sealed else [f"the {side} dump {dump.path.name}/ was never sealed: its writer was stopped"]
    return [*unsealed, *(f"{side}: {damage}" for damage in dump.damage)]


def _find_unrepeatable(side: str, dump: Dump) -> list[str]:
    return [f"{side}: {record}" for record in dump.header.repeat.different] if dump.sealed else []


def _find_unseen(side: str, dump: Dump) -> list[str]:
    # The outputs of the root module's forward call are what the model returned.
    ends = [call for call in dump.calls() if (call.module, call.operator, call.phase) == (ROOT_MODULE, "", "forward")]
    hollow = sum(not call.outputs for call in ends)
    what = "holds no tensor that precflow can find: return tensors, or tuples, dicts and dataclasses of them"
    return [f"what the {side}'s model returned {what}"] if hollow else []


def _note(found: Reproduction, same: Sequence[str], how: str) -> str:
    if found.blockers:
        return found.blockers[0]
    if found.incomplete:
        return found.incomplete[0]
    if found.unrepeatable:
        return f"{len(found.unrepeatable)} records change between two equal runs"
    if found.unseen:
        return found.unseen[0]
    repeated = f"not checked whether the {' and the '.join(found.unchecked)} repeats itself"
    repeated = repeated if found.unchecked else f"both sides repeat themselves {how}"
    return f"{_join_words(['seeds', *same])} are the same; {repeated}"


def _join_words(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


STAGE = Stage(name="determinism", needs=("dump.reference", "dump.target"), declare=_declare, make=_make)
SECOND = Stage(
    name=second(STAGE.name),
    needs=(*STAGE.needs, STAGE.name, *map(second, STAGE.needs)),
    declare=_declare,
    make=_make_second,
)


def _find_common_ways(*repeats: RepeatCheck) -> set[str]:
    """Return all ways in which the sides were compared with their repetition; none if a side does not say how."""
    return {way for repeat in repeats for way in repeat.by} if all(repeat.by for repeat in repeats) else set()
