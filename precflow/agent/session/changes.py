"""What a run changed in what it ran, for the header of its dump: what did change, and not what was asked for.

A fault may sit in exactly what a recipe takes away. Dropout that is taken out of a model in evaluation mode, or draws that are
moved where nothing draws, changed nothing and are not listed.
"""

from __future__ import annotations

import gc
import sys
import types
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Sequence

import torch

from precflow.agent.contract import CHANGES
from precflow.agent.session import determinism

if TYPE_CHECKING:
    from precflow.agent.devices.protocol import Device
    from precflow.agent.request import DeterminismSection, Request

_SHOWN = 20  # places of each change that the header names; all are counted
_COMPILER = "torch._dynamo"


class Seeds:
    """Tells whether anything was drawn from the seeds that the recipe has set.

    Args:
        settings: Section of the request. Without a seed nothing was set.
        device: Its generator is looked at, beside those of Python, NumPy and torch.
    """

    def __init__(self, settings: DeterminismSection, device: Device) -> None:
        self._seed, self._device = settings.seed, device
        self._start: Dict[str, str] = {}

    def begin(self) -> None:
        """Note the generators, right after they were seeded."""
        self._start = {} if self._seed is None else determinism.read_generators(self._device)

    def find_used(self) -> List[str]:
        """Return the names of the generators that have moved since."""
        now = determinism.read_generators(self._device) if self._start else {}
        return [name for name, state in self._start.items() if now.get(name) != state]


class Changed(NamedTuple):
    """What capture has changed in what ran.

    Attributes:
        redrawn: Names of the weights that an emulated fault drew anew.
        dropouts: Names of the modules whose dropout was removed and would have acted.
        functional_dropouts: Lines of user code where calls of functional dropout were removed.
        draws: Draws of random numbers, as the header has them.
        seeded: Generators that drew from the seed of the recipe.
        more: Further changes with their counts; those that count nothing are left out.
    """

    redrawn: Sequence[str] = ()
    dropouts: Sequence[str] = ()
    functional_dropouts: Sequence[str] = ()
    draws: Sequence[Mapping[str, Any]] = ()
    seeded: Sequence[str] = ()
    more: Mapping[str, int] = {}


def list_changes(request: Request, changed: Changed, facts: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """Return what was changed in a run: ``what`` (of ``contract.CHANGES``), ``count`` and ``places``, in that order.

    Args:
        request: The request; a change that it did not ask for was made by nobody.
        changed: What was changed.
        facts: The environment as it was read after the run: a switch that the workload has turned back is no change.
    """
    settings = request.determinism
    moved = [draw["operator"] for draw in changed.draws if draw["moved"]]
    switched = settings.algorithms != "native" and facts["switches"]["deterministic_algorithms"] == "True"
    found: Dict[str, Sequence[str]] = {
        "dropout": [*changed.dropouts, *changed.functional_dropouts],
        "draws": moved,
        "seeds": changed.seeded,
        "algorithms": [settings.algorithms] if switched else [],
    }
    listed = {what: {"what": what, "count": len(places), "places": list(places[:_SHOWN])} for what, places in found.items()}
    listed.update({what: {"what": what, "count": count, "places": []} for what, count in changed.more.items()})
    return [listed[what] for what in CHANGES if what in listed and listed[what]["count"]]


def count_compiled() -> int:
    """Return how many functions and modules ``torch.compile`` has wrapped and that are still there.

    Nothing of torch is replaced to see that: the wrappers are looked for among all objects, which takes a tenth of a second.
    """
    if _COMPILER not in sys.modules:
        return 0
    return sum(type(each) is types.FunctionType and _is_compiled(each) for each in gc.get_objects())


def _is_compiled(function: types.FunctionType) -> bool:
    """Tell whether a function is a wrapper of ``torch.compile``; torch wraps others, also the agent's, to keep it out."""
    facts = vars(function)
    if facts.get("_torchdynamo_disable"):
        return False
    if "_is_torch_compile" in facts:
        return bool(facts["_is_torch_compile"])
    inner = facts.get("_torchdynamo_orig_callable")
    if isinstance(getattr(inner, "__self__", None), torch.nn.Module):
        return True
    return inner is not None and not str(getattr(inner, "__module__", "")).startswith("torch.")
