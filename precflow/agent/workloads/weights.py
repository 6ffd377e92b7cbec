"""Gives models their weights: those of a checkpoint, whose keys must all be accounted for, or seeded ones."""

from __future__ import annotations

import hashlib
import math
import os
from typing import TYPE_CHECKING, Dict, List, Mapping, Sequence

from precflow.agent import intake
from precflow.agent.failures import AgentError
from precflow.agent.workloads.extras import require

if TYPE_CHECKING:
    import torch

_NAMES = ("model.safetensors", "pytorch_model.bin", "diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.bin")
_INDICES = tuple("%s.index.json" % name for name in _NAMES)
_NEXT_STEP = "give a .safetensors file or a from_pretrained folder, as this side sees it"
_NOT_RENAMED: Mapping[str, str] = {}
_SHOWN = 5  # problems that a message lists; of further ones it gives the number


def fill_seeded(model: torch.nn.Module) -> None:
    """Fill all parameters and keep the buffers: the same bits on every machine, whatever the order of the parameters.

    Matrices and convolutions are normal with a variance of one over their inputs, so that sizes neither grow nor vanish from
    layer to layer. Scales are 1 and biases 0, each with a spread of 0.05, so that leaving one out is seen.
    """
    import torch

    for name, parameter in model.named_parameters():
        mean, deviation = (0.0 if name.endswith("bias") else 1.0), 0.05
        if parameter.dim() > 1:
            mean, deviation = 0.0, math.prod(parameter.shape[1:]) ** -0.5
        with torch.no_grad():
            parameter.normal_(mean, deviation, generator=make_generator(name))


def make_generator(name: str) -> torch.Generator:
    """Return a generator on the CPU that depends on torch's seed and a name alone."""
    import torch

    digest = hashlib.blake2b(("%d %s" % (torch.initial_seed(), name)).encode(), digest_size=7).digest()
    return torch.Generator(device="cpu").manual_seed(int.from_bytes(digest, "little"))


def load(
    model: torch.nn.Module,
    path: str,
    *,
    prefixes: Sequence[str] = (),
    ignored: Sequence[str] = (),
    renamed: Mapping[str, str] = _NOT_RENAMED,
) -> None:
    """Copy a checkpoint into a model on the CPU; values are cast to the model's element types.

    Args:
        model: All of its parameters and persistent buffers must be in the checkpoint.
        path: A ``.safetensors`` or ``.bin`` file, or a ``from_pretrained`` folder.
        prefixes: Removed from or added to keys of the checkpoint if that makes them keys of the model.
        ignored: Endings of keys that may be in the checkpoint and not in the model.
        renamed: Parts of keys that older checkpoints have -> what they are called in the model.

    Raises:
        AgentError: ``workload``: no such file, unreadable, keys missing, left over or there twice, other shapes; names
            file, keys and shapes.
    """
    wanted = model.state_dict()
    loaded: Dict[str, torch.Tensor] = {}
    meant: Dict[str, str] = {}  # key of the model -> key of the checkpoint
    for key, value in read(path).items():
        name = _match_key(".".join(renamed.get(part, part) for part in key.split(".")), wanted, prefixes)
        if name in loaded:
            message = "weights %s: both %s and %s are %s of the model" % (path, meant[name], key, name)
            raise AgentError("workload", message, "which one is meant? remove the other from the checkpoint")
        loaded[name], meant[name] = value, key
    misshapen = [key for key in wanted if key in loaded and wanted[key].shape != loaded[key].shape]
    problems = [
        *("%s has shape %s, expected %s" % (key, list(loaded[key].shape), list(wanted[key].shape)) for key in misshapen),
        *("%s is missing" % key for key in wanted if key not in loaded),
        *("%s is not in the model" % key for key in loaded if key not in wanted and not key.endswith(tuple(ignored))),
    ]
    if problems:
        more = " and %d more" % (len(problems) - _SHOWN) if len(problems) > _SHOWN else ""
        message = "weights %s do not fit the model: %s%s" % (path, "; ".join(problems[:_SHOWN]), more)
        raise AgentError(
            "workload", message, "is it a checkpoint of this model? a folder with config.json brings its own sizes"
        )
    model.load_state_dict({key: loaded[key] for key in wanted})


def read(path: str) -> Dict[str, torch.Tensor]:
    """Return all tensors of a checkpoint file, or of every shard of a folder.

    Raises:
        AgentError: ``workload``: missing, truncated or of an unknown kind, or a tensor is in two files.
    """
    tensors: Dict[str, torch.Tensor] = {}
    for file in find_files(os.path.expanduser(path)):
        part = _read_file(file)
        twice = sorted(tensors.keys() & part.keys())
        if twice:
            message = "weights %s: %s is in two of its files, the second is %s" % (path, twice[0], os.path.basename(file))
            raise AgentError("workload", message, "copy the checkpoint again; were two saved into one folder?")
        tensors.update(part)
    return tensors


def find_files(path: str) -> List[str]:
    """Return the files of a checkpoint; safetensors are preferred to pickles.

    Raises:
        AgentError: ``workload``: nothing there, or a folder without weights.
    """
    if os.path.isfile(path):
        return [path]
    if not os.path.isdir(path):
        raise AgentError("workload", "weights %s: no such file or folder" % path, _NEXT_STEP)
    for single, index in zip(_NAMES, _INDICES):
        if os.path.isfile(os.path.join(path, single)):
            return [os.path.join(path, single)]
        if os.path.isfile(os.path.join(path, index)):
            return _read_index(os.path.join(path, index))
    expected = ", ".join((*_NAMES, *_INDICES))
    raise AgentError("workload", "weights %s: the folder has no weights; expected one of %s" % (path, expected), _NEXT_STEP)


def _read_index(index: str) -> List[str]:
    try:
        names = sorted(set(intake.read_json(index)["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AgentError("workload", "weights %s: not an index of shards: %s" % (index, error)) from error
    return [os.path.join(os.path.dirname(index), name) for name in names]


def _read_file(path: str) -> Dict[str, torch.Tensor]:
    import torch

    if not path.endswith((".safetensors", ".bin", ".pt", ".pth")):
        message = "weights %s: unknown kind of file; expected .safetensors, .bin, .pt or .pth" % path
        raise AgentError("workload", message, _NEXT_STEP)
    safetensors = require("safetensors.torch") if path.endswith(".safetensors") else None
    try:
        if safetensors is not None:
            return dict(safetensors.load_file(path))
        return dict(torch.load(path, map_location="cpu", weights_only=True))  # weights_only: a pickle can run any code
    except Exception as error:  # OSError, ValueError, or a class of safetensors, pickle, zip or torch: whatever is broken
        size = "%d bytes" % os.path.getsize(path) if os.path.exists(path) else "missing"
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        message = "weights %s cannot be read (%s): %s" % (path, size, reason)
        step = "is the file complete? compare its size with the source, and copy it again"
        raise AgentError("workload", message, step) from error


def _match_key(key: str, wanted: Mapping[str, object], prefixes: Sequence[str]) -> str:
    """Return the key of the model that a key of the checkpoint means, or the key itself if there is none."""
    candidates = [
        key,
        *(key[len(prefix) :] for prefix in prefixes if key.startswith(prefix)),
        *(prefix + key for prefix in prefixes),
    ]
    return next((name for name in candidates if name in wanted), key)
