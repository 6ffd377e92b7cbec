"""A workload that several ranks run together: their group, each one's part of the batch, and one header for all of them."""

from __future__ import annotations

import atexit
import os
import time
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Sequence, Tuple

import torch
import torch.distributed as group

from precflow.agent import intake
from precflow.agent.contract import RANK_FILE
from precflow.agent.dump.step_files import write_json
from precflow.agent.dump.write_errors import write_error
from precflow.agent.failures import AgentError
from precflow.agent.measure.content_id import add_digest
from precflow.agent.ranks import rank_of

if TYPE_CHECKING:
    from precflow.agent.devices.protocol import Device
    from precflow.agent.dump.writer import Writer
    from precflow.agent.request import Request

_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}  # of a device's kind, with which the ranks talk to each other
_TICK = 0.02  # seconds between two looks for the files of the other ranks


def join(request: Request, device: Device) -> None:
    """Join the group of the ranks that run a model; does nothing if the side is one process.

    Raises:
        AgentError: ``unsupported``: ranks cannot talk to each other on this device.
    """
    if request.ranks == 1 or group.is_initialized():
        return
    check_device(request, device)
    group.init_process_group(_BACKENDS[device.kind])
    atexit.register(group.destroy_process_group)  # NCCL complains of groups that nobody has left


def check_device(request: Request, device: Device) -> None:
    """Refuse several ranks on a device that has no communication, before a script fails in the middle of it.

    Raises:
        AgentError: ``unsupported``: ranks cannot talk to each other on this device.
    """
    if request.ranks > 1 and (device.kind not in _BACKENDS or not group.is_available()):
        side = request.side
        message = "%s.ranks=%d, and ranks cannot talk to each other on the %s device" % (side, request.ranks, device.kind)
        step = "%s.device=cpu tries the recipe with gloo; %s.ranks=1 keeps the device" % (side, side)
        raise AgentError("unsupported", message, step)


def share_inputs(request: Request, inputs: Dict[str, Any], hashes: Dict[str, Any]) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Return this rank's part of the inputs, and the hashes of what it was given.

    If the factory has made the same inputs on every rank, each takes its part of the batch: every tensor whose first axis is as
    long as the first tensor's is cut along it. If the inputs differ, the factory has shared them out itself.

    Args:
        request: Says how many ranks there are.
        inputs: By name, as the factory of this rank has made them.
        hashes: ``digest`` and ``entries`` of these inputs.

    Raises:
        AgentError: ``workload``: the batch cannot be cut into equal parts.
    """
    if request.ranks == 1:
        return inputs, hashes
    digests: List[Any] = [None] * request.ranks
    group.all_gather_object(digests, hashes["digest"])
    rank = rank_of(request)
    if len(set(digests)) > 1:
        return inputs, {**hashes, "entries": name_of_rank(rank, hashes["entries"])}
    # The header has the inputs once then, by the names that they have in one process.
    own: Dict[str, Any] = {**hashes, "entries": {} if rank else hashes["entries"]}
    sizes = [len(value) for value in inputs.values() if isinstance(value, torch.Tensor) and value.dim()]
    if not sizes:
        return inputs, own
    if sizes[0] % request.ranks:
        message = "workload.inputs has a batch of %d, and %d ranks cannot share it equally" % (sizes[0], request.ranks)
        raise AgentError("workload", message, "choose a batch that is a multiple of %d" % request.ranks)
    part = sizes[0] // request.ranks

    def cut(value: Any) -> Any:
        """Return this rank's rows of a tensor that has the batch in front; anything else as it is."""
        whole = isinstance(value, torch.Tensor) and value.dim() and len(value) == sizes[0]
        return value[rank * part : (rank + 1) * part].clone() if whole else value

    return {name: cut(value) for name, value in inputs.items()}, own


def wrap(request: Request, model: torch.nn.Module) -> torch.nn.Module:
    """Return the model as the ranks train it together, with ``DistributedDataParallel`` around it; in one process as it is."""
    together = request.ranks > 1 and group.is_available() and group.is_initialized()
    if not together or not any(parameter.requires_grad for parameter in model.parameters()):
        return model
    return torch.nn.parallel.DistributedDataParallel(model)


