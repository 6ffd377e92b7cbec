"""Stage ``determinism``: did both sides start from the same seeds, weights and inputs, and does each repeat itself?

What differs here makes a comparison meaningless, so ``compare`` reads no tensor then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precflow.dumps.reader import Dump
from precflow.environment.reproduction import blockers
from precflow.stages.artifacts import read_value, write_value
from precflow.stages.dump import open_dump
from precflow.stages.job import Job, Made, Stage

REPRODUCTION_FILE = "reproduction.json"


@dataclass(frozen=True)
class Reproduction:
    """What stands in the way of a verdict before any tensor is read.

    Attributes:
        blockers: Seeds, weights, inputs or recipes that differ: no tensor is compared.
        incomplete: Dumps that were never sealed or are damaged: compared as far as they go, never "aligned".
        unrepeatable: ``side: record`` that changed between two equal runs.
    """

    blockers: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    unrepeatable: tuple[str, ...] = ()


def read_reproduction(folder: Path) -> Reproduction:
    """Return what the stage found."""
    return read_value(folder / REPRODUCTION_FILE, Reproduction)


def _declare(job: Job) -> Mapping[str, Any]:
    return {"same": list(job.config.environment.same)}


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> Made:
    reference, target = open_dump(needs["dump.reference"]), open_dump(needs["dump.target"])
    both_sealed = reference.sealed and target.sealed
    found = Reproduction(
        blockers=tuple(blockers(reference.header, target.header, job.config.environment.same)) if both_sealed else (),
        incomplete=(*_incomplete("reference", reference), *_incomplete("target", target)),
        unrepeatable=(*_unrepeatable("reference", reference), *_unrepeatable("target", target)),
    )
    write_value(folder / REPRODUCTION_FILE, found)
    return Made(note=_note(found))


def _incomplete(side: str, dump: Dump) -> list[str]:
    unsealed = [] if dump.sealed else [f"the {side} dump {dump.path.name}/ was never sealed: its writer was stopped"]
    return [*unsealed, *(f"{side}: {damage}" for damage in dump.damage)]


def _unrepeatable(side: str, dump: Dump) -> list[str]:
    return [f"{side}: {record}" for record in dump.header.repeat.different] if dump.sealed else []


def _note(found: Reproduction) -> str:
    if found.blockers:
        return found.blockers[0]
    if found.incomplete:
        return found.incomplete[0]
    if found.unrepeatable:
        return f"{len(found.unrepeatable)} records change between two equal runs"
    return "seeds, weights and inputs are the same; both sides repeat themselves"


STAGE = Stage(name="determinism", needs=("dump.reference", "dump.target"), declare=_declare, make=_make)
