"""A small network whose blocks with dropout are computed again in backward; `--forget` draws other masks then."""

import argparse

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
parser.add_argument("--forget", action="store_true")
options = parser.parse_args()
torch.manual_seed(5)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.wide, self.drop, self.back = nn.LayerNorm(16), nn.Linear(16, 32), nn.Dropout(0.25), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.back(self.drop(torch.relu(self.wide(self.norm(x)))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(2)), nn.Linear(16, 4)

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=not options.forget)
        return self.head(x)


model = Net().to(options.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.Generator().manual_seed(6)
for step in range(3):
    x, y = torch.randn(32, 16, generator=data).to(options.device), torch.randint(4, (32,), generator=data).to(options.device)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f}")
