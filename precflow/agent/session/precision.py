"""Mixed precision of a workload: which operators and modules run in which type, master weights, and the scale of the loss.

The levels are those of NVIDIA apex. ``O1`` is torch's autocast: weights stay in float32, and each operator runs in the type
that autocast's lists say. ``O2`` casts the whole model but batch norms to 16 bits, and the optimizer holds master weights in
float32. The loss scale follows ``torch.amp.GradScaler``, which is not there on every device and in every torch.
"""

from __future__ import annotations

import functools
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Callable, ContextManager, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from torch._C import DisableTorchFunction
from torch.overrides import TorchFunctionMode

from precflow.agent.capture.operator_names import operator_name
from precflow.agent.contract import DYNAMIC, O1, O2, join_names
from precflow.agent.failures import AgentError

if TYPE_CHECKING:
    from precflow.agent.request import PrecisionSection

_BATCH_NORMS = torch.nn.modules.batchnorm._BatchNorm  # noqa: SLF001  what apex asks for
_STARTS_AT, _GROWTH, _BACKOFF = 65536.0, 2.0, 0.5  # of a dynamic scale, as in torch
_NAMED = 20  # modules that the header lists
_FLOAT32_TYPES = (torch.float16, torch.bfloat16, torch.float32)

Pair = Tuple[torch.Tensor, torch.Tensor]


def low_type(settings: PrecisionSection) -> torch.dtype:
    """Return the 16-bit type of a level."""
    dtype: torch.dtype = getattr(torch, settings.dtype)
    return dtype


def input_type(settings: PrecisionSection, dtype: torch.dtype) -> torch.dtype:
    """Return the type that the model's inputs are cast to: that of the weights."""
    return low_type(settings) if settings.level == O2 else dtype


def run_type(settings: PrecisionSection, dtype: str) -> str:
    """Return the type that a run counts as: limits are those of the 16-bit type if any of it computes in that."""
    return settings.dtype if settings.level else dtype


def cast_model(settings: PrecisionSection, model: torch.nn.Module, where: torch.device) -> List[str]:
    """Cast a model on its device as its level says; return the names of the modules that are kept in float32.

    Raises:
        AgentError: ``unsupported``: the device has no autocast for this type. ``bad_request``: a pattern matches no module.
    """
    if not settings.level:
        return []
    if settings.level == O1:
        _check_autocast(settings, where)
    kept = _choose_float32_modules(settings, model)
    if settings.level == O2:
        inside = {id(part) for module in kept.values() for part in module.modules()}
        for module in model.modules():
            if id(module) not in inside:
                _cast_own(module, low_type(settings))
    for module in kept.values():
        _keep_in_float32(module, settings, where)
    return list(kept)


def computing(settings: PrecisionSection, where: torch.device) -> Iterator[ContextManager[Any]]:
    """Yield the contexts that forward and loss run in."""
    if settings.level == O1:
        yield torch.autocast(where.type, dtype=low_type(settings))
    if settings.operators:
        yield _OperatorTypes(settings.operators, where)


def _check_autocast(settings: PrecisionSection, where: torch.device) -> None:
    """Make sure that products run in the wanted type: torch only warns where it leaves autocast out."""
    one = torch.ones(2, 2, device=where)
    with torch.autocast(where.type, dtype=low_type(settings)):
        found = (one @ one).dtype
    if found != low_type(settings):
        message = "autocast to %s does nothing on %s with torch %s" % (settings.dtype, where.type, torch.__version__)
        raise AgentError("unsupported", message, "mixed_precision.dtype=bfloat16, or a newer torch")


def _choose_float32_modules(settings: PrecisionSection, model: torch.nn.Module) -> Dict[str, torch.nn.Module]:
    """Return the outermost modules that stay in float32: those that match, and batch norms at level O2."""
    named = {join_names("", name): module for name, module in model.named_modules()}
    idle = [pattern for pattern in settings.float32_modules if not any(fnmatchcase(name, pattern) for name in named)]
    if idle:
        message = "mixed_precision.float32_modules: %s matches no module" % ", ".join(idle)
        raise AgentError("bad_request", message, "modules are named %s" % ", ".join(list(named)[1:6]))
    chosen: Dict[str, torch.nn.Module] = {}
    for name, module in named.items():
        matches = any(fnmatchcase(name, pattern) for pattern in settings.float32_modules)
        is_wanted = matches or (settings.level == O2 and isinstance(module, _BATCH_NORMS))
        if is_wanted and not any(name.startswith(outer + ".") for outer in chosen):
            chosen[name] = module
    return chosen


