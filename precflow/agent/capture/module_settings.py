"""How modules are set, where no tensor shows it: eps of a norm, the slope of an activation, the smoothing of a loss.

``__constants__`` of a class of ``torch.nn`` name what decides its numbers. Those that shapes of tensors show are left out. A
class of the user's own names nothing, and what it keeps as a float may decide too: ``self.scale`` of an adapter.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, Tuple

import torch
from torch.nn.modules.batchnorm import _NormBase

from precflow.agent.capture.arguments import format_argument
from precflow.agent.contract import OWN_NUMBER

_ELSEWHERE = frozenset(
    "in_features out_features in_channels out_channels num_features num_embeddings embedding_dim normalized_shape num_channels"
    " kernel_size inplace".split()
)
_USUAL = ("eps", "epsilon", "variance_epsilon", "momentum")  # of classes of other libraries, which have no such constant
_MOST = 16  # own numbers of a module
_TYPES = frozenset((bool, int, float, str, tuple))


def read_settings(module: torch.nn.Module) -> Dict[str, str]:
    """Return ``name -> text``; norms with running statistics say whether they are in training mode, too."""
    constants = getattr(type(module), "__constants__", ())
    names = [name for name in constants if name not in _ELSEWHERE]
    settings: Dict[str, str] = {}
    for name in dict.fromkeys((*names, *_USUAL)):
        value = _read(module, name)
        if type(value) in _TYPES:
            settings[name] = format_argument(value)
    if not type(module).__module__.startswith("torch."):
        own = [(name, value) for name, value in _list_own(module) if name not in settings]
        settings.update((OWN_NUMBER + name, format_argument(value)) for name, value in own[:_MOST])
    if isinstance(module, _NormBase):
        settings["training"] = str(module.training)
    return settings


def _list_own(module: torch.nn.Module) -> Iterator[Tuple[str, float]]:
    """Yield the floats that a module keeps itself, or in a dictionary by name: ``scaling = {"default": 2.0}``."""
    for name, value in list(vars(module).items()):
        if name.startswith("_"):
            continue
        if type(value) is float:
            yield name, value
        elif type(value) is dict:
            yield from (
                ("%s.%s" % (name, key), each) for key, each in list(value.items()) if type(key) is str and type(each) is float
            )


def _read(module: torch.nn.Module, name: str) -> Any:
    try:
        return getattr(module, name, None)
    except Exception:  # noqa: BLE001  a property of a user's class can fail in any way, and must not stop the run
        return None
