"""Data-flow edges: which call's output a tensor is."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Dict, NamedTuple, Optional, Tuple, Union

from precflow.agent.capture.memory import Layout, Seen, Storages, apart, seen

if TYPE_CHECKING:
    import torch

Source = Tuple[int, str]  # order of the call in its step, index of its output


class _Object(NamedTuple):
    tensor: weakref.ReferenceType[torch.Tensor]
    version: Optional[int]
    source: Source


class _Storage(NamedTuple):
    version: Optional[int]
    source: Source
    layout: Layout  # of what was written
    before: Optional[Tuple[int, Source, Layout]]  # the write before, where this was the only one since


class Sources:
    """The last writer of every tensor of a step.

    A tensor is looked up as an object first, then by its storage: a view that no recorded call returned has the writer of
    its base, and a write through a view counts for all that shares memory with it, not for what lies beside it. A tensor
    whose memory was written to by an unknown hand has no source.

    Args:
        storages: Holds the storages that are known here.
    """

    def __init__(self, storages: Storages) -> None:
        self._objects: Dict[int, _Object] = {}
        self._held = storages
        self._storages: Dict[int, _Storage] = {}
        storages.follow(self._storages)

    def forget(self) -> None:
        """Begin a new step: what is left from before comes from outside."""
        self._objects.clear()
        self._storages.clear()

    def purge(self) -> None:
        """Forget tensors that are gone, so that what is known does not grow with the length of a step."""
        for key in [key for key, known in self._objects.items() if known.tensor() is None]:
            del self._objects[key]

    def find(self, tensor: torch.Tensor, now: Optional[Seen] = None) -> Optional[Source]:
        """Return the call whose output this tensor is, or ``None``.

        Args:
            tensor: Any.
            now: What it looks like, where that is known.
        """
        address, version, layout = now or seen(tensor)
        known = self._objects.get(id(tensor))
        if known is not None and known.tensor() is not tensor:  # an id is used again after its object's death
            known = None
        shared = self._storages.get(address or 0)
        latest = _later(known, shared)
        if latest is None or latest.version != version:
            return None
        if latest is shared and latest is not None and apart(shared.layout, layout, tensor):
            return _earlier(known, shared, layout, tensor)
        return latest.source

    def produced(self, tensor: torch.Tensor, source: Source, *, made: bool, now: Optional[Seen] = None) -> None:
        """Note that a call returned this tensor; ``made`` when it filled the memory, which a view of an input does not.

        Args:
            tensor: Any.
            source: The call.
            made: Whether it filled the memory.
            now: What the tensor looks like, where that is known.
        """
        address, version, layout = now or seen(tensor)
        self._objects[id(tensor)] = _Object(weakref.ref(tensor), version, source)
        if made and address is not None:
            self._held.hold(tensor, address)
            self._storages[address] = _Storage(version, source, layout, _before(self._storages.get(address), version, source))


def _before(known: Optional[_Storage], version: Optional[int], source: Source) -> Optional[Tuple[int, Source, Layout]]:
    """Return the write before one that leaves this version, where nothing else was written in between."""
    if known is None or known.version is None or version is None:
        return None
    if known.version == version and known.source[0] == source[0]:  # the same write, noted once more
        return known.before
    return (known.version, known.source, known.layout) if known.version + 1 == version else None


def _earlier(known: Optional[_Object], shared: _Storage, layout: Layout, tensor: torch.Tensor) -> Optional[Source]:
    """Return where a tensor comes from that the last write to its memory has left alone; ``None`` where that is not known."""
    if shared.version is None:
        return None
    if known is not None and known.version is not None and known.version + 1 == shared.version:
        return known.source
    if known is None and shared.before is not None and not apart(shared.before[2], layout, tensor):
        return shared.before[1]
    return None


def _later(known: Optional[_Object], shared: Optional[_Storage]) -> Union[_Object, _Storage, None]:
    if known is None or shared is None:
        return shared if known is None else known
    return shared if shared.source[0] > known.source[0] else known
