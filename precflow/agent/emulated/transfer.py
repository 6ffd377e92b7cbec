"""What ``torch_npu.contrib.transfer_to_npu`` does, for the emulated device: a script that says ``cuda`` runs on ``npu``.

The import has the effect, as there. The functions of ``torch.cuda`` become those of ``torch.npu``, ``cuda()`` of tensors and
modules moves to the npu, and "cuda" in a device argument means "npu" for the functions listed below. As there,
``torch.device("cuda")`` itself stays what it is, a tensor's own device says ``npu``, and ``torch.jit.script`` compiles nothing.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any, Callable, Optional

import torch

from precflow.agent.emulated import generator
from precflow.agent.emulated.relabel import DEVICE_TYPE

CONTRIB = "torch_npu.contrib"
NAME = CONTRIB + ".transfer_to_npu"
_CUDA = "cuda"
_OF_TORCH = (
    "tensor as_tensor asarray scalar_tensor frombuffer empty empty_like empty_strided empty_permuted zeros zeros_like ones "
    "ones_like full full_like eye arange range linspace logspace rand rand_like randn randn_like randint randint_like randperm "
    "normal tril_indices triu_indices hann_window hamming_window blackman_window bartlett_window kaiser_window complex polar "
    "load set_default_device"
).split()
_OF_TENSORS = "to new_empty new_empty_strided new_full new_ones new_tensor new_zeros pin_memory".split()
_OF_MODULES = "to to_empty".split()
_COLLECTIVES = ("nccl", "hccl")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes ``torch_npu.contrib.transfer_to_npu`` importable; its import changes torch, once."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Optional[importlib.machinery.ModuleSpec]:
        """Return where the module comes from, if it is this one."""
        del path, target
        return importlib.machinery.ModuleSpec(fullname, self, origin="precflow emulated npu") if fullname == NAME else None

    def exec_module(self, module: types.ModuleType) -> None:
        """Change torch."""
        del module
        transfer()


def install() -> None:
    """Offer the module, beside the stand-in for ``torch_npu``; until it is imported, nothing changes."""
    package: Any = types.ModuleType(CONTRIB, "Stand-in of precflow's emulated npu; it has transfer_to_npu alone.")
    package.__path__ = []
    package.__spec__ = importlib.machinery.ModuleSpec(CONTRIB, None, origin="precflow emulated npu", is_package=True)
    sys.modules[CONTRIB] = package
    sys.modules["torch_npu"].contrib = package  # type: ignore[attr-defined]  # the stand-in
    sys.meta_path.insert(0, Finder())


def transfer() -> None:
    """Let what says ``cuda`` mean the emulated npu. It cannot be undone."""
    npu: Any = torch.npu  # type: ignore[attr-defined]  # registered by the emulation
    cuda: Any = torch.cuda
    for name, value in vars(npu).items():
        if not name.startswith("_") and name not in ("amp", "utils", "emulated"):
            is_function = isinstance(value, types.FunctionType) or value is npu.device
            setattr(cuda, name, _read_as_npu(value) if is_function else value)
    cuda.amp.autocast, cuda.amp.GradScaler = npu.amp.autocast, npu.amp.GradScaler
    for owner, names in ((torch, _OF_TORCH), (torch.Tensor, _OF_TENSORS), (torch.nn.Module, _OF_MODULES)):
        for name in names:
            setattr(owner, name, _read_as_npu(getattr(owner, name)))
    torch.Tensor.cuda = _read_as_npu(torch.Tensor.npu)  # type: ignore[attr-defined,method-assign]  # registered by the emulation
    torch.nn.Module.cuda = _read_as_npu(torch.nn.Module.npu)  # type: ignore[attr-defined,method-assign]  # the same
    torch.autocast.__init__ = _read_as_npu(torch.autocast.__init__)  # type: ignore[method-assign]
    torch.Generator = _Generator  # type: ignore[misc]
    torch.jit.script = _leave_as_written
    if torch.distributed.is_available():
        torch.distributed.init_process_group = _refuse_collectives(torch.distributed.init_process_group)


class _Generator(generator.Generator):
    """A generator that a script asks for on ``cuda``."""

    def __new__(cls, device: Any = "cpu") -> Any:
        """Create a generator of the device, or of the npu."""
        return super().__new__(cls, _to_npu(device))


def _to_npu(value: Any) -> Any:
    """Return what a device argument means; anything else stays."""
    if isinstance(value, torch.device) and value.type == _CUDA:
        return torch.device(DEVICE_TYPE) if value.index is None else torch.device(DEVICE_TYPE, value.index)
    if isinstance(value, str) and value.split(":", maxsplit=1)[0] == _CUDA:
        return DEVICE_TYPE + value[len(_CUDA) :]
    if isinstance(value, dict):  # the map_location of torch.load
        return {_to_npu(name): _to_npu(each) for name, each in value.items()}
    return value


def _read_as_npu(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function, updated=())
    def wrapped(*arguments: Any, **named: Any) -> Any:
        """Call the function with npu in place of cuda."""
        return function(*map(_to_npu, arguments), **{name: _to_npu(value) for name, value in named.items()})

    return wrapped


def _refuse_collectives(start: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(start)
    def wrapped(backend: Any = None, *arguments: Any, **named: Any) -> Any:
        """Start a group, unless it wants the collectives of a device.

        Raises:
            RuntimeError: It does: transfer_to_npu would take hccl, which is not emulated.
        """
        if any(name in str(backend).lower() for name in _COLLECTIVES):
            raise RuntimeError("the emulated npu has no collectives: backend %r would be hccl on an NPU; use gloo" % backend)
        return start(backend, *arguments, **named)

    return wrapped


def _leave_as_written(obj: Any, *_arguments: Any, **_named: Any) -> Any:
    """Return what is to be compiled: transfer_to_npu switches ``torch.jit.script`` off."""
    return obj
