"""A training script of several processes that records itself with the agent: each rank its own lines, one dump for all.

    torchrun --nproc-per-node 2 ranks.py FOLDER [FACTOR] [sum|maximum|alone]

Each rank has its half of the inner width; what they add up is reduced over gloo. FACTOR scales what rank 1 makes; the
word says what the reduction computes, and among which ranks.
"""

import sys

import torch
import torch.distributed
from torch import nn

from precflow.agent.capture.recorder import Recorder
from precflow.agent.dump.writer import Writer
from precflow.agent.session import workload_model

STEPS = 2
WIDTH = 32


class Halves(nn.Module):
    """The half of a two-layer network that one rank has."""

    def __init__(self, rank, ranks, factor, reduction):
        super().__init__()
        torch.manual_seed(0)
        wide, narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH, bias=False)
        mine = slice(rank * 2 * WIDTH // ranks, (rank + 1) * 2 * WIDTH // ranks)
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH // ranks), nn.Linear(2 * WIDTH // ranks, WIDTH, bias=False)
        self.wide.weight.data, self.wide.bias.data = wide.weight.data[mine].clone(), wide.bias.data[mine].clone()
        self.narrow.weight.data = narrow.weight.data[:, mine].clone()
        self.factor = factor
        self.reduction = reduction
        groups = [torch.distributed.new_group([each]) for each in range(ranks)]
        self.group = groups[rank] if reduction == "alone" else None

    def forward(self, hidden):
        if torch.distributed.get_rank() == 0:
            hidden = hidden.clone()  # one site more than the other rank: each has a list of its own
        part = self.narrow(torch.relu(self.wide(hidden))) * self.factor
        kind = torch.distributed.ReduceOp.MAX if self.reduction == "maximum" else torch.distributed.ReduceOp.SUM
        torch.distributed.all_reduce(part, op=kind, group=self.group)
        return torch.tanh(part)


def record(folder, factor, reduction):
    """Record two steps and seal them, on the first rank for all."""
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model = Halves(rank, ranks, factor if rank == 1 else 1.0, reduction)
    inputs = {"hidden": torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1))}
    weights, given = workload_model.hash_weights(model), workload_model.hash_inputs(inputs)
    writer = Writer(folder, rank=rank, declared="ranks")
    recorder = Recorder(writer, rank=rank)
    for step in range(STEPS):
        recorder.begin_step(step)
        with recorder.watch(model):
            model(inputs["hidden"] * (step + 1))
    if rank:
        writer.finish()
    torch.distributed.barrier()
    if rank == 0:
        header = {
            "side": "target",
            "dtype": "float32",
            "device": {"name": "cpu", "kind": "cpu", "description": "CPU", "emulated": False},
            "weights": weights,
            "inputs": given,
            "repeat": {"checked": True, "records": 1, "by": ["bits"], "different": []},
            "sites": recorder.sites,
        }
        writer.seal(header, ranks=range(1, ranks))


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    record(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1.0, sys.argv[3] if len(sys.argv) > 3 else "sum")
    torch.distributed.destroy_process_group()
