"""A training script that can look at its model on the way: each step has a further forward of other samples then."""

import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--watch", action="store_true")
options = parser.parse_args()
device = torch.device("npu" if hasattr(torch, "npu") and torch.npu.is_available() else "cpu")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 16)).to(
    device
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
draws = torch.Generator().manual_seed(1)
watched = torch.ones(4, 16).cumsum(0).to(device)
for step in range(3):
    batch = torch.randn(8, 16, generator=draws).to(device)
    if options.watch:
        with torch.no_grad():
            print("watched", model(watched).square().mean().item())
    loss = (model(batch) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
