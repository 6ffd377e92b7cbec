"""Memory behind tensors: which tensors share it, and whether it was written to."""

from __future__ import annotations

from typing import Iterable, Optional, Set, Tuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from precflow.agent.digest import readable

Layout = Tuple[object, ...]


def version_of(tensor: torch.Tensor) -> Optional[int]:
    """Return the counter that every in-place write raises, shared by all views of one base; ``None`` for inference tensors."""
    return None if tensor.is_inference() else tensor._version  # noqa: SLF001  documented under "in-place correctness checks"


def storage_of(tensor: torch.Tensor) -> Optional[StorageWeakRef]:
    """Return a weak reference to the tensor's storage, or ``None`` where it has none.

    As long as the reference lives its ``cdata`` names this storage and no later one, although the memory itself is free to
    go: an address alone would be handed out again.
    """
    return StorageWeakRef(tensor.untyped_storage()) if readable(tensor) else None


def address_of(tensor: torch.Tensor) -> Optional[int]:
    """Return ``storage_of(tensor).cdata`` for a moment's use: it names the storage only as long as that lives."""
    if not readable(tensor):
        return None
    address: int = tensor.untyped_storage()._cdata  # noqa: SLF001  a weak reference has the same, and takes three times as long
    return address


def storages_of(tensors: Iterable[torch.Tensor]) -> Set[int]:
    """Return the addresses of the tensors' storages; they name them as long as the tensors live."""
    found = {address_of(tensor) for tensor in tensors}
    return {address for address in found if address is not None}


def is_new(tensor: torch.Tensor, given: Set[int]) -> bool:
    """Tell whether a tensor that a call returned has memory of its own, not that of one of the storages it was given."""
    return address_of(tensor) not in given


def layout_of(tensor: torch.Tensor) -> Layout:
    """Return what, besides the storage and its version, makes the tensor's values: two equal layouts read the same."""
    return (
        tensor.data_ptr(),
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        tensor.is_conj(),
        tensor.is_neg(),
    )
