"""Data-flow edges: which call's output a tensor is."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from precflow.agent.measure.content_id import readable

if TYPE_CHECKING:
    import torch

# Memory behind tensors: which tensors share it, and whether it was written to.

Layout = Tuple[Any, ...]


class Seen(NamedTuple):
    """What a tensor looks like at one moment; it is told once, because every record of it asks for it several times.

    Attributes:
        address: Of its storage, which it names only as long as that lives; ``None`` where there are no plain bytes.
        version: Counter of in-place writes; ``None`` for inference tensors.
        layout: What makes its values of the storage's.
    """

    address: Optional[int]
    version: Optional[int]
    layout: Layout


def seen(tensor: torch.Tensor) -> Seen:
    """Return what a tensor looks like now."""
    version = None if tensor.is_inference() else tensor._version  # noqa: SLF001  as in version_of; this runs for every record
    if not readable(tensor):
        return Seen(None, version, ())
    return Seen(tensor.untyped_storage()._cdata, version, layout_of(tensor))  # noqa: SLF001  as in address_of


class Storages:
    """Storages that somebody knows something of, by address; held weakly, so that none of the addresses names a later one."""

    def __init__(self) -> None:
        self._held: Dict[int, StorageWeakRef] = {}
        self._known: List[Dict[int, Any]] = []

    def follow(self, known: Dict[int, Any]) -> None:
        """Drop from a dictionary, by address, what is known of storages that are gone."""
        self._known.append(known)

    def hold(self, tensor: torch.Tensor, address: int) -> None:
        """Keep the address of a tensor's storage from naming another one until the next purge."""
        if address not in self._held:
            self._held[address] = StorageWeakRef(tensor.untyped_storage())

    def purge(self) -> None:
        """Forget storages that are gone, so that what is known does not grow with the length of a step."""
        for address in [address for address, storage in self._held.items() if storage.expired()]:
            del self._held[address]
            for known in self._known:
                known.pop(address, None)


def version_of(tensor: torch.Tensor) -> Optional[int]:
    """Return the counter that every in-place write raises, shared by all views of one base; ``None`` for inference tensors."""
    return None if tensor.is_inference() else tensor._version  # noqa: SLF001  documented under "in-place correctness checks"


def address_of(tensor: torch.Tensor) -> Optional[int]:
    """Return what names a tensor's storage for a moment's use, or ``None`` where it has none; see :class:`Storages`."""
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


def apart(one: Layout, other: Layout, tensor: torch.Tensor) -> bool:
    """Tell whether two tensors of one storage surely share no element: one behind the other, or side by side in rows.

    Args:
        one: Layout of a tensor.
        other: Layout of ``tensor``.
        tensor: One of them.
    """
    if one == other or not one or not other or one[1] != other[1]:
        return False
    (start, _, shape, stride), (behind, _, shape_behind, stride_behind) = one[:4], other[:4]
    step, rest = divmod(behind - start, tensor.element_size())
    if rest or stride != stride_behind:
        return False
    if step >= _reach(shape, stride) or -step >= _reach(shape_behind, stride):
        return True
    return any(_in_lanes(step, (shape, shape_behind), stride, width) for width in set(stride))


def _reach(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Return how many places of memory lie between the first element and behind the last one."""
    return sum((size - 1) * width for size, width in zip(shape, stride)) + 1


def _in_lanes(step: int, shapes: Sequence[Sequence[int]], stride: Sequence[int], width: int) -> bool:
    """Tell whether two tensors take different parts of rows of a width, the second beginning ``step`` places behind."""
    if width <= 1 or any(each >= width and each % width for each in stride):
        return False
    inner = [place for place, each in enumerate(stride) if each < width]
    first, second = (_reach([shape[place] for place in inner], [stride[place] for place in inner]) for shape in shapes)
    return first <= step % width and step % width + second <= width


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
