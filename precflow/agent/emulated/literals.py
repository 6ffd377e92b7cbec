"""Tensors made of Python numbers on the emulated device, such as ``torch.tensor([1.0], device="npu")``.

torch builds such a tensor on the host and copies it with its Python key excluded. A device that is written in Python needs that
key, and where a dispatch mode is active as well, as during capture at level ``operator``, torch ends in an internal assertion.
So the tensor is built outside of all modes, and these see what they see on any other device: one ``lift_fresh``.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional

import torch

from precflow.agent.emulated import private
from precflow.agent.emulated.relabel import DEVICE_TYPE


def install() -> None:
    """Replace the functions of torch that make tensors of Python numbers."""
    # `with torch.device("meta")` looks functions up in a set that torch fills at first use. The functions that are called in
    # the end are torch's own, so these have to be in it: transformers asks torch.tensor([]) for the device and would get "cpu".
    private.fill_device_constructors()
    for name in ("tensor", "as_tensor", "asarray"):
        setattr(torch, name, _outside_of_modes(getattr(torch, name)))
    torch.Tensor.new_tensor = _outside_of_modes(torch.Tensor.new_tensor)  # type: ignore[method-assign]


def _outside_of_modes(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(make)
    def wrapped(*arguments: Any, **named: Any) -> torch.Tensor:
        """Make the tensor with every dispatch mode off, then lift it: modes see one call, as on a real device."""
        device = _find_device(arguments, named) if private.count_dispatch_modes() else None
        if device is None or device.type != DEVICE_TYPE:
            return make(*arguments, **named)
        with private.without_dispatch_modes():
            made = make(*arguments, **{**named, "device": device})
        lifted: torch.Tensor = torch.ops.aten.lift_fresh.default(made)
        return lifted

    return wrapped


def _find_device(arguments: Any, named: Any) -> Optional[torch.device]:
    """Return where a tensor of Python numbers is to be; ``None`` for one of another tensor, which is a copy and works."""
    given = [*arguments, *(named[name] for name in ("data", "obj") if name in named)]
    if len(given) > 1 and isinstance(given[0], torch.Tensor):  # new_tensor
        data, device = given[1], given[0].device
    else:
        data, device = given[0] if given else None, torch.get_default_device()
    return None if isinstance(data, torch.Tensor) else torch.device(named.get("device") or device)
