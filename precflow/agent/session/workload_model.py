"""The workload of a request: its model and inputs, built and hashed on the CPU, then brought to the side's device."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import inspect
from itertools import chain
from typing import TYPE_CHECKING, Any, Callable, Collection, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

import torch
from torch._C import DisableTorchFunction

from precflow.agent.capture.nesting import leaves
from precflow.agent.capture.wrappers import unwrap
from precflow.agent.contract import join_names
from precflow.agent.failures import AgentError
from precflow.agent.measure.content_id import add_digest, content_id, dtype_name, has_plain_bytes
from precflow.agent.session import determinism, faults, precision, rank_group
from precflow.agent.workloads import resolve

if TYPE_CHECKING:
    from precflow.agent.devices.protocol import Device
    from precflow.agent.events import Events
    from precflow.agent.request import PrecisionSection, Request
    from precflow.agent.session.random_numbers import RandomNumbers

DTYPES = ("float64", "float32", "float16", "bfloat16")
_SHOWN = 8  # names of modules that a message lists
_NARROWER = {  # the types that weights are cast to
    torch.float64: (torch.float32, torch.bfloat16, torch.float16),
    torch.float32: (torch.bfloat16, torch.float16),
}


class RunContext(NamedTuple):
    """What a workload runs with: the request, the started device and torch's name for it, events, and random numbers."""

    request: Request
    device: Device
    where: torch.device
    events: Events
    numbers: RandomNumbers


