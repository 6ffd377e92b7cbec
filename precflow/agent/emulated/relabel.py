"""Relabelling: the same host memory seen as a CPU tensor or as an npu tensor, without a copy.

A DLPack capsule has a field that says on which device its bytes live. Rewriting that field between export and import gives a
real ``torch.Tensor`` of another device that shares memory, strides and lifetime with the first.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from precflow.agent.emulated import private

DEVICE_TYPE = "npu"
CPU = torch.device("cpu")
_HOST_CODE = 1  # kDLCPU
_PRIVATE_CODE = 12  # kDLExtDev, which torch reads as PrivateUse1
_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
_DEVICE_OFFSET = 8  # DLTensor starts with void* data; then int32 device_type, int32 device_id

_DeviceField = ctypes.c_int32 * 2  # DLPack's DLDevice: the kind of device, and its number
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


def is_emulated(value: object) -> bool:
    """Return whether ``value`` is a tensor on the emulated device."""
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE_TYPE


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor over the same memory, with the same shape, strides and lazy conjugate and negative bits.

    DLPack refuses tensors with one of the two lazy bits, so the bit is removed first and set again on the result.
    """
    if tensor.is_conj():
        return to_host(private.toggle_conjugate(tensor)).conj()
    if tensor.is_neg():
        result: torch.Tensor = private.toggle_negative(to_host(private.toggle_negative(tensor)))
        return result
    return _relabel(tensor, _HOST_CODE, 0)


def to_device(tensor: torch.Tensor, index: int) -> torch.Tensor:
    """Return a tensor on ``npu:index`` over the memory of the CPU tensor ``tensor``.

    Raises:
        NotImplementedError: The tensor is sparse.
    """
    if tensor.layout in _SPARSE:
        raise NotImplementedError(
            "sparse tensors are not emulated on the npu: use dense ones there, such as sparse=False in nn.Embedding and "
            "nn.EmbeddingBag with an optimizer for dense gradients"
        )
    strided = tensor if tensor.layout is torch.strided else tensor.contiguous()
    return _relabel(strided, _PRIVATE_CODE, index)


def adopt(tensor: torch.Tensor, host: torch.Tensor) -> None:
    """Make the npu tensor ``tensor`` use the storage, shape and strides of the CPU tensor ``host``, in place."""
    fresh = to_device(host.detach(), tensor.device.index)
    on_host_key(
        torch.ops.aten.set_.source_Storage_storage_offset, tensor, fresh.untyped_storage(), 0, fresh.shape, fresh.stride()
    )


def on_host_key(operator: Any, *arguments: Any, **named: Any) -> Any:
    """Run the CPU kernel of ``operator`` on npu tensors directly; correct for operators that only change metadata."""
    return private.run_on_key(operator, "CPU", *arguments, **named)


def _relabel(tensor: torch.Tensor, code: int, index: int) -> torch.Tensor:
    # The capsule holds a reference to the memory, and the imported tensor takes that reference over. So the memory lives as
    # long as either tensor, and the capsule must be imported exactly once.
    capsule = private.export_capsule(tensor)
    _DeviceField.from_address(_pointer_of(capsule, b"dltensor") + _DEVICE_OFFSET)[:] = [code, index]
    relabelled: torch.Tensor = private.import_capsule(capsule)
    return relabelled
