"""A small residual network that is trained on labels, on the CPU: blocks with a norm, and a head."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 2 * width)
        self.act = nn.GELU()
        self.narrow = nn.Linear(2 * width, width)

    def forward(self, hidden):
        return hidden + self.narrow(self.act(self.wide(self.norm(hidden))))


class Network(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, 4)

    def forward(self, features):
        hidden = features
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def build(width=16, depth=3):
    return Network(width, depth)


def inputs(rows=8, width=16):
    return {"features": torch.randn(rows, width), "labels": torch.randint(0, 4, (rows,))}


def loss():
    def cross_entropy(output, labels):
        return functional.cross_entropy(output, labels)

    return cross_entropy
