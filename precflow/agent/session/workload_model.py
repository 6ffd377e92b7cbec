"""The subject of a dump: the workload's model with its inputs, built on the CPU, then brought to the side's device."""

from __future__ import annotations

import hashlib
import inspect
from itertools import chain
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from precflow.agent.capture.nesting import leaves
from precflow.agent.contract import DIGEST_SIZE
from precflow.agent.failures import AgentError
from precflow.agent.measure.content_id import content_id, dtype_name
from precflow.agent.session import determinism, faults
from precflow.agent.workloads import resolve

if TYPE_CHECKING:
    import torch

    from precflow.agent.devices.protocol import Device
    from precflow.agent.events import Events
    from precflow.agent.request import Request
    from precflow.agent.session.random_numbers import RandomNumbers

# Bringing a model and its inputs into the side's element type and onto its device.

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


class Run(NamedTuple):
    """What a dump is made with: the request, the started device, where tensors go on it, events, and draws."""

    request: Request
    device: Device
    where: torch.device
    events: Events
    numbers: RandomNumbers


class Subject(NamedTuple):
    """What is run.

    Attributes:
        model: On its device, in its element type and mode.
        inputs: Keyword arguments of its forward, on the CPU as the factory made them.
        weights: ``digest`` and ``entries`` of the parameters and buffers, before cast and move.
        given: The same of the inputs.
        dropouts: Names of the modules whose dropout was removed.
        redrawn: Names of the weights that an emulated fault drew anew on the device.
        state: Copies of the buffers, ``None`` for those that are declared only, to start each forward from the same state.
        trained: Copies of the parameters on the CPU, where the workload trains them, for the same.
    """

    model: torch.nn.Module
    inputs: Dict[str, Any]
    weights: Dict[str, Any]
    given: Dict[str, Any]
    dropouts: List[str]
    redrawn: List[str]
    state: Dict[str, Optional[torch.Tensor]]
    trained: Dict[str, torch.Tensor]

    def arguments(self, dtype: torch.dtype, device: torch.device) -> Dict[str, Any]:
        """Return fresh inputs on the device: a model may write to the ones it gets."""
        return {name: placed(value, dtype, device) for name, value in self.inputs.items()}

    def restore(self) -> None:
        """Put weights and buffers back to what they were before the first forward, which may have grown or added some."""
        import torch

        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.grad = None
                if name in self.trained:
                    parameter.copy_(self.trained[name])
            for module, key, name in _buffers(self.model):
                if name not in self.state:
                    delattr(module, key)
                    continue
                now = module._buffers[key]  # noqa: SLF001  setattr would take None for no buffer
                before = _put_back(now, self.state[name])
                if before is not now:
                    module._buffers[key] = before  # noqa: SLF001  the same


def prepare(run: Run) -> Subject:
    """Build, hash, cast and move the workload.

    Raises:
        AgentError: ``workload`` where a factory does not give what it should, ``bad_request``, ``untrusted``, ``unsupported``.
            What the user's factory raises itself comes through.
    """
    request, events = run.request, run.events
    dtype = element_type(request.dtype)
    determinism.reseed(request.determinism, run.device)
    with events.time_part("model", "building the model"), run.numbers:
        model = _on_cpu(build_model(request), request)
        inputs = build_inputs(request, model)
    with events.time_part("weights", "reading the weights"):
        redrawn = faults.redraw(request, model)
        weights, given = of_model(model), of_inputs(inputs)
    with events.time_part("move", "casting to %s and moving to %s" % (request.dtype, run.device.kind)):
        model.train(request.workload.get("mode", "eval") == "train")
        dropouts = determinism.remove_dropout(model) if request.determinism.dropout == "removed" else []
        place_model(model, dtype, run.where)
        run.device.synchronize()
        state = {name: _copy(module._buffers[key]) for module, key, name in _buffers(model)}  # noqa: SLF001  None included
        parameters = model.named_parameters() if request.workload.get("optimizer") else ()
        trained = {name: parameter.detach().cpu().clone() for name, parameter in parameters}
    return Subject(model, inputs, weights, given, dropouts, redrawn, state, trained)


def _buffers(model: torch.nn.Module) -> List[Tuple[torch.nn.Module, str, str]]:
    """Return ``(module, name in the module, name in the model)`` of every buffer, those that are ``None`` included."""
    return [
        (module, key, "%s.%s" % (prefix, key) if prefix else key)
        for prefix, module in model.named_modules()
        for key in list(module._buffers.keys())  # noqa: SLF001  named_buffers leaves None out
    ]


