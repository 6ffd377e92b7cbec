"""What went into a run, as content ids by name: weights before any cast or move, inputs before any cast."""

from __future__ import annotations

import hashlib
from itertools import chain
from typing import TYPE_CHECKING, Any, Dict, Iterable, Mapping, Tuple

from precflow.agent.capture.nesting import leaves
from precflow.agent.contract import DIGEST_SIZE
from precflow.agent.digest import content_id, dtype_name

if TYPE_CHECKING:
    import torch


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
