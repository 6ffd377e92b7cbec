"""Two ranks that call every collective, each once recorded and once plain, for ``test_collectives.py``.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... python collecting.py FOLDER PART

FOLDER gets the dump of the ranks, and `same-RANK.json` says whether the plain run computed the same bits.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from precflow.agent.capture.recorder import Recorder
from precflow.agent.dump.writer import Writer
from precflow.agent.request import CaptureSection

WIDTH = 4


class Calls(nn.Module):
    """Calls one collective after the other."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden):
        rank = dist.get_rank()
        hidden = self.first(hidden)
        dist.all_reduce(hidden)
        hidden = torch.tanh(hidden)
        largest = hidden.clone()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        work = dist.all_reduce(largest, async_op=True)
        beside = hidden * 2
        work.wait()
        both = largest + beside
        parts = [torch.zeros_like(hidden) for _ in range(2)]
        dist.all_gather(parts, hidden)
        hidden = hidden + parts[1 - rank]
        scattered = torch.zeros(2, WIDTH)
        dist.reduce_scatter_tensor(scattered, torch.cat([hidden, hidden * 2]))
        hidden = scattered.relu()
        dist.broadcast(hidden, 1)
        received = torch.zeros_like(hidden)
        if rank == 0:
            dist.send(hidden, 1)
        else:
            dist.recv(received, 0)
            received = received.cos()
        exchanged = torch.zeros_like(hidden)
        dist.all_to_all_single(exchanged, hidden.clone())
        exchanged = exchanged.exp()
        dist.reduce(exchanged, 1)
        exchanged = exchanged.sin()
        both_ways = [dist.P2POp(dist.isend, both, 1 - rank), dist.P2POp(dist.irecv, torch.zeros_like(both), 1 - rank)]
        for each in dist.batch_isend_irecv(both_ways):
            each.wait()
        dist.barrier()
        return both + hidden + received


class Functional(nn.Module):
    """Calls a functional collective, as tensor parallel code does."""

    def forward(self, hidden):
        from torch.distributed._functional_collectives import all_reduce

        return all_reduce(hidden, "sum", dist.group.WORLD).abs() + 1


class Hasty(nn.Module):
    """Reads the result of a collective before it can have come: the other rank takes its time."""

    def forward(self, hidden):
        hidden = hidden * 1.5
        if dist.get_rank():
            time.sleep(0.3)
        work = dist.all_reduce(hidden, async_op=True)
        early = hidden + 1
        work.wait()
        return early


class Narrow(nn.Module):
    """Sends numbers in a narrower type than it computes in."""

    def forward(self, hidden):
        sent = (hidden * 1.5).half()
        dist.all_reduce(sent)
        return sent.float() + 1


def forward(model):
    def step():
        with torch.no_grad():
            return model(torch.ones(2, WIDTH) * (dist.get_rank() + 1))

    return step


def train(wrap):
    """Return a network of two layers, and a function that trains it for a step and returns its weights."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, WIDTH))
    together = wrap(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)

    def step():
        optimizer.zero_grad()
        together(torch.ones(2, WIDTH) * (dist.get_rank() + 1)).square().mean().backward()
        optimizer.step()
        return torch.cat([getattr(weight, "_local_tensor", weight).detach().flatten() for weight in network.parameters()])

    step.optimizer = optimizer
    return network, step


def data_parallel(network):
    return nn.parallel.DistributedDataParallel(network)


def sharded(network):
    from torch.distributed.fsdp import fully_shard

    for layer in network:
        fully_shard(layer)
    fully_shard(network)
    return network


def build(part):
    if part in ("data_parallel", "sharded"):
        return train({"data_parallel": data_parallel, "sharded": sharded}[part])
    torch.manual_seed(0)
    model = {"calls": Calls, "functional": Functional, "hasty": Hasty, "narrow": Narrow}[part]()
    return model, forward(model)


def record(folder, part):
    """Record two steps of a part on both ranks, and run them plain."""
    rank = dist.get_rank()
    model, step = build(part)
    (folder / part).mkdir(exist_ok=True)
    writer = Writer(str(folder / part), rank=rank)
    training = hasattr(step, "optimizer")
    phases = ("forward", "backward", "gradient", "optimizer") if training else ("forward",)
    announced = []
    recorder = Recorder(writer, CaptureSection(phase=phases), rank=rank, report=lambda *facts: announced.append(facts))
    results = []
    for number in range(2):
        recorder.begin_step(number)
        with recorder.watch(model, getattr(step, "optimizer", None)):
            results.append(step())
    writer.finish()
    _, plain = build(part)
    same = [torch.equal(result, plain()) for result in results]
    (folder / f"{part}-{rank}.json").write_text(json.dumps({"same": same, "announced": announced}))
    dist.barrier()
    if rank == 0:
        header = {"side": "target", "dtype": "float32", "sites": recorder.sites}
        header["device"] = {"name": "cpu", "kind": "cpu", "description": "CPU", "emulated": False}
        Writer(str(folder / part), rank=0, resume=True).seal(header, ranks=[1])
    dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for part in sys.argv[2:]:
        record(Path(sys.argv[1]), part)
    dist.destroy_process_group()
