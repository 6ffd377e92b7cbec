"""The emulated npu: real tensors on ``torch.device("npu")`` that live in host memory and are computed by the CPU.

With it a recipe, a script or a capture can be tried on another device type, and faults can be injected on purpose
(:mod:`~precflow.agent.emulated.rules`). It says nothing about real hardware. :func:`install` changes the whole process and
cannot be undone, so it is called only in an agent process whose request asks for it.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Tuple

LEAST_TORCH = (2, 10)  # the first release in which Python code can add a device


def describe_problem() -> str:
    """Return why the emulated npu cannot be installed here and what to do about it; ``""`` if it can."""
    import torch

    if is_installed():
        return ""
    if _parse_release(torch.__version__) < LEAST_TORCH:
        return (
            "the emulated npu needs torch 2.10 or newer, here is torch %s; "
            "install a newer torch in this side's interpreter, or use device cpu" % torch.__version__
        )
    if "torch_npu" in sys.modules or importlib.util.find_spec("torch_npu") is not None:
        return "torch_npu is installed in this interpreter, so it is left alone: use device npu, or another interpreter"
    if torch._C._get_privateuse1_backend_name() != "privateuseone":  # noqa: SLF001  no public name; a name can be given once only
        return "another device backend has already taken torch's place for private devices in this process"
    return ""


def is_installed() -> bool:
    """Tell whether ``torch.npu`` is the emulated one."""
    import torch

    return bool(getattr(getattr(torch, "npu", None), "emulated", False))


def install(device_count: int = 2) -> types.ModuleType:
    """Install the device into this process and return ``torch.npu``; a second call only returns it.

    This cannot be undone. For the thread that called it, backward runs in that thread from then on: torch's device guard for
    Python devices knows one device only, and backward on ``npu:1`` would fail in a thread of the autograd engine.

    Raises:
        RuntimeError: It cannot be installed here; the message is that of :func:`describe_problem`.
    """
    import torch

    if is_installed():
        present: types.ModuleType = torch.npu  # type: ignore[attr-defined]  # exists once it is installed
        return present
    reason = describe_problem()
    if reason:
        raise RuntimeError(reason)

    from precflow.agent.emulated import generator, literals, module, operators, ordinal, private, storage, stream, transfer
    from precflow.agent.emulated.relabel import DEVICE_TYPE

    ordinal.set_device_count(device_count)
    # An empty module first: building the real one creates generators of torch.device("npu"), so the name must be known before.
    private.set_up_backend(DEVICE_TYPE, backend_module=types.ModuleType("torch.npu"))
    built = module.build()
    torch.npu = built  # type: ignore[attr-defined]  # torch has no such attribute of its own
    torch.Generator = generator.Generator  # type: ignore[misc]  # a plain one refuses the device's name
    torch.Tensor.pin_memory = _pin_memory  # type: ignore[method-assign,assignment]  # all memory is the host's
    torch.accelerator.synchronize = stream.synchronize
    # torch's device guard for Python devices knows device 0 only: in a thread of the engine, backward on npu:1 would fail.
    torch.autograd.set_multithreading_enabled(False)
    storage.install()
    operators.install()
    literals.install()
    module.install_package(built)
    transfer.install()
    return built


def _pin_memory(tensor: object, device: object = None) -> object:  # noqa: ARG001  torch's signature
    return tensor


def _parse_release(version: str) -> Tuple[int, ...]:
    """Return the numbers of a version.

    >>> _parse_release("2.13.0+cpu")
    (2, 13, 0)
    """
    numbers = version.split("+", maxsplit=1)[0].split(".")[:3]
    return tuple(int("".join(character for character in number if character.isdigit()) or 0) for number in numbers)
