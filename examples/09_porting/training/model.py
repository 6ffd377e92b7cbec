"""A small transformer that classifies sequences."""

import math

import torch
from torch import nn

from ops import scale_and_add


class RMSNorm(nn.Module):
    """Root mean square normalisation, written out."""

    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, values):
        mean = values.pow(2).mean(-1, keepdim=True)
        return self.weight * (values * torch.rsqrt(mean + self.eps))


class Attention(nn.Module):
    """Attention over the whole sequence."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, values):
        batch, length, width = values.shape
        shape = (batch, length, self.heads, width // self.heads)
        query, key, value = (part.view(shape).transpose(1, 2) for part in self.qkv(values).chunk(3, dim=-1))
        scores = query @ key.transpose(-2, -1) / math.sqrt(shape[-1])
        mixed = torch.softmax(scores, dim=-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Gate(nn.Module):
    """A feed-forward part whose middle is gated."""

    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, values):
        gate, values = self.up(values).chunk(2, dim=-1)
        return self.down(torch.sigmoid(gate) * values)


class Block(nn.Module):
    """Attention and a gated feed-forward part, each with a scaled residual."""

    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.attention = RMSNorm(width), Attention(width, heads)
        self.norm2, self.gate = RMSNorm(width), Gate(width)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, values):
        values = scale_and_add(values, self.attention(self.norm1(values)), self.scale)
        return scale_and_add(values, self.gate(self.norm2(values)), self.scale)


class Classifier(nn.Module):
    """Embeds numbers, mixes them, and tells the class of the sequence."""

    def __init__(self, width, heads, depth, length, classes=2):
        super().__init__()
        self.embed = nn.Linear(1, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, classes)
        self.register_buffer("positions", self._make_positions(length, width))

    @staticmethod
    def _make_positions(length, width):
        angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    def forward(self, values):
        values = self.embed(values) + self.positions
        for block in self.blocks:
            values = block(values)
        return self.head(self.norm(values).mean(dim=1))
