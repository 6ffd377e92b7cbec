"""The tensors that are alive, by size, with the names that people know them by: what fills a memory that is full."""

from __future__ import annotations

import gc
import os
from types import FrameType
from typing import Dict, Iterator, List, NamedTuple, Sequence, Tuple

import torch

from precflow.agent.contract import join_names
from precflow.agent.script.models import list_optimizers
from precflow.agent.session.user_code import is_user_code


class Alive(NamedTuple):
    """A tensor that stands for its storage, and the bytes of that."""

    tensor: torch.Tensor
    size: int


def list_alive(kind: str) -> List[Alive]:
    """Return one tensor for each storage on the devices of a type, the largest first.

    What autograd alone holds for backward has no object in Python and is not seen.
    """
    gc.unfreeze()  # what is frozen, such as the model, is not listed
    storages: Dict[int, Alive] = {}
    for each in gc.get_objects():
        if not issubclass(type(each), torch.Tensor) or each.device.type != kind or each.layout != torch.strided:
            continue
        storage = each.untyped_storage()
        try:
            place = storage.data_ptr() if storage.nbytes() else 0
        except RuntimeError:  # a stand-in without memory, such as the compiler's FakeTensor
            continue
        if place and place not in storages:
            storages[place] = Alive(each, storage.nbytes())
    return sorted(storages.values(), key=lambda alive: -alive.size)


def name_alive(tensors: Sequence[Alive], tops: Sequence[Tuple[str, torch.nn.Module]], frames: Sequence[FrameType]) -> List[str]:
    """Return a name for each: weight or gradient of a model, state of an optimizer, or the variable of user code that holds it.

    Args:
        tensors: The tensors.
        tops: The models, by the name that stands before those of their modules.
        frames: Of the traceback.
    """
    known: Dict[int, str] = {}
    for tensor, name in (*_list_of_models(tops), *_list_of_optimizers(tops), *_list_of_variables(frames)):
        if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
            known.setdefault(tensor.untyped_storage().data_ptr(), name)
    return [known.get(each.tensor.untyped_storage().data_ptr(), "held by no variable of yours") for each in tensors]


def _list_of_models(tops: Sequence[Tuple[str, torch.nn.Module]]) -> Iterator[Tuple[object, str]]:
    for prefix, top in tops:
        for name, weight in top.named_parameters():
            yield weight, "weight %s" % join_names(prefix, name)
            yield weight.grad, "gradient of %s" % join_names(prefix, name)
        for name, buffer in top.named_buffers():
            yield buffer, "buffer %s" % join_names(prefix, name)


def _list_of_optimizers(tops: Sequence[Tuple[str, torch.nn.Module]]) -> Iterator[Tuple[object, str]]:
    names = {id(weight): join_names(prefix, name) for prefix, top in tops for name, weight in top.named_parameters()}
    for optimizer in list_optimizers():
        for weight, state in optimizer.state.items():
            for key, value in state.items() if isinstance(state, dict) else ():
                yield value, "%s of %s in %s" % (key, names.get(id(weight), "a weight"), type(optimizer).__name__)


def _list_of_variables(frames: Sequence[FrameType]) -> Iterator[Tuple[object, str]]:
    """Yield the variables of user code, those of the innermost function first."""
    for frame in reversed(frames):
        code = frame.f_code
        if is_user_code(code.co_filename):
            for name, value in frame.f_locals.items():
                yield value, "%s in %s (%s)" % (name, code.co_name, os.path.basename(code.co_filename))