class Workload(NamedTuple):
    """A model and its inputs, ready to run.

    Attributes:
        model: On its device, in its element type and mode.
        inputs: Keyword arguments of its forward, on the CPU as the factory made them.
        weight_hashes: ``digest`` and ``entries`` of the parameters and buffers, before cast and move.
        input_hashes: The same of the inputs.
        dropouts: Names of the modules whose dropout was removed and would have acted.
        redrawn: Names of the weights that an emulated fault has drawn anew on the device.
        buffers: Copies of the buffers, ``None`` for those that are only declared: each run starts from this state.
        trained: Copies of the parameters on the CPU, for the same reason, if the workload trains them.
        float32_modules: Names of the modules that mixed precision keeps in float32.
        mixed_precision: Section of the request.
        uncast: Name of a parameter or buffer -> its tensor before cast and move, of the modules that were asked for.
    """

    model: torch.nn.Module
    inputs: Dict[str, Any]
    weight_hashes: Dict[str, Any]
    input_hashes: Dict[str, Any]
    dropouts: List[str]
    redrawn: List[str]
    buffers: Dict[str, Optional[torch.Tensor]]
    trained: Dict[str, torch.Tensor]
    float32_modules: List[str]
    mixed_precision: PrecisionSection
    uncast: Mapping[str, torch.Tensor]

    def copy_inputs(self, dtype: torch.dtype, device: torch.device) -> Dict[str, Any]:
        """Return fresh inputs on the device: a model may write to those it gets.

        Args:
            dtype: The run's type; at level O2 of mixed precision they have the 16-bit type in its place.
            device: The device.
        """
        dtype = precision.input_type(self.mixed_precision, dtype)
        return {name: copy_to(value, dtype, device) for name, value in self.inputs.items()}

    def restore(self) -> None:
        """Put weights and buffers back to their state before the first forward; buffers that were added since are removed."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.grad = None
                if name in self.trained:
                    parameter.copy_(self.trained[name])
            for module, key, name in _list_buffers(self.model):
                if name not in self.buffers:
                    delattr(module, key)
                    continue
                current, original = module._buffers[key], self.buffers[name]  # noqa: SLF001  setattr would delete the buffer for None
                if (
                    current is not None
                    and original is not None
                    and (current.shape, current.dtype, current.device) == (original.shape, original.dtype, original.device)
                ):
                    current.copy_(original)  # the same object: other modules may hold it
                else:
                    module._buffers[key] = _copy_buffer(original)  # noqa: SLF001  the same


def prepare(run: RunContext, *, hashed: bool = True, uncast: Collection[str] = ()) -> Workload:
    """Build the workload, hash weights and inputs, cast the model and move it to the device.

    Weights are hashed before cast and move: then both sides have the same hashes whatever their element type.

    Args:
        run: What it runs with.
        hashed: Whether weights and inputs are hashed. A run that is only compared with another run of the same side needs no
            hashes, and those of a large model take as long as building it.
        uncast: Names of modules whose weights are kept as they were before the cast.

    Raises:
        AgentError: ``workload`` if a factory returns something else than it should, ``bad_request``, ``untrusted``,
            ``unsupported``. Exceptions of the user's factory itself pass through.
    """
    request, events = run.request, run.events
    dtype = element_type(request.dtype)
    rank_group.join(request, run.device)
    determinism.reseed(request.determinism, run.device)
    with events.time_part("model", "building the model"), run.numbers:
        model = build_model(request)
        devices = sorted({tensor.device.type for tensor in (*model.parameters(), *model.buffers())} - {"cpu"})
        if devices:
            message = "workload.model: %s returned a model on %s" % (_section(request, "model")["_target_"], ", ".join(devices))
            raise AgentError("workload", message, "build it on the CPU: precflow hashes the weights, casts them and moves them")
        _refuse_unknown_parts(request.parts, model)
        inputs = build_inputs(request, model)
    with events.time_part("weights", "reading the weights"):
        faults.refuse_misplaced(request, [model])
        redrawn = faults.redraw(request, model)
        weight_hashes = hash_weights(model) if hashed else add_digest({})
        # Several ranks find out by the hashes whether they were given the same.
        input_hashes = hash_inputs(inputs) if hashed or request.ranks > 1 else add_digest({})
        inputs, input_hashes = rank_group.share_inputs(request, inputs, input_hashes)
    with events.time_part("move", "casting to %s and moving to %s" % (request.dtype, run.device.kind)):
        model.train(request.workload.get("mode", "eval") == "train")
        removed = determinism.remove_dropout(model) if request.determinism.dropout == "removed" else {}
        dropouts = [name for name, module in removed.items() if module.training]  # in evaluation none would have acted
        kept = _list_tensors(model, uncast)
        place_model(model, dtype, run.where)
        float32_modules = precision.cast_model(request.mixed_precision, model, run.where)
        run.device.synchronize()
        buffers = {name: _copy_buffer(module._buffers[key]) for module, key, name in _list_buffers(model)}  # noqa: SLF001  has None too
        parameters = model.named_parameters() if request.workload.get("optimizer") else ()
        trained = {name: parameter.detach().cpu().clone() for name, parameter in parameters}
    return Workload(
        model,
        inputs,
        weight_hashes,
        input_hashes,
        dropouts,
        redrawn,
        buffers,
        trained,
        float32_modules,
        run.request.mixed_precision,
        kept,
    )


def _list_tensors(model: torch.nn.Module, modules: Collection[str]) -> Dict[str, torch.Tensor]:
    """Return the parameters and buffers inside modules by name, a tied one by each of its names.

    A cast gives a parameter other memory; what is returned here stays what it is.
    """
    both = (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    named = ((join_names("", name), tensor) for name, tensor in chain(*both)) if modules else ()
    return {name: tensor.detach() for name, tensor in named if any(name.startswith(module + ".") for module in modules)}


def _list_buffers(model: torch.nn.Module) -> List[Tuple[torch.nn.Module, str, str]]:
    """Return ``(module, name in the module, name in the model)`` of every buffer, including those that are ``None``."""
    return [
        (module, key, "%s.%s" % (prefix, key) if prefix else key)
        for prefix, module in model.named_modules()
        for key in list(module._buffers.keys())  # noqa: SLF001  named_buffers leaves None out
    ]


def _copy_buffer(buffer: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
    return None if buffer is None else buffer.detach().clone()


# Building


def build_model(request: Request) -> torch.nn.Module:
    """Return the model that the workload's model factory builds.

    Raises:
        AgentError: ``workload``: it is no model. ``bad_request``, ``untrusted``. Exceptions of the factory itself pass through.
    """
    spec = _section(request, "model")
    model = resolve.build(spec, key="workload.model", trusted=request.trusted)
    if not isinstance(model, torch.nn.Module):
        message = "workload.model: %s returned a %s; expected a torch.nn.Module" % (spec["_target_"], type(model).__name__)
        raise AgentError("workload", message)
    return model


def _refuse_unknown_parts(parts: Collection[str], model: torch.nn.Module) -> None:
    """Refuse names of parts that the model does not have, before anything is run.

    Raises:
        AgentError: ``workload``; the next step has the list with the nearest names.
    """
    modules = sorted(
        filter(None, (join_names("", name) for name, _ in model.named_modules())), key=lambda name: name.count(".")
    )
    unknown = [part for part in parts if part not in modules]
    if not unknown:
        return
    shown = ", ".join(modules[:_SHOWN]) + (
        ", and %d more inside them" % (len(modules) - _SHOWN) if len(modules) > _SHOWN else ""
    )
    first = {id(module): join_names("", name) for name, module in model.named_modules()}
    every = model.named_modules(remove_duplicate=False)
    other = {join_names("", name): first[id(module)] for name, module in every}  # of a module with two names, the second
    near = {part: [other[part]] if part in other else difflib.get_close_matches(part, modules, 1) for part in unknown}
    message = "workload.parts: the model has no module %s; it has %s" % (", ".join(unknown), shown or "none")
    same = ["%s is %s by another name" % (part, other[part]) for part in unknown if part in other]
    corrected = "workload.parts=[%s]" % ",".join(dict.fromkeys((near.get(part) or [part])[0] for part in parts))
    step = corrected if all(near.values()) else "name modules of the model, or leave workload.parts out"
    raise AgentError("workload", "workload.parts: %s" % "; ".join(same) if len(same) == len(unknown) else message, step)


def build_inputs(request: Request, model: torch.nn.Module) -> Dict[str, Any]:
    """Return the inputs that the workload's inputs factory makes, by name.

    A tuple gets the names of the forward's parameters, so that records have the same names on every side.

    Raises:
        AgentError: ``workload``: it is no dict and no tuple, or does not fit the forward. ``bad_request``, ``untrusted``.
            Exceptions of the factory itself pass through.
    """
    spec = _section(request, "inputs")
    inputs = resolve.build(spec, key="workload.inputs", trusted=request.trusted)
    if isinstance(inputs, Mapping):
        return {str(name): value for name, value in inputs.items()}
    if not isinstance(inputs, (tuple, list)):
        message = "workload.inputs: %s returned a %s" % (spec["_target_"], type(inputs).__name__)
        raise AgentError("workload", message, "return a dict of keyword arguments of the model's forward, or a tuple")
    try:
        return dict(inspect.signature(unwrap(model).forward).bind(*inputs).arguments)
    except TypeError as error:
        raise AgentError("workload", "workload.inputs: the tuple does not fit the model's forward: %s" % error) from error


def _section(request: Request, part: str) -> Dict[str, Any]:
    spec = request.workload.get(part)
    return spec if isinstance(spec, dict) else {}


# Casting and moving


def element_type(name: str) -> torch.dtype:
    """Return torch's element type for a name in a recipe.

    Raises:
        AgentError: ``unsupported``: a model cannot be cast to it.
    """
    if name not in DTYPES:
        raise AgentError("unsupported", "dtype %r; a model can be run in %s" % (name, ", ".join(DTYPES)))
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def place_model(model: torch.nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    """Cast floating parameters and buffers on the CPU, then move everything: casts of the device itself play no part."""
    model.to(dtype=dtype)
    model.to(device=device)


def copy_to(value: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """Return nested inputs with every tensor copied, cast (if it is floating) and moved. The originals do not change."""

    def copy_tensor(tensor: torch.Tensor) -> torch.Tensor:
        """Cast and move one tensor; the result never shares the original's memory, since the model may write to it."""
        cast = tensor.detach().to(dtype) if tensor.is_floating_point() else tensor.detach()
        return (cast.clone() if cast.data_ptr() == tensor.data_ptr() else cast).to(device)

    return map_tensors(value, copy_tensor)


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return nested inputs with a function applied to every tensor."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return type(value)({key: map_tensors(item, change) for key, item in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named tuple takes its fields one by one
        return type(value)(*[map_tensors(item, change) for item in value])
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(item, change) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):  # what a model returns may be one
        changed = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(changed, field.name, map_tensors(getattr(value, field.name, None), change))
        return changed
    return value


