"""Parts of a model that run in a wider type or on another device, while everything around them stays as it is.

That is what somebody does who mends a migrated model: ``text_encoder.to(torch.float32)``, and a cast before and behind it. A
part has its weights raised once, so that a run costs what it would cost then; what it is given and what it returns is cast at
each call. Hooks see the part from outside, with the tensors that its neighbours see.
"""

from __future__ import annotations

import functools
from contextlib import ExitStack, contextmanager
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Tuple

import torch
from torch._C import DisableTorchFunction

from precflow.agent.capture.nesting import leaves
from precflow.agent.contract import WHATIF_KINDS, join_names
from precflow.agent.failures import AgentError
from precflow.agent.session.workload_model import map_tensors

_TYPES = {"float32": torch.float32, "float64": torch.float64}


class _Raised(NamedTuple):
    """How a part runs, and how its neighbours want its tensors."""

    wide: Optional[torch.dtype]
    where: Optional[torch.device]
    narrow: Optional[torch.dtype]  # narrowest of its own weights; None without any
    home: Optional[torch.device]  # of its own weights


def parts_in(value: Any) -> List[str]:
    """Return the names of the modules that a change of kind ``part`` is about.

    Raises:
        AgentError: ``bad_request``: it is not ``{"modules": [...], "dtype": ..., "device": ...}`` with one of both or both.
    """
    wide, where = (value.get("dtype", ""), value.get("device", "")) if isinstance(value, dict) else ("", "")
    known = wide in ("", *_TYPES) and where in ("", *WHATIF_KINDS["device"])
    names = value.get("modules") if isinstance(value, dict) else None
    if not (known and (wide or where) and names and isinstance(names, list) and all(isinstance(name, str) for name in names)):
        message = "a change of kind part is %r; expected names of modules, and a type (%s) or a device (%s)"
        raise AgentError("bad_request", message % (value, ", ".join(_TYPES), ", ".join(WHATIF_KINDS["device"])))
    return [str(name) for name in names]


@contextmanager
def raise_parts(model: torch.nn.Module, value: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Run parts in a wider type or on another device while the block runs; then every module has the very tensors of before.

    Args:
        model: The model.
        value: Names of the parts under ``modules``, a type under ``dtype``, a device under ``device``.
        weights: Name of a parameter or buffer -> its tensor before the model was cast, where there is one: a wide part has its
            weights as they were, and not those that were rounded already.

    Raises:
        AgentError: ``bad_request``: the value is not as above. ``workload``: the model has no such part.
    """
    names, modules = parts_in(value), dict(model.named_modules())
    missing = [name for name in names if name not in modules]
    if missing:
        raise AgentError("workload", "the model has no part %s" % ", ".join(missing))
    wide = _TYPES.get(value.get("dtype", ""))
    where = torch.device(value["device"]) if value.get("device") else None
    made: Dict[int, torch.Tensor] = {}
    with ExitStack() as undo:
        for name in names:
            places = list(_list_places(modules[name]))
            own = [getattr(inner, key) for _, inner, key in places]
            raised = _Raised(wide, where, _find_narrowest(own), own[0].device if own else None)
            for (path, inner, key), tensor in zip(places, own):
                if id(tensor) not in made:  # tied weights stay tied
                    made[id(tensor)] = _raise_weight(tensor, weights.get(join_names(name, path)), raised)
                setattr(inner, key, made[id(tensor)])
                undo.callback(setattr, inner, key, tensor)
            _wrap_forward(modules[name], raised, undo)
        yield


def _list_places(part: torch.nn.Module) -> Iterator[Tuple[str, torch.nn.Module, str]]:
    """Yield ``(name in the part, module, name in the module)`` of every parameter and buffer that holds a tensor."""
    for prefix, module in part.named_modules():
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):  # noqa: SLF001  the public ones leave ties out
            if tensor is not None:
                yield join_names(prefix, key), module, key


def _raise_weight(tensor: torch.Tensor, before: Optional[torch.Tensor], raised: _Raised) -> torch.Tensor:
    """Return a weight as a raised part has it: of a wider type made of what it was before the model was cast."""
    with DisableTorchFunction(), torch.no_grad():
        widens = _is_narrower(tensor.dtype, raised.wide)
        unrounded = before if widens and before is not None and before.shape == tensor.shape else tensor
        dtype = raised.wide if widens and raised.wide is not None else tensor.dtype
        values = unrounded.to(dtype).to(raised.where or tensor.device)
        if values is tensor:
            return tensor
        is_weight = isinstance(tensor, torch.nn.Parameter)
        return torch.nn.Parameter(values, requires_grad=tensor.requires_grad) if is_weight else values


def _wrap_forward(part: torch.nn.Module, raised: _Raised, undo: ExitStack) -> None:
    """Cast what a part is given and what it returns, inside its hooks, until the stack is closed."""
    forward, had_own = part.forward, "forward" in vars(part)

    @functools.wraps(forward)
    def run(*positional: Any, **keywords: Any) -> Any:
        """Run the part on raised inputs, and return its outputs as its neighbours take them."""
        given = [leaf for _, leaf in leaves((positional, keywords)) if isinstance(leaf, torch.Tensor)]
        narrow = _find_narrowest([*given, *([torch.empty(0, dtype=raised.narrow)] if raised.narrow else [])])
        home = raised.home or (given[0].device if given else None)

        def bring(tensor: torch.Tensor) -> torch.Tensor:
            """Return a tensor of the wide type on the other device."""
            dtype = raised.wide if _is_narrower(tensor.dtype, raised.wide) else tensor.dtype
            return tensor.to(device=raised.where or tensor.device, dtype=dtype)

        def send_back(tensor: torch.Tensor) -> torch.Tensor:
            """Return an output as the part itself would have returned it."""
            back = narrow if raised.wide is not None and tensor.dtype == raised.wide and narrow is not None else tensor.dtype
            return tensor.to(device=home if raised.where and home else tensor.device, dtype=back)

        with DisableTorchFunction():  # casts are no calls of the model
            moved, named = map_tensors(tuple(positional), bring), map_tensors(dict(keywords), bring)
        result = forward(*moved, **named)
        with DisableTorchFunction():
            return map_tensors(result, send_back)

    part.forward = run  # not a hook: those of capture see the part from outside
    undo.callback(setattr, part, "forward", forward) if had_own else undo.callback(delattr, part, "forward")


def _is_narrower(dtype: torch.dtype, wide: Optional[torch.dtype]) -> bool:
    return wide is not None and dtype.is_floating_point and torch.finfo(dtype).bits < torch.finfo(wide).bits


def _find_narrowest(tensors: Iterable[torch.Tensor]) -> Optional[torch.dtype]:
    """Return the floating point type of fewest bits; ``None`` without one."""
    kinds = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    return min(kinds, key=lambda dtype: torch.finfo(dtype).bits, default=None)
