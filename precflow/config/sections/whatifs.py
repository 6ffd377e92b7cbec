"""The words that the key ``whatif`` takes: names of what-ifs, ids of rules that one confirms, and four words of precflow's.

The check of a recipe needs only these. What a what-if changes is read by :mod:`precflow.diagnosis.advice.whatif_files`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from precflow import resources
from precflow.config.documents import read

if TYPE_CHECKING:
    from precflow.config.schema import RunConfig

TOP = "top"  # those that are worth trying by the evidence, the most telling ones first
CHEAPEST = "cheapest"  # the fewest parts to raise to a wider type so that the run passes
REFERENCE_CHOICE = "reference_choice"  # the target goes on with the reference's choices where its own differ
SUSPECTS_ALONE = "suspects_alone"  # the target runs its suspects again, each alone
WORDS = (TOP, CHEAPEST, REFERENCE_CHOICE, SUSPECTS_ALONE)
_PREFIX = "whatif="  # how a rule's key `confirm` names one
_Folders = tuple[tuple[Path, ...], tuple[Path, ...]]
_TEAM: ContextVar[_Folders] = ContextVar("folders of a team's what-ifs and rules", default=((), ()))


@contextmanager
def searching(folders: Sequence[Path], rules: Sequence[Path]) -> Iterator[None]:
    """Include the what-ifs and the rules in these folders while a recipe is checked."""
    token = _TEAM.set((tuple(folders), tuple(rules)))
    try:
        yield
    finally:
        _TEAM.reset(token)


def can_give_choices(config: RunConfig) -> bool:
    """Tell whether the target's run can be given the reference's choices: it runs functions, in one process, and is no dump."""
    return not (config.target.dump or config.workload.script) and max(config.reference.ranks, config.target.ranks) == 1


def known_words() -> tuple[str, ...]:
    """Return every word that ``whatif`` takes.

    A rule can be confirmed if a what-if names it under ``confirms``, or if it names a what-if under ``confirm`` itself.
    """
    ours, rules = _TEAM.get()
    files = _list_files((*ours, resources.directory("conf") / "whatif"))
    listed = [read(path, "whatif", path.stem).data.get("confirms") for path in files]
    ids = {rule for one in listed if isinstance(one, list) for rule in one if isinstance(rule, str)}
    for path in _list_files((*rules, resources.directory("conf") / "rule")):
        data = read(path, "rule", path.stem).data
        if str(data.get("confirm", "")).startswith(_PREFIX):
            ids.add(str(data.get("id")))
    return (*WORDS, *sorted(path.stem for path in files), *sorted(ids))


def _list_files(folders: Sequence[Path]) -> list[Path]:
    return [path for folder in folders for path in sorted(folder.glob("*.yaml"))]
