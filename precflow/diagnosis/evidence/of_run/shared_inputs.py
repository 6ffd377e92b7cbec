"""Ranks that are given the same samples on the target alone: a sampler that does not divide them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from precflow.diagnosis.evidence.pieces import Evidence

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison
    from precflow.dumps.header import ContentEntry

EVIDENCE = {
    "inputs_shared": Evidence(
        "ranks that are given the same",
        "Everything that their models are given in a step has equal bits on the target, and not on the reference; up to five.",
    ),
}

_OF_RANK = re.compile(r"rank(\d+)\.(step\d+)(\..*)")  # rank 0 has no number in its names
_SHOWN = 5

_Entries = Mapping[str, "ContentEntry"]


def gather(run: Comparison) -> dict[str, Any]:
    """Return which ranks share their inputs; nothing if none does, or they share them on the reference too."""
    here, there = run.reference.header.inputs.entries, run.target.header.inputs.entries
    names: dict[tuple[int, str], list[str]] = defaultdict(list)
    for match in filter(None, map(_OF_RANK.fullmatch, there)):
        names[int(match[1]), match[2]].append(match[3])
    shared = []
    for (rank, step), rest in sorted(names.items()):
        for other in range(rank):
            pairs = [(f"rank{rank}.{step}{each}", f"{f'rank{other}.' if other else ''}{step}{each}") for each in rest]
            if (
                _are_alike(there, pairs)
                and any(name in here for pair in pairs for name in pair)
                and not _are_alike(here, pairs)
            ):
                shared.append(f"ranks {other} and {rank} in {step.replace('step', 'step ')}")
                break
    return {"inputs_shared": shared[:_SHOWN]} if shared else {}


def _are_alike(entries: _Entries, pairs: list[tuple[str, str]]) -> bool:
    """Tell whether two ranks are given the same, tensor by tensor."""
    return all(one in entries and two in entries and entries[one].content == entries[two].content for one, two in pairs)
