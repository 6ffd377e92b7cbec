"""DistributedDataParallel in a group of one process."""

import os

import torch
import torch.distributed as dist
from helper import Net, batches, finish

os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
torch.manual_seed(0)
net = Net()
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for x, y in batches():
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
finish(losses, net)
dist.destroy_process_group()
