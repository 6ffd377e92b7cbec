"""A rehearsal: the workload run once without values, so that a plan tells the size of a dump that was never made.

It takes the seconds that importing and building the model takes, so it is only made where it is asked for, and kept in the
store by what it depends on: the next plan has it at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precflow import keys
from precflow.agent.contract import REHEARSAL_FILE
from precflow.dumps.reader import Dump
from precflow.dumps.records import Call
from precflow.dumps.requests import declared, dump_request
from precflow.errors import PrecflowError
from precflow.run.steps import Place, own_code
from precflow.run.store import Sealed
from precflow.stages.artifacts import read_plain
from precflow.stages.asking import ask
from precflow.stages.dump import contents, whereabouts
from precflow.stages.job import Job

NAME = "rehearsal"
_DIGITS = 10


@dataclass(frozen=True)
class Rehearsal:
    """What a run without values says.

    Attributes:
        calls: Of one step, all modules and operators; each tensor has a content of its own.
        dtype: Floating point type that it ran in.
        problem: Why there are no calls; ``""`` where there are.
    """

    calls: tuple[Call, ...]
    dtype: str
    problem: str = ""


def rehearsal(side: str, job: Job, where: Place, *, make: bool) -> Rehearsal | None:
    """Return the rehearsal of a side's workload: the one in the store, else one that is made now.

    What cannot be made has its ``problem``; where it is the workload's own, that is kept too.

    Args:
        side: Which interpreter and dtype it runs in.
        job: The recipe.
        where: Its store.
        make: Make one where the store has none; otherwise ``None`` is returned then.
    """
    if not make and not where.store.named(NAME):
        return None
    try:
        wanted = _declared(side, job)
        key = keys.digest([NAME, wanted, own_code(of_agent=True)])[:_DIGITS]
        sealed = where.store.find(NAME, key) or (_make(side, job, where, key, wanted) if make else None)
        return None if sealed is None else _read(sealed.folder)
    except PrecflowError as error:
        return Rehearsal((), "", error.message)


def _declared(side: str, job: Job) -> dict[str, Any]:
    """Return what the calls of a step depend on; detail, scope and rules are looked at afterwards."""
    plain = declared(job.config, side)
    return {
        "workload": contents(plain["workload"]),
        "level": plain["capture"]["level"],
        "phase": plain["capture"]["phase"],
        "dropout": plain["determinism"]["dropout"],
        **whereabouts(side, job),
    }


def _make(side: str, job: Job, where: Place, key: str, wanted: Mapping[str, Any]) -> Sealed:
    with where.store.making(NAME, key) as attempt:
        folder = attempt.folder
        request = dump_request(
            job.config, side, folder, ci=job.ci, declared_key=key, trusted=job.trusted, import_paths=job.import_paths
        )
        ask(job, side, {**request, "action": "rehearse"}, folder)
        note = read_plain(folder / REHEARSAL_FILE)["problem"] or "ran without values"
        return where.store.seal(attempt, {"name": NAME, "key": key, "declared": wanted, "needs": {}, "note": note})


def _read(folder: Path) -> Rehearsal:
    """Return what was written.

    Raises:
        PrecflowError: It cannot be read.
    """
    plain = read_plain(folder / REHEARSAL_FILE)
    if plain["problem"]:
        return Rehearsal((), plain["dtype"], plain["problem"])
    return Rehearsal(tuple(Dump.open(folder, allow_unsealed=True).calls()), plain["dtype"])
