"""What the scripts share, as a user's own module beside them: a model, data, and a file that shows every bit of a run."""

import json
import sys

import torch


class Net(torch.nn.Module):
    def __init__(self, width=16, depth=2, dropout=0.1):
        super().__init__()
        self.first = torch.nn.Linear(8, width)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.LayerNorm(width), torch.nn.Linear(width, width), torch.nn.Dropout(dropout))
            for _ in range(depth)
        )
        self.last = torch.nn.Linear(width, 4)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + torch.nn.functional.gelu(block(x))
        return self.last(x)


def rows(count=64):
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long() + 2 * (x[:, 0] > 0).long())


def batches(count=4, size=8):
    return torch.utils.data.DataLoader(rows(count * size), batch_size=size, shuffle=True)


def finish(losses, *models):
    """Write the losses, the weights and the state of the generator, bit by bit."""
    weights = [value for model in models for _, value in sorted(model.state_dict().items())]
    bits = {
        "losses": [float(loss).hex() for loss in losses],
        "weights": [value.double().flatten().tolist() for value in weights],
        "generator": bytes(torch.get_rng_state().tolist()).hex(),
    }
    with open(sys.argv[1], "w") as file:
        file.write(json.dumps(bits))  # in C, where `json.dump` is Python
