"""A training script as a user writes it: it draws its noise on the device, and writes its losses to a file."""

import argparse
import json

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-3)
options = parser.parse_args()
device = torch.device("npu" if hasattr(torch, "npu") and torch.npu.is_available() else "cpu")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 16)).to(
    device
)
optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
log = []
for step in range(3):
    clean = torch.randn(8, 16).to(device)
    noise = torch.randn_like(clean)
    loss = (model(clean + noise) - noise).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
    log.append({"step": step, "loss": loss.item()})
with open("gpulog.json", "w") as file:
    json.dump(log, file)