def _cast_own(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Cast the parameters and buffers that a module holds itself, those of its children left alone."""
    for parameter in module.parameters(recurse=False):
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    for key, buffer in list(module._buffers.items()):  # noqa: SLF001  named_buffers leaves None out
        if buffer is not None and buffer.is_floating_point():
            module._buffers[key] = buffer.to(dtype)  # noqa: SLF001  setattr would ask for a registered name


def _keep_in_float32(module: torch.nn.Module, settings: PrecisionSection, where: torch.device) -> None:
    """Let a module compute in float32 and, at level O2, return what the modules around it compute in."""
    forward = module.forward
    back = low_type(settings) if settings.level == O2 else None

    @functools.wraps(forward)
    def widened(*positional: Any, **keywords: Any) -> Any:
        """Run the module's forward in float32."""
        with torch.autocast(where.type, enabled=False):
            result = forward(*_cast(positional, torch.float32), **_cast(keywords, torch.float32))
        return result if back is None else _cast(result, back)

    module.forward = widened  # of this module only


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Return nested values with floating tensors cast; float64 and everything else stay."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype in _FLOAT32_TYPES else value
    if isinstance(value, dict):
        return {key: _cast(item, dtype) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[_cast(item, dtype) for item in value])
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(item, dtype) for item in value)
    return value


class _OperatorTypes(TorchFunctionMode):
    """Runs some torch functions in another type than autocast's lists say.

    Args:
        types: Canonical name of a function -> name of a type.
        where: The device.
    """

    def __init__(self, types: Mapping[str, str], where: torch.device) -> None:
        super().__init__()
        self._types = {name: getattr(torch, dtype) for name, dtype in types.items()}
        self._where = where

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Cast the arguments of a listed function and run it without autocast."""
        dtype = self._types.get(operator_name(func))
        if dtype is None:
            return func(*args, **(kwargs or {}))
        with torch.autocast(self._where.type, enabled=False):
            return func(*_cast(args, dtype), **_cast(kwargs or {}, dtype))


class MasterWeights:
    """Copies of 16-bit weights in float32, which the optimizer trains in their place.

    Args:
        optimizer: Its parameter groups get the copies.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.pairs: List[Pair] = []
        with torch.no_grad(), DisableTorchFunction():
            for group in optimizer.param_groups:
                for number, parameter in enumerate(group["params"]):
                    if parameter.dtype not in (torch.float16, torch.bfloat16):
                        continue
                    master = parameter.detach().clone().float().requires_grad_()
                    group["params"][number] = master
                    self.pairs.append((master, parameter))

    def take_gradients(self) -> None:
        """Give each copy the gradient of its weight."""
        for master, parameter in self.pairs:
            master.grad = None if parameter.grad is None else parameter.grad.detach().float()

    def give_back(self) -> None:
        """Round the copies to the weights that the model computes with."""
        with torch.no_grad():
            for master, parameter in self.pairs:
                parameter.copy_(master)


class LossScale:
    """The factor of the loss; a dynamic one grows until a gradient overflows, and then skips the step.

    Args:
        settings: ``loss_scale`` is ``dynamic`` or a number as text, and ``growth_interval`` the steps after which it doubles.
    """

    def __init__(self, settings: PrecisionSection) -> None:
        self._dynamic = settings.loss_scale == DYNAMIC
        self._interval = settings.growth_interval
        self._good = 0
        self.now = _STARTS_AT if self._dynamic else float(settings.loss_scale or 1.0)
        self.skipped: List[int] = []

    def unscale(self, optimizer: torch.optim.Optimizer) -> bool:
        """Divide the gradients by the scale; return whether the step is to be made. A fixed scale never skips one."""
        finite = True
        with torch.no_grad(), DisableTorchFunction():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.mul_(1.0 / self.now)
                        finite = finite and (parameter.grad.is_meta or bool(torch.isfinite(parameter.grad).all()))
        return finite or not self._dynamic

    def update(self, step: int, *, made: bool) -> None:
        """Change a dynamic scale after a step that was made or skipped."""
        if not made:
            self.skipped.append(step)
        if not self._dynamic:
            return
        self._good = self._good + 1 if made else 0
        if not made:
            self.now *= _BACKOFF
        elif self._good == self._interval:
            self.now, self._good = self.now * _GROWTH, 0


def describe(settings: PrecisionSection, kept: Sequence[str], scale: Optional[LossScale]) -> Dict[str, Any]:
    """Return what was in effect, under ``mixed_precision``, for the facts of the header; nothing without mixed precision.

    Args:
        settings: What was asked for.
        kept: Names of the modules that were kept in float32.
        scale: The loss scale after the last step; ``None`` if nothing was trained.
    """
    if not (settings.level or settings.loss_scale or settings.operators):
        return {}
    more = " and %d more" % (len(kept) - _NAMED) if len(kept) > _NAMED else ""
    facts = {
        "level": settings.level or "none",
        "type": settings.dtype if settings.level else "none",
        "float32_modules": ", ".join(kept[:_NAMED]) + more,
        "operators": ", ".join("%s: %s" % item for item in sorted(settings.operators.items())),
        "loss_scale": settings.loss_scale or "none",
        "loss_scale_at_the_end": 1.0 if scale is None else scale.now,
        "skipped_steps": ", ".join(map(str, scale.skipped)) if scale is not None else "",
    }
    return {"mixed_precision": facts}
