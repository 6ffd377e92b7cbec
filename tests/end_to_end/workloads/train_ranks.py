"""A data-parallel training script for torchrun, with gloo."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
rank, size = dist.get_rank(), dist.get_world_size()
for step in range(2):
    batch = torch.randn(8, 8, generator=torch.Generator().manual_seed(step))[rank::size]
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("rank", rank, "step", step, "loss", loss.item())
dist.destroy_process_group()
