"""``data: recorded``: what the reference's script gives to its models is kept, and given to the models of the target.

A batch is exchanged where a model is called. What the script itself compares the output with, such as labels, is exchanged
where that is done, see :mod:`loss_data`. :meth:`Batches.check_loss` makes sure that nothing else is in the loss.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import torch

from precflow.agent import intake
from precflow.agent.capture.nesting import leaves
from precflow.agent.contract import BATCHES_FOLDER, DIGEST_SIZE, DTYPE_OF_SAFETENSORS
from precflow.agent.dump.shard import ShardFile, TensorEntry, storable
from precflow.agent.dump.write_errors import write_error
from precflow.agent.failures import AgentError
from precflow.agent.measure.content_id import has_plain_bytes
from precflow.agent.session.workload_model import map_tensors

_NO_LIMIT = 1 << 62  # bytes: one file holds one call
_KEY = "batch."  # before the name of a tensor: names with a dot get a checksum in the file
_INSTEAD = "leave determinism.data, and let both scripts read the same data in the same order"


class Batches:
    """The batches of one run of a script: kept, or taken from another run.

    Args:
        folder: Folder of a dump: its batches are in a folder of their own.
        feeds: They are there, and given to the models; otherwise they are written.
        rank: Rank of this process.

    Attributes:
        calls: Number of calls of models so far.
        different: Calls among them whose batch was another one than the recorded one.
        losses: Number of losses of which is known that a model has computed them.
        other_data: Tensors that the script computes its losses with, and that were other ones than the recorded.
        problem: Why this cannot be done; it was raised in the script, which may have caught it.
        folder: Where they lie.
        feeds: They are there, and given to the models; otherwise they are written.
    """

    def __init__(self, folder: str, *, feeds: bool, rank: int) -> None:
        self.calls = self.different = self.losses = self.other_data = 0
        self.problem: Optional[AgentError] = None
        self.folder = os.path.join(folder, BATCHES_FOLDER, "rank%d" % rank)
        self.feeds = feeds
        self._made: List[Any] = []  # autograd nodes of what models have returned in this step

    def begin_step(self) -> None:
        """Forget what models have returned in the step before."""
        self._made.clear()

    def exchange(self, step: int, call: int, positional: Sequence[Any], keywords: Dict[str, Any]) -> Optional[Tuple[Any, ...]]:
        """Keep what a model is given, or replace it.

        Args:
            step: Number of the step.
            call: Number of the call in it.
            positional: Arguments of the call.
            keywords: The same by name; replaced in place, because torch gives them to the model as they stand here.

        Returns:
            The new positional arguments; ``None`` if they stay.

        Raises:
            AgentError: ``workload``: it cannot be exchanged.
        """
        given: Dict[Any, Any] = {**dict(enumerate(positional)), **keywords}
        tensors = {path: leaf for path, leaf in leaves(given) if isinstance(leaf, torch.Tensor)}
        place = "call %d of step %d" % (call, step)
        self._check(tensors, place)
        self.calls += 1
        path = os.path.join(self.folder, "step%d.call%d.safetensors" % (step, call))
        if not self.feeds:
            write_tensors(path, tensors)
            return None
        if not os.path.exists(path):
            raise self.fail("the reference's script has made no %s, so there is no batch for it" % place)
        recorded = read_tensors(path)
        if set(recorded) != set(tensors):
            texts = [", ".join(sorted(names)) for names in (recorded, tensors)]
            raise self.fail("%s was given %s on the reference, and %s here" % (place, *texts))
        fresh = {name: place_like(value, tensors[name]) for name, value in recorded.items()}
        same = [value.shape == tensors[name].shape and torch.equal(value, tensors[name]) for name, value in fresh.items()]
        self.different += not all(same)
        order = iter(tensors)
        changed = {name: map_tensors(value, lambda _: fresh[next(order)]) for name, value in given.items()}
        if next(order, None) is not None:
            raise self.fail("%s is given tensors in a container that cannot be rebuilt" % place)
        keywords.update({name: changed[name] for name in keywords})
        return tuple(changed[number] for number in range(len(positional)))

    def note_made(self, tensor: torch.Tensor) -> None:
        """Note a tensor that a model has returned."""
        if tensor.grad_fn is not None:
            self._made.append(tensor.grad_fn)

    def check_loss(self, loss: torch.Tensor) -> None:
        """Make sure that everything in a loss was computed by models, or from what they have made by functions that are seen.

        Raises:
            AgentError: ``workload``: a part of it was not.
        """
        own = {id(node) for node in self._made}
        seen: Set[int] = set()
        waiting: List[Any] = [loss.grad_fn]
        kept: List[Any] = []  # torch makes the object of a node anew if nobody holds it, and ids are used again
        while waiting:
            node = waiting.pop()
            if node is None or id(node) in own or id(node) in seen:
                continue
            seen.add(id(node))
            kept.append(node)
            if hasattr(node, "variable"):  # the end of a way, at a parameter
                raise self.fail("a part of the loss comes from no call of a model, and the data in it are not exchanged")
            if isinstance(node, torch.autograd.function.BackwardCFunction):
                words = "the script computes its loss by %s, and what that is given is not seen"
                raise self.fail(words % type(node).__name__.replace("Backward", ""))
            waiting += [each for each, _ in node.next_functions]
        self.losses += 1

    def check_end(self) -> None:
        """Make sure that the batches were what was trained on.

        Raises:
            AgentError: ``workload``: no batch, or no loss, was seen, or a check failed before.
        """
        if self.problem is not None:
            raise self.problem
        if not self.calls:
            raise self.fail("no call of a model was seen that a batch could be given to")
        if not self.losses:
            raise self.fail("no loss was seen that backward is called on, so nobody knows what it is computed from")

    def describe(self) -> Dict[str, Any]:
        """Return what the header says."""
        described = {"kind": "fed" if self.feeds else "kept", "calls": self.calls, "different": self.different}
        return {**described, **({"other_data": self.other_data} if self.other_data else {})}

    def _check(self, tensors: Mapping[str, torch.Tensor], place: str) -> None:
        if not tensors:
            raise self.fail("%s of a model is given no tensor that can be seen" % place)
        for name, tensor in tensors.items():
            if tensor.requires_grad:
                raise self.fail("%s is given %s, which another model has computed" % (place, name))
            if not has_plain_bytes(tensor) or not storable(tensor.dtype):
                raise self.fail("%s is given %s as %s, which cannot be stored" % (place, name, tensor.dtype))

    def fail(self, message: str) -> AgentError:
        """Return the error to raise, and keep it."""
        self.problem = AgentError("workload", "determinism.data=recorded cannot be done: " + message, _INSTEAD)
        return self.problem


def read_tensors(path: str) -> Dict[str, torch.Tensor]:
    """Return the tensors of one call, by name.

    Raises:
        AgentError: ``workload``: the file cannot be read, or its bytes are not those that were written.
    """
    try:
        with intake.open_regular(path) as file:
            index = intake.parse_json(file.read(int.from_bytes(file.read(8), "little")))
            data = file.read()
        sums = index.pop("__metadata__", {})
        return {
            key[len(_KEY) :]: _read_tensor(data, entry, sums.get(key)) for key, entry in index.items() if key.startswith(_KEY)
        }
    except (OSError, OverflowError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = "the reference's batch %s cannot be read: %s" % (path, error)
        raise AgentError("workload", message, "record the reference again, or copy its dump again") from error


def _read_tensor(data: bytes, entry: Mapping[str, Any], checksum: Optional[str]) -> torch.Tensor:
    begin, end = entry["data_offsets"]
    piece = data[begin:end]
    if hashlib.blake2b(piece, digest_size=DIGEST_SIZE).hexdigest() != checksum:
        raise ValueError("its bytes are not those that were written")
    dtype: torch.dtype = getattr(torch, DTYPE_OF_SAFETENSORS[entry["dtype"]])
    flat = torch.frombuffer(bytearray(piece), dtype=dtype) if piece else torch.empty(0, dtype=dtype)
    return flat.reshape(entry["shape"])


def write_tensors(path: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors by name.

    Raises:
        WriteError: They cannot be written.
    """
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shard = ShardFile(path, _NO_LIMIT)
        for name, tensor in tensors.items():
            shard.add(TensorEntry(_KEY + name, tensor.detach().cpu().contiguous(), private=False))
        shard.close()
    except OSError as error:
        raise write_error(error, path, 0) from error


def place_like(recorded: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a recorded tensor on the device of another one; a floating one in its type too."""
    return recorded.to(like.device, like.dtype if like.is_floating_point() else recorded.dtype)
