"""The reference's inputs, given to parts of a model in place of those that the run has made itself.

A part that is wrong although it was given the same is to blame; one that is wrong with its own inputs alone inherits. The file
``inputs.json`` says where the reference's inputs lie::

    {"inputs": [{"module": "unet", "call": 0, "tensors": [T, ...]}, ...]}

T is a tensor as in :mod:`precflow.agent.replay.calls`, with the path that capture gives to an argument as its index.
"""

from __future__ import annotations

import functools
from contextlib import ExitStack, contextmanager
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from torch._C import DisableTorchFunction

from precflow.agent import intake
from precflow.agent.capture.arguments import Signatures, split_arguments
from precflow.agent.failures import AgentError
from precflow.agent.replay.calls import CannotCompute, StoredTensor, TensorFiles, parse_tensors
from precflow.agent.session.workload_model import map_tensors

_OFTEN = "a part is a module that both sides call equally often"
_AGAIN = "the judge writes this file: run its stage again"


@contextmanager
def give_inputs(path: str, model: torch.nn.Module) -> Iterator[None]:
    """Give the parts that a file names the inputs that it holds, while the block runs; without a file nothing is given.

    Each tensor is cast to the type of the one that it replaces, and moved to its device.

    Args:
        path: The file; ``""`` for none.
        model: The model.

    Raises:
        AgentError: ``bad_request``: the file cannot be read, or holds something else. ``workload``: a part takes other tensors
            than the reference's did, or a call of one was not reached.
    """
    if not path:
        yield
        return
    given = _GivenInputs(_read(path))
    modules = dict(model.named_modules())
    missing = sorted(given.parts - modules.keys())
    if missing:
        raise AgentError("workload", "workload.parts: the model has no %s" % ", ".join(missing))
    with ExitStack() as undo:
        for name in sorted(given.parts):  # before the hooks of capture, so that these see what a part is given
            hook = functools.partial(given.give, name)
            undo.callback(modules[name].register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield
    given.check_all_met()


class _GivenInputs:
    """Replaces the inputs of parts.

    Args:
        stored: Part and number of its call -> path of an argument -> the reference's tensor.
    """

    def __init__(self, stored: Mapping[Tuple[str, int], Mapping[str, StoredTensor]]) -> None:
        self.parts = {part for part, _ in stored}
        self._stored = stored
        self._files = TensorFiles()
        self._signatures = Signatures()
        self._entered: Dict[str, int] = dict.fromkeys(self.parts, 0)

    def give(
        self, name: str, module: torch.nn.Module, positional: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
        """Return the arguments of a call with the reference's tensors in them."""
        number = self._entered[name]
        stored = self._stored.get((name, number))
        self._entered[name] += 1
        if stored is None:
            message = "workload.parts: %s is called more often than on the reference (%d times)"
            raise AgentError("workload", message % (name, number), _OFTEN)
        own, _ = split_arguments(positional, keywords, self._signatures.parameter_names(module.forward)[1:])
        replaced = {id(tensor): self._read_for(name, index, tensor, stored.get(index)) for index, tensor in own}

        def replace(tensor: torch.Tensor) -> torch.Tensor:
            """Return what stands in the place of a tensor."""
            return replaced.get(id(tensor), tensor)

        return map_tensors(tuple(positional), replace), map_tensors(dict(keywords), replace)

    def _read_for(self, name: str, index: str, own: torch.Tensor, stored: Optional[StoredTensor]) -> torch.Tensor:
        """Return the reference's tensor in the type and on the device of the one that it replaces."""
        if stored is None or stored.shape != tuple(own.shape):
            theirs = "none" if stored is None else "one of shape %s" % list(stored.shape)
            message = "workload.parts: %s takes tensor %s of shape %s, the reference's takes %s"
            raise AgentError("workload", message % (name, index, list(own.shape), theirs))
        try:
            with DisableTorchFunction(), torch.no_grad():
                return self._files.read(stored).clone().to(own.dtype).to(own.device)
        except CannotCompute as error:
            raise AgentError("workload", "the reference's input of %s: %s" % (name, error)) from error

    def check_all_met(self) -> None:
        """Refuse a run in which a part was called less often than on the reference.

        Raises:
            AgentError: ``workload``.
        """
        less = sorted(name for name, times in self._entered.items() if (name, times) in self._stored)
        if less:
            message = "workload.parts: %s is called less often than on the reference" % ", ".join(less)
            raise AgentError("workload", message, _OFTEN)


def _read(path: str) -> Dict[Tuple[str, int], Dict[str, StoredTensor]]:
    try:
        plain = intake.read_json(path)
        found: Dict[Tuple[str, int], Dict[str, StoredTensor]] = {}
        for each in plain["inputs"]:
            tensors: List[StoredTensor] = list(parse_tensors(each["tensors"]))
            found[str(each["module"]), int(each["call"])] = {tensor.index: tensor for tensor in tensors}
    except OSError as error:
        raise AgentError("bad_request", "cannot read %s: %s" % (path, error.strerror), _AGAIN) from error
    except (KeyError, TypeError, ValueError) as error:
        message = "%s holds no inputs: %s %s" % (path, type(error).__name__, error)
        raise AgentError("bad_request", message, _AGAIN) from error
    return found
