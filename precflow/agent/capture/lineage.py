"""Data flow between calls: which call's output a tensor is, found by its storage and its version.

Every tensor has a storage (the memory), and views share it. torch counts in-place writes in a version counter that all views
of one base share. Together they tell where a value came from::

    y = a @ b       # y's storage was filled by matmul
    z = y[0]        # a view: same storage, so z comes from matmul too
    y.add_(1)       # version 0 -> 1: now both come from add_
"""

from __future__ import annotations

import weakref
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from precflow.agent.measure.content_id import has_plain_bytes

Layout = Tuple[Any, ...]  # what layout_of returns
Source = Tuple[int, str]  # order of the call in its step, index of its output


class TensorState(NamedTuple):
    """A tensor's memory at one moment. It is read once for each record, because several places ask for it.

    Attributes:
        address: Of its storage, valid only as long as that lives; ``None`` if the tensor has no plain bytes.
        version: Counter of in-place writes; ``None`` for inference tensors, which have none.
        layout: Which values of the storage belong to the tensor.
    """

    address: Optional[int]
    version: Optional[int]
    layout: Layout


def read_state(tensor: torch.Tensor) -> TensorState:
    """Return the tensor's memory as it is now."""
    version = None if tensor.is_inference() else tensor._version  # noqa: SLF001  as in version_of; this runs for every record
    if not has_plain_bytes(tensor):
        return TensorState(None, version, ())
    return TensorState(tensor.untyped_storage()._cdata, version, layout_of(tensor))  # noqa: SLF001  as in address_of


def version_of(tensor: torch.Tensor) -> Optional[int]:
    """Return the counter that every in-place write raises, shared by all views of one base; ``None`` for inference tensors."""
    return None if tensor.is_inference() else tensor._version  # noqa: SLF001  documented under "in-place correctness checks"


def address_of(tensor: torch.Tensor) -> Optional[int]:
    """Return the address of a tensor's storage, ``None`` if it has none; valid only as long as the storage lives."""
    if not has_plain_bytes(tensor):
        return None
    address: int = tensor.untyped_storage()._cdata  # noqa: SLF001  a weak reference has the same, and takes three times as long
    return address


def storages_of(tensors: Iterable[torch.Tensor]) -> Set[int]:
    """Return the addresses of the tensors' storages; they are valid as long as the tensors live."""
    addresses = {address_of(tensor) for tensor in tensors}
    return {address for address in addresses if address is not None}


def has_own_memory(tensor: torch.Tensor, given: Set[int]) -> bool:
    """Tell whether a tensor that a call returned has memory of its own, not that of one of the storages it was given."""
    return address_of(tensor) not in given


def layout_of(tensor: torch.Tensor) -> Layout:
    """Return what selects the tensor's values from its storage: at equal storage and version, equal layouts read the same."""
    return (
        tensor.data_ptr(),
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        tensor.is_conj(),
        tensor.is_neg(),
    )


def are_disjoint(first: Layout, second: Layout, tensor: torch.Tensor) -> bool:
    """Tell whether two tensors of one storage certainly share no element: one after the other, or side by side in rows.

    For example ``x[:3]`` and ``x[3:]``, or ``x[:, :4]`` and ``x[:, 4:]``.

    Args:
        first: Layout of a tensor.
        second: Layout of ``tensor``.
        tensor: Gives the size of an element.
    """
    if first == second or not first or not second or first[1] != second[1]:
        return False
    (start, _, shape, stride), (other_start, _, other_shape, other_stride) = first[:4], second[:4]
    # A rest: one begins inside an element of the other, as views of bytes as float32 can.
    distance, rest = divmod(other_start - start, tensor.element_size())
    if rest or stride != other_stride:
        return False
    if distance >= _span(shape, stride) or -distance >= _span(other_shape, stride):
        return True
    return any(_use_different_columns(distance, (shape, other_shape), stride, width) for width in set(stride))


