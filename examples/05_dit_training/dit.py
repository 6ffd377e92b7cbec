"""A small diffusion transformer: patches of a latent image, conditioned on timestep and class by adaptive layer norm."""

import math

import torch
from torch import nn
from torch.nn import functional as F


def modulate(x, shift, scale):
    """Shift and scale the tokens of each sample."""
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class TimestepEmbedding(nn.Module):
    """Sines and cosines of the timestep, then two linear layers."""

    def __init__(self, width, frequencies=64):
        super().__init__()
        self.frequencies = frequencies
        self.layers = nn.Sequential(nn.Linear(2 * frequencies, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t):
        steps = torch.arange(self.frequencies, device=t.device, dtype=torch.float32)
        angles = t[:, None].float() * torch.exp(-math.log(10000) * steps / self.frequencies)
        return self.layers(torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1))


class Attention(nn.Module):
    """Self-attention over all patches."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        weights = F.softmax(q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5, dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm that the condition shifts and scales and a gate that it opens."""

    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x, c):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.condition(c).chunk(6, dim=1)
        x = x + gate1.unsqueeze(1) * self.attention(modulate(self.norm1(x), shift1, scale1))
        return x + gate2.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift2, scale2))


class DiT(nn.Module):
    """Predicts the noise in a batch of latents of shape [batch, channels, size, size]."""

    def __init__(self, size=16, channels=4, patch=2, width=128, depth=4, heads=4, classes=10):
        super().__init__()
        self.patch = patch
        self.embed = nn.Conv2d(channels, width, kernel_size=patch, stride=patch)
        self.positions = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2, width))
        self.timestep = TimestepEmbedding(width)
        self.label = nn.Embedding(classes, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.out = nn.Linear(width, patch * patch * channels)

    def forward(self, x, t, y):
        batch, channels, size, _ = x.shape
        tokens = self.embed(x).flatten(2).transpose(1, 2) + self.positions
        c = self.timestep(t) + self.label(y)
        for block in self.blocks:
            tokens = block(tokens, c)
        shift, scale = self.condition(c).chunk(2, dim=1)
        patches = self.out(modulate(self.norm(tokens), shift, scale))
        side = size // self.patch
        patches = patches.view(batch, side, side, self.patch, self.patch, channels)
        return patches.permute(0, 5, 1, 3, 2, 4).reshape(batch, channels, size, size)
