"""The words that the key ``whatif`` takes: names of what-ifs, ids of rules that one confirms, and two words of precflow's.

The check of a recipe needs only these. What a what-if changes is read by :mod:`precflow.diagnosis.whatif_files`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from precflow import resources
from precflow.config.documents import read

TOP = "top"  # those that are worth trying by the evidence, the most telling ones first
CHEAPEST = "cheapest"  # the fewest parts to raise to a wider type so that the run passes
WORDS = (TOP, CHEAPEST)
_TEAM: ContextVar[tuple[Path, ...]] = ContextVar("folders of a team's what-ifs", default=())


@contextmanager
def searching(folders: Sequence[Path]) -> Iterator[None]:
    """Include the what-ifs in these folders while a recipe is checked."""
    token = _TEAM.set(tuple(folders))
    try:
        yield
    finally:
        _TEAM.reset(token)


def known_words() -> tuple[str, ...]:
    """Return every word that ``whatif`` takes."""
    paths = [
        path for folder in (*_TEAM.get(), resources.directory("conf") / "whatif") for path in sorted(folder.glob("*.yaml"))
    ]
    confirmed = [read(path, "whatif", path.stem).data.get("confirms") for path in paths]
    rules = {rule for listed in confirmed if isinstance(listed, list) for rule in listed if isinstance(rule, str)}
    return (*WORDS, *sorted(path.stem for path in paths), *sorted(rules))