def _span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Return the number of elements of memory from the first to the last element of a tensor."""
    return sum((size - 1) * width for size, width in zip(shape, stride)) + 1


def _use_different_columns(distance: int, shapes: Sequence[Sequence[int]], stride: Sequence[int], width: int) -> bool:
    """Tell whether two tensors use different columns of rows of ``width`` elements; the second begins ``distance`` later."""
    # Of x[:, :4] and x[:, 4:] with 16 columns, width is 16: the inner axes take elements 0 to 3 and 4 to 15 of each row.
    if width <= 1 or any(each >= width and each % width for each in stride):
        return False
    inner = [axis for axis, each in enumerate(stride) if each < width]
    first, second = (_span([shape[axis] for axis in inner], [stride[axis] for axis in inner]) for shape in shapes)
    return first <= distance % width and distance % width + second <= width


class Storages:
    """Storages that capture knows something about, by address.

    They are held weakly: capture keeps no memory of the model alive. A weak reference does keep the address from being used
    again, so that what is known about one storage is never used for another one.
    """

    def __init__(self) -> None:
        self._references: Dict[int, StorageWeakRef] = {}
        self._tables: List[Dict[int, Any]] = []

    def register(self, table: Dict[int, Any]) -> None:
        """Let :meth:`purge` delete the entries of storages that are gone from a dictionary with addresses as keys."""
        self._tables.append(table)

    def hold(self, tensor: torch.Tensor, address: int) -> None:
        """Keep the address of a tensor's storage from being used again until the next purge."""
        if address not in self._references:
            self._references[address] = StorageWeakRef(tensor.untyped_storage())

    def purge(self) -> None:
        """Forget storages that are gone, so that the tables do not grow with the length of a step."""
        for address in [address for address, storage in self._references.items() if storage.expired()]:
            # Both together: once the reference is gone, the next storage may get the same address.
            del self._references[address]
            for table in self._tables:
                table.pop(address, None)


class _ReturnedTensor(NamedTuple):
    """A tensor object that a call returned."""

    tensor: weakref.ReferenceType[torch.Tensor]
    version: Optional[int]
    source: Source


class _StorageWrite(NamedTuple):
    """The last write to a storage: by which call, to which part, and the write before if it is the only one known."""

    version: Optional[int]
    source: Source
    layout: Layout  # of the part that was written
    before: Optional[Tuple[int, Source, Layout]]


class Sources:
    """The call that last wrote each tensor of a step.

    A tensor is looked up as an object first, then by its storage: a view that no recorded call returned has the source of its
    base. A write through a view counts for every tensor that shares elements with it, not for those beside it. A tensor has no
    source if its version shows a write that no recorded call has made.

    Args:
        storages: Holds the storages that are known here.
    """

    def __init__(self, storages: Storages) -> None:
        self._objects: Dict[int, _ReturnedTensor] = {}
        self._storages = storages
        self._writes: Dict[int, _StorageWrite] = {}
        storages.register(self._writes)

    def clear(self) -> None:
        """Begin a new step: tensors from before have no source in it."""
        self._objects.clear()
        self._writes.clear()

    def purge(self) -> None:
        """Forget tensors that are gone, so that the table does not grow with the length of a step."""
        for key in [key for key, known in self._objects.items() if known.tensor() is None]:
            del self._objects[key]

    def find(self, tensor: torch.Tensor, state: Optional[TensorState] = None) -> Optional[Source]:
        """Return the call whose output this tensor is, or ``None``.

        Args:
            tensor: Any tensor.
            state: Its state, if that was read already.
        """
        address, version, layout = state or read_state(tensor)
        known = self._objects.get(id(tensor))
        if known is not None and known.tensor() is not tensor:  # Python reuses the id of an object that is gone
            known = None
        write = self._writes.get(address or 0)
        latest: Union[_ReturnedTensor, _StorageWrite, None] = known
        if write is not None and (known is None or write.source[0] > known.source[0]):
            latest = write
        if latest is None or latest.version != version:  # a write in between that no recorded call has made
            return None
        if latest is write and write is not None and are_disjoint(write.layout, layout, tensor):
            return _source_before_write(known, write, layout, tensor)
        return latest.source

    def note_output(self, tensor: torch.Tensor, source: Source, *, wrote: bool, state: Optional[TensorState] = None) -> None:
        """Note that a call returned a tensor.

        Args:
            tensor: The tensor.
            source: The call.
            wrote: The call filled the memory. A view of an input is returned without being written.
            state: State of the tensor, if that was read already.
        """
        address, version, layout = state or read_state(tensor)
        self._objects[id(tensor)] = _ReturnedTensor(weakref.ref(tensor), version, source)
        if wrote and address is not None:
            self._storages.hold(tensor, address)
            last, before = self._writes.get(address), None
            if last is not None and last.version is not None and version is not None:
                if last.version == version and last.source[0] == source[0]:  # the same write, noted for a second output
                    before = last.before
                elif last.version + 1 == version:  # no write in between that was not recorded
                    before = (last.version, last.source, last.layout)
            self._writes[address] = _StorageWrite(version, source, layout, before)


def _source_before_write(
    known: Optional[_ReturnedTensor], write: _StorageWrite, layout: Layout, tensor: torch.Tensor
) -> Optional[Source]:
    """Return the source of a tensor whose elements the last write to its storage did not touch; ``None`` if unknown."""
    if write.version is None:
        return None
    # y = x[:3] came from call 7, then call 8 wrote to x[3:]: y is still from call 7, if nothing else was written in between.
    if known is not None and known.version is not None and known.version + 1 == write.version:
        return known.source
    if known is None and write.before is not None and not are_disjoint(write.before[2], layout, tensor):
        return write.before[1]
    return None
