"""Taking the part of a tensor that a rule keeps: see :mod:`precflow.agent.sampling` for which elements that is."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, Optional, Tuple

import torch

from precflow.agent.measure.checksums import as_joinable
from precflow.agent.sampling import BLOCK, Part, part_name, part_of


class KeptPart(NamedTuple):
    """A part with the name that tells it from other parts of the same tensor."""

    name: str
    part: Part


@lru_cache(maxsize=4096)
def choose_part(shape: Tuple[int, ...], slices: str, sample: float) -> Optional[KeptPart]:
    """Return what is kept of a tensor of this shape, the same object each time; ``None`` where that is all of it."""
    part = part_of(shape, slices, sample)
    return None if part is None else KeptPart(part_name(slices, sample), part)


def copy_part(tensor: torch.Tensor, kept: KeptPart) -> torch.Tensor:
    """Return a contiguous copy of the part: in the shape that the index leaves, or flat where blocks were sampled."""
    # As bytes where torch cannot copy and join the type (float8), until the end.
    part, dtype, tensor = kept.part, tensor.dtype, as_joinable(tensor)
    left = tensor[part.axes] if part.axes else tensor
    if part.blocks is None:
        return left.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).view(dtype)
    flat = left.reshape(-1)
    blocks = torch.tensor(part.blocks, dtype=torch.int64).to(flat.device, non_blocking=True)
    # Whole blocks become rows, so that one index_select takes all that are kept.
    whole = flat[: flat.numel() // BLOCK * BLOCK].view(-1, BLOCK).index_select(0, blocks).view(-1)
    return torch.cat([whole, flat[part.tail :]]).resolve_conj().resolve_neg().view(dtype)
