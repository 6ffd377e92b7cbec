"""Sketches on their way into a dump: those of all tensors of a flush are finished together, with one copy to the host."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Tuple

import torch

from precflow.agent.sketch import added, sized
from precflow.agent.transfer import to_hosts

if TYPE_CHECKING:
    from precflow.agent.fills import Cleaning
    from precflow.agent.writer import Writer


class _Gathered(NamedTuple):
    """What :func:`sketch.sketch` gave for a tensor, the norms of its rows, and what its values were cleaned with."""

    parts: torch.Tensor
    rows: torch.Tensor
    clean: Optional[Cleaning]


class Sketches:
    """Gathers sketches until the next flush.

    Args:
        writer: Where they go; ``None`` keeps none.
    """

    def __init__(self, writer: Optional[Writer]) -> None:
        self._writer = writer
        self._gathered: Dict[str, _Gathered] = {}

    def lacks(self, key: str) -> bool:
        """Tell whether a sketch of this content, or part of it, is still to be made."""
        return self._writer is not None and key not in self._gathered and not self._writer.stored(key + ".sketch")

    def add(self, key: str, parts: torch.Tensor, rows: torch.Tensor, clean: Optional[Cleaning] = None) -> None:
        """Take a sketch that the dump lacks.

        Args:
            key: Content id, with the name of a part behind it where it is not the whole content.
            parts: What :func:`sketch.sketch` returned, on any device.
            rows: Norms of the rows.
            clean: What both were given.
        """
        self._gathered[key] = _Gathered(parts, rows, clean)

    def store(self) -> None:
        """Write all that is gathered, where it can be held in float32.

        Raises:
            WriteError: They could not be stored.
        """
        gathered, self._gathered = self._gathered, {}
        writer = self._writer
        if not gathered or writer is None:
            return
        hosts = to_hosts([each for one in gathered.values() for each in (one.parts, one.rows)])
        pairs = zip(gathered.values(), hosts[::2], hosts[1::2])
        finished = _added([_Gathered(parts, rows, one.clean) for one, parts, rows in pairs])
        for (key, one), sums, rows in zip(gathered.items(), finished, hosts[1::2]):
            for what, found in (("sketch", sums), ("rows", sized(rows, one.clean))):
                if math.isfinite(found.sum(dtype=torch.float64).item()):
                    writer.tensor("%s.%s" % (key, what), found, owned=True)


def _added(gathered: List[_Gathered]) -> List[torch.Tensor]:
    """Return each sketch as it is stored; those of one form are added up together."""
    alike: Dict[Tuple[object, ...], List[int]] = {}
    for place, one in enumerate(gathered):
        alone = place if one.clean is not None and one.clean.exponent else -1
        alike.setdefault((one.parts.shape, one.parts.dtype, alone), []).append(place)
    found: Dict[int, torch.Tensor] = {}
    for places in alike.values():
        if len(places) == 1:
            found[places[0]] = added(gathered[places[0]].parts, gathered[places[0]].clean)
        else:
            together = torch.stack([gathered[place].parts for place in places]).sum(2, dtype=torch.float64).to(torch.float32)
            found.update(zip(places, together.unbind(0)))
    return [found[place] for place in range(len(gathered))]
