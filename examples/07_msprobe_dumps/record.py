"""A training step recorded with msprobe: python record.py FOLDER [FACTOR]. FACTOR is what the target's kernel gets wrong."""

import json
import sys
from pathlib import Path

import torch
from msprobe.pytorch import PrecisionDebugger

folder, factor = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 1.0
folder.mkdir()
settings = {"task": "tensor", "level": "mix", "dump_path": str(folder), "rank": [], "step": []}
(folder / "config.json").write_text(json.dumps(settings))


class Block(torch.nn.Module):
    """A perceptron with a residual; the factor stands for a kernel that scales."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.fc1 = torch.nn.Linear(width, 2 * width)
        self.fc2 = torch.nn.Linear(2 * width, width)
        self.factor = 1.0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the hidden states with what the perceptron adds."""
        inner = torch.nn.functional.gelu(self.fc1(self.norm(hidden)))
        return hidden + self.fc2(inner if self.factor == 1.0 else inner * self.factor)


torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), *(Block(32) for _ in range(3)), torch.nn.Linear(32, 4))
model[2].factor = factor
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
debugger = PrecisionDebugger(config_path=f"{folder}/config.json")
for _ in range(2):
    batch, wanted = torch.randn(8, 16), torch.randn(8, 4)
    debugger.start(model)
    loss = (model(batch) - wanted).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    debugger.stop()
    debugger.step()