def _copy(buffer: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
    return None if buffer is None else buffer.detach().clone()


def _put_back(now: Optional[torch.Tensor], before: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
    """Return the buffer as it was: the same object where it can hold that, because others may know it."""
    if now is None or before is None or (now.shape, now.dtype, now.device) != (before.shape, before.dtype, before.device):
        return _copy(before)
    return now.copy_(before)


def build_model(request: Request) -> torch.nn.Module:
    """Return what the workload's model factory makes.

    Raises:
        AgentError: ``workload``: it is no model. ``bad_request``, ``untrusted``. What the factory raises itself comes through.
    """
    import torch

    spec = _spec(request, "model")
    model = resolve.build(spec, key="workload.model", trusted=request.trusted)
    if not isinstance(model, torch.nn.Module):
        message = "workload.model: %s returned a %s; expected a torch.nn.Module" % (spec["_target_"], type(model).__name__)
        raise AgentError("workload", message)
    return model


def build_inputs(request: Request, model: torch.nn.Module) -> Dict[str, Any]:
    """Return what the workload's inputs factory makes, by the names of the forward's parameters where it makes a tuple.

    Raises:
        AgentError: ``workload``: it is neither, or does not fit the forward. ``bad_request``, ``untrusted``. What the factory
            raises itself comes through.
    """
    made = _inputs(request)
    return made if isinstance(made, dict) else _named(made, model)


def _on_cpu(model: torch.nn.Module, request: Request) -> torch.nn.Module:
    devices = sorted({each.device.type for each in (*model.parameters(), *model.buffers())} - {"cpu"})
    if devices:
        message = "workload.model: %s returned a model on %s" % (_spec(request, "model")["_target_"], ", ".join(devices))
        raise AgentError("workload", message, "build it on the CPU: precflow hashes the weights, casts them and moves them")
    return model


def _inputs(request: Request) -> Any:
    """Return what the inputs factory made: a dict, or a tuple whose names the model's forward tells."""
    spec, tokenizer = _spec(request, "inputs"), request.workload.get("tokenizer", "")
    offered = {"tokenizer": tokenizer} if tokenizer else {}
    made = resolve.build(spec, key="workload.inputs", trusted=request.trusted, **offered)
    if isinstance(made, Mapping):
        return {str(name): value for name, value in made.items()}
    if isinstance(made, (tuple, list)):
        return tuple(made)
    message = "workload.inputs: %s returned a %s" % (spec["_target_"], type(made).__name__)
    raise AgentError("workload", message, "return a dict of keyword arguments of the model's forward, or a tuple")


def _named(values: Tuple[Any, ...], model: torch.nn.Module) -> Dict[str, Any]:
    """Give positional inputs the names of the forward's parameters: records are named alike on every side."""
    try:
        return dict(inspect.signature(model.forward).bind(*values).arguments)
    except TypeError as error:
        raise AgentError("workload", "workload.inputs: the tuple does not fit the model's forward: %s" % error) from error


def _spec(request: Request, part: str) -> Dict[str, Any]:
    spec = request.workload.get(part)
    return spec if isinstance(spec, dict) else {}


# What went into a run, as content ids by name: weights before any cast or move, inputs before any cast.


def of_model(model: torch.nn.Module) -> Dict[str, Any]:
    """Return ``digest`` and ``entries`` of all parameters and buffers; a tied weight has its first name."""
    return _holdings(chain(model.named_parameters(), model.named_buffers()))


def of_inputs(inputs: Mapping[str, Any]) -> Dict[str, Any]:
    """Return ``digest`` and ``entries`` of all tensors in the nested inputs; names are paths such as ``images.0``."""
    import torch

    return _holdings((path, leaf) for path, leaf in leaves(inputs) if isinstance(leaf, torch.Tensor))


def _holdings(named: Iterable[Tuple[str, torch.Tensor]]) -> Dict[str, Any]:
    return joined(
        {
            name: {"content": content_id(tensor), "dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape)}
            for name, tensor in named
        }
    )


def joined(entries: Mapping[str, Mapping[str, Any]]) -> Dict[str, Any]:
    """Return ``digest`` and ``entries``.

    The digest is blake2b-128 over ``name content`` lines, sorted: independent of the order of registration.
    """
    lines = "".join("%s %s\n" % (name, entry["content"]) for name, entry in sorted(entries.items()))
    return {
        "digest": hashlib.blake2b(lines.encode("utf-8", "backslashreplace"), digest_size=DIGEST_SIZE).hexdigest(),
        "entries": entries,
    }