# Hashing


def hash_weights(model: torch.nn.Module, *, rounded: bool = False) -> Dict[str, Any]:
    """Return ``digest`` and ``entries`` of all parameters and buffers; a tied weight has its first name.

    Args:
        model: The model.
        rounded: Add the content id that each has after rounding to a type of fewer bits, for models that others build and
            cast: the same weights in another type are then known by their ids, whatever else is kept.
    """
    written = unwrap(model)
    named = [(join_names("", name), each) for name, each in chain(written.named_parameters(), written.named_buffers())]
    hashes = _hash_tensors(named)
    for name, tensor in named if rounded else ():
        ids = _hash_rounded(tensor)
        if ids:
            hashes["entries"][name]["rounded"] = ids
    return hashes


def hash_inputs(inputs: Any, path: str = "") -> Dict[str, Any]:
    """Return ``digest`` and ``entries`` of all tensors in the nested inputs; names are paths such as ``images.0``.

    Args:
        inputs: Nested tensors.
        path: What all names begin with, such as ``step0``.
    """
    return _hash_tensors((name, leaf) for name, leaf in leaves(inputs, path) if isinstance(leaf, torch.Tensor))


def _hash_rounded(tensor: torch.Tensor) -> Dict[str, str]:
    """Return type -> content id of a tensor after rounding to that type; empty if it has fewer than 32 bits."""
    if tensor.dtype not in _NARROWER or not has_plain_bytes(tensor):
        return {}
    with DisableTorchFunction(), torch.no_grad():
        return {dtype_name(dtype): content_id(tensor.to(dtype)) for dtype in _NARROWER[tensor.dtype]}


def _hash_tensors(named: Iterable[Tuple[str, torch.Tensor]]) -> Dict[str, Any]:
    return add_digest(
        {
            name: {"content": content_id(tensor), "dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape)}
            for name, tensor in named
        }
    )
