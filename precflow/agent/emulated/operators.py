"""Registers the kernels of the device: the fallback for nearly all operators, a kernel of its own for a handful."""

from __future__ import annotations

import functools
import warnings
from typing import Any, Iterator, List, Optional, Sequence

import torch

from precflow.agent.emulated import autocast, fallback, private
from precflow.agent.emulated.relabel import adopt, is_emulated, to_host

_KEY = "PrivateUse1"
_OWN = frozenset(
    "copy_ resize_ _copy_from record_stream _softmax _log_softmax _has_compatible_shallow_copy_type".split()
)  # never taken over by the fallback
_libraries: List[Any] = []  # keeps the libraries alive: when one is garbage-collected, its kernels are unregistered


def install() -> None:
    """Register all kernels of the device."""
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(fallback.run, _KEY)
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")  # torch registers no fallback for this key
    aten = torch.library.Library("aten", "IMPL")
    _libraries.extend((everything, aten))
    with warnings.catch_warnings():
        # torch warns once for every kernel that replaces one of its own, and these are meant to.
        warnings.filterwarnings("ignore", message="(?s).*[Oo]verrid")
        for name, operator in _decomposed_elsewhere():
            aten.impl(name, functools.partial(fallback.run, operator), _KEY)
        _install_own(aten)
        autocast.install(aten)


def _decomposed_elsewhere() -> Iterator[Any]:
    """Yield the operators that have both a CPU kernel and a composite one.

    For a composite operator torch would prefer the composite kernel to the fallback. ``layer_norm`` would then be computed by
    other operators than on the CPU, and its bits would differ.
    """
    has = private.has_kernel
    for qualified in private.all_operator_names():
        space, _, name = qualified.partition("::")
        packet, _, overload = name.partition(".")
        if space != "aten" or packet in _OWN or not has(qualified, "CPU"):
            continue
        if has(qualified, "CompositeExplicitAutograd") or has(qualified, "CompositeExplicitAutogradNonFunctional"):
            yield name, getattr(getattr(torch.ops.aten, packet), overload or "default")


def _install_own(aten: Any) -> None:
    aten.impl("_copy_from", _copy_from, _KEY)
    for lazy in ("Conjugate", "Negative"):  # torch's kernels of these keys would call ``_copy_from`` again, without end
        aten.impl("_copy_from", torch.library.fallthrough_kernel, lazy)
    aten.impl("resize_", _resize, _KEY)
    aten.impl("record_stream", lambda _tensor, _stream: None, _KEY)  # every operator is done when it returns
    # torch_npu says the same. Module.to then moves parameters in place: tied weights stay tied, and an optimizer that was
    # made before the move keeps training them.
    aten.impl("_has_compatible_shallow_copy_type", lambda _tensor, _source: True, _KEY)
    aten.impl("convolution_overrideable", functools.partial(fallback.run, torch.ops.aten.convolution.default), _KEY)
    aten.impl("convolution_backward_overrideable", _convolution_backward, _KEY)
    aten.impl("_softmax", functools.partial(_softmax, private.softmax), _KEY)
    aten.impl("histc", _histogram, _KEY)
    aten.impl("_log_softmax", functools.partial(_softmax, private.log_softmax), _KEY)
    # LSTM and GRU: the decompositions that torch keeps for devices without a kernel of their own.
    for name, kernel in private.recurrent_kernels:
        for key in (_KEY, "AutogradPrivateUse1"):
            aten.impl(name, kernel, key)


def _copy_from(source: torch.Tensor, destination: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:  # noqa: ARG001, FBT001, FBT002  the schema's signature
    host = to_host(source) if is_emulated(source) else source
    (to_host(destination) if is_emulated(destination) else destination).copy_(host)
    return destination


def _resize(tensor: torch.Tensor, size: Sequence[int], memory_format: Any = None) -> torch.Tensor:  # noqa: ARG001  the schema's signature
    if list(tensor.shape) != list(size):
        adopt(tensor, to_host(tensor).clone().resize_(size))
    return tensor


def _softmax(operator: Any, tensor: torch.Tensor, dim: int, half_to_float: bool) -> Any:  # noqa: FBT001  the schema's signature
    """Convert to float32 first if ``half_to_float`` is set: the CPU has no kernel that reads half and writes float32."""
    return fallback.run(operator, tensor.float() if half_to_float else tensor, dim, False)  # noqa: FBT003  the schema's signature


def _histogram(tensor: torch.Tensor, bins: int = 100, low: Any = 0, high: Any = 0) -> Any:
    """Count whole numbers too, as CUDA and NPU do and the CPU does not: transformers counts the tokens of each expert so."""
    whole = not tensor.dtype.is_floating_point
    counts = fallback.run(torch.ops.aten.histc.default, tensor.double() if whole else tensor, bins, low, high)
    return counts.to(tensor.dtype) if whole else counts


def _convolution_backward(  # noqa: PLR0913, PLR0917  the schema's signature
    gradient: torch.Tensor,
    tensor: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,  # noqa: FBT001  the schema's signature
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    outputs = weight.shape[1] * groups if transposed else weight.shape[0]
    bias_sizes: Optional[List[int]] = [outputs] if wanted[2] else None
    rest = (stride, padding, dilation, transposed, output_padding, groups, wanted)
    return fallback.run(torch.ops.aten.convolution_backward.default, gradient, tensor, weight, bias_sizes, *rest)