def seal(request: Request, writer: Writer, header: Mapping[str, Any]) -> None:
    """Seal the dump: rank 0 waits until every other rank has finished, then writes one header for all of them.

    The ranks meet at files and not at a barrier: a script may have left its group by now.

    Raises:
        WriteError: The dump cannot be written, or a rank has failed or lacks a step.
        AgentError: ``workload``: another rank has given up, and said so by :func:`give_up`.
    """
    if request.ranks == 1:
        writer.seal(header)
        return
    own = {key: header[key] for key in ("weights", "inputs", "losses", "updates", "repeat", "observer", "ran")}
    rank, own["loss_steps"] = rank_of(request), header.get("loss_steps") or list(range(len(header["losses"])))
    if rank:
        writer.finish()
        _write(writer.folder, rank, own)
        return
    paths = [os.path.join(writer.folder, RANK_FILE % other) for other in range(1, request.ranks)]
    others = [_read(path) for path in paths]
    writer.seal({**header, **_merge([own, *others])}, ranks=range(1, request.ranks))
    for path in paths:
        os.remove(path)


def give_up(request: Request, problem: str) -> None:
    """Tell rank 0, which may be waiting to seal for all, that this rank will not come; on rank 0 it does nothing.

    Raises:
        WriteError: The file cannot be written.
    """
    if rank_of(request):
        _write(request.output, rank_of(request), {"problem": problem})


def clear(request: Request, folder: str) -> None:
    """Remove what this rank left of an attempt that did not come to its end."""
    path = os.path.join(folder, RANK_FILE % rank_of(request))
    if os.path.exists(path):
        os.remove(path)


def _read(path: str) -> Dict[str, Any]:
    while not os.path.exists(path):  # written in one piece: what is there is whole
        time.sleep(_TICK)
    facts: Dict[str, Any] = intake.read_json(path)
    if "problem" in facts:
        raise AgentError("workload", facts["problem"])
    return facts


def _write(folder: str, rank: int, facts: Mapping[str, Any]) -> None:
    path = os.path.join(folder, RANK_FILE % rank)
    try:
        write_json(path, facts)
    except OSError as error:
        raise write_error(error, path, 0) from error


def _merge(ranks: List[Dict[str, Any]]) -> Dict[str, Any]:
    """Return the facts of all ranks as one header has them. The loss of a step is the mean of the ranks' losses."""
    inputs = {name: entry for facts in ranks for name, entry in facts["inputs"]["entries"].items()}
    losses = [dict(zip(facts["loss_steps"], facts["losses"])) for facts in ranks]
    steps = sorted(step for step in losses[0] if all(step in each for each in losses))
    repeats = [facts["repeat"] for facts in ranks]
    return {
        "weights": merge_weights([facts["weights"] for facts in ranks]),
        "inputs": add_digest(inputs),
        "losses": [sum(each[step] for each in losses) / len(losses) for step in steps],
        "loss_steps": steps,
        "ran": [each for facts in ranks for each in facts["ran"]],
        "updates": {
            name: entry for rank, facts in enumerate(ranks) for name, entry in name_of_rank(rank, facts["updates"]).items()
        },
        "repeat": {
            "checked": all(repeat["checked"] for repeat in repeats),
            "records": sum(repeat["records"] for repeat in repeats),
            "by": sorted({how for repeat in repeats for how in repeat["by"]}),
            "different": [identity for repeat in repeats for identity in repeat["different"]],
        },
        "observer": {
            "checked": all(facts["observer"]["checked"] for facts in ranks),
            "step": ranks[0]["observer"]["step"],
            "different": [
                "%s on rank %d" % (what, rank) for rank, facts in enumerate(ranks) for what in facts["observer"]["different"]
            ],
        },
    }


def merge_weights(ranks: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """Return the weights of all ranks as one header has them: those of rank 0, and what other ranks have otherwise."""
    weights = dict(ranks[0]["entries"])
    for rank, own in enumerate(ranks):
        if own["digest"] != ranks[0]["digest"]:
            different = {name: each for name, each in own["entries"].items() if ranks[0]["entries"].get(name) != each}
            weights.update(name_of_rank(rank, different))
    return add_digest(weights)


def name_of_rank(rank: int, entries: Mapping[str, Any]) -> Dict[str, Any]:
    """Return entries by the names that they have in a header of several ranks: those of rank 0 keep theirs."""
    return {"rank%d.%s" % (rank, name) if rank else name: entry for name, entry in entries.items()}
