"""Bringing a model and its inputs into the side's element type and onto its device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from precflow.agent.failures import AgentError

if TYPE_CHECKING:
    import torch

DTYPES = ("float64", "float32", "float16", "bfloat16")


def element_type(name: str) -> torch.dtype:
    """Return torch's element type for a name in a recipe.

    Raises:
        AgentError: ``unsupported``: a model cannot be cast to it.
    """
    import torch

    if name not in DTYPES:
        raise AgentError("unsupported", "dtype %r; a model can be run in %s" % (name, ", ".join(DTYPES)))
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def place_model(model: torch.nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    """Cast floating parameters and buffers on the CPU, then move everything: a device's own casts are not involved."""
    model.to(dtype=dtype)
    model.to(device=device)


def placed(value: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """Return nested inputs with every tensor copied, cast (where it is floating) and moved; the originals stay."""

    def place(tensor: torch.Tensor) -> torch.Tensor:
        """Cast and move one tensor; it is never the original, which the model may write to."""
        cast = tensor.detach().to(dtype) if tensor.is_floating_point() else tensor.detach()
        return (cast.clone() if cast.data_ptr() == tensor.data_ptr() else cast).to(device)

    return mapped(value, place)


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return nested inputs with every tensor changed."""
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return type(value)({key: mapped(item, change) for key, item in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[mapped(item, change) for item in value])
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(item, change) for item in value)
    return value
